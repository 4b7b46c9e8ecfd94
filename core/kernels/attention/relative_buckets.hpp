// SPDX-License-Identifier: BSD-3-Clause
// Buckets of the distance between two tokens, as DeBERTa-v2 has them (arXiv 2006.03654; the public
// code of its second version).
#pragma once

namespace deltapipe {

/// Rows of a table of relative embeddings. Distances up to half of `buckets` have a row each; the
/// rows of longer ones cover ranges that grow with the distance.
struct RelativeBuckets {
  int buckets = -1;   ///< rows in each direction; not above 0: every distance has a row
  int longest = 512;  ///< distances from this one up share the last row

  /// Returns the number of rows in each direction.
  int span() const { return buckets > 0 ? buckets : longest; }
  int rows() const { return 2 * span(); }
  /// Returns the row of `distance` = query - key. Does not decrease with the distance. The same
  /// numbers as transformers, which computes logarithms in fp32.
  int row(int distance) const;

  bool operator==(const RelativeBuckets&) const = default;
};

}  // namespace deltapipe
