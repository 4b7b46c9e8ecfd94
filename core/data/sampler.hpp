// SPDX-License-Identifier: BSD-3-Clause
// Order in which samples are visited.
#pragma once

#include <cstdint>
#include <vector>

namespace deltapipe {

/// A permutation of 0 ... size - 1 for every epoch, computed element by element without memory:
/// a Feistel network with Philox as its round function, walked until it lands inside the set.
/// The same for equal (size, seed, shuffle, stream) on every rank and platform.
class Sampler {
 public:
  /// Requires size > 0. Without shuffle every epoch is in file order. Streams below 2^24 have
  /// different orders for the same seed.
  Sampler(std::uint64_t size, std::uint64_t seed, bool shuffle, std::uint32_t stream = 0);

  std::uint64_t size() const { return size_; }
  /// Returns the sample at `position` < size() of `epoch`.
  std::uint64_t at(std::uint64_t epoch, std::uint64_t position) const;

  /// Returns the steps that visit all samples once: ceil(size / global_batch_size).
  std::uint64_t steps_per_epoch(std::uint64_t global_batch_size) const;
  /// Returns the samples of `step` (counted from 0 over all epochs). No batch spans epochs: the
  /// last one of an epoch has fewer samples if global_batch_size does not divide size().
  std::vector<std::uint64_t> batch(std::uint64_t step, std::uint64_t global_batch_size) const;

 private:
  std::uint64_t size_;
  std::uint64_t seed_;
  bool shuffle_;
  std::uint32_t stream_;
  int half_bits_;  ///< the network permutes 0 ... 4^half_bits - 1, the smallest such set >= size
};

}  // namespace deltapipe
