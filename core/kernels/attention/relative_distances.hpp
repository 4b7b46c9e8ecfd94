// SPDX-License-Identifier: BSD-3-Clause
// The buckets of all distances of a sample, as tables for kernels.
#pragma once

#include <cstdint>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"
#include "core/kernels/attention/relative_buckets.hpp"

namespace deltapipe {

/// Tables of the distances -(T - 1) ... T - 1 for the most tokens T of a sample.
class RelativeDistances {
 public:
  RelativeDistances() = default;
  RelativeDistances(const RelativeBuckets& buckets, int most_tokens, const ViewAllocator& memory);

  const RelativeBuckets& buckets() const { return buckets_; }
  int most_tokens() const { return most_tokens_; }
  /// Row of each distance, starting with -(T - 1).
  const Vector<std::int32_t>& row() const { return row_; }
  /// First distance of each row and, last, T. Rows without distances are empty ranges.
  const Vector<std::int32_t>& begin() const { return begin_; }

 private:
  RelativeBuckets buckets_;
  int most_tokens_ = 0;
  Vector<std::int32_t> row_, begin_;
};

/// The rows of relative positions that samples of `tokens` tokens reach.
struct RelativeRows {
  int first = 0;
  int count = 0;  ///< P

  static RelativeRows of(const RelativeBuckets& buckets, int tokens) {
    const int first = buckets.row(1 - tokens);
    return {first, buckets.row(tokens - 1) - first + 1};
  }
};

}  // namespace deltapipe
