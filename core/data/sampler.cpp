// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/sampler.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/base/error.hpp"
#include "core/base/numeric/random.hpp"

namespace deltapipe {
namespace {

constexpr std::uint32_t kRounds = 12;
constexpr int kRoundBits = 8;

/// `site` identifies round and stream.
std::uint32_t round_function(std::uint32_t site, std::uint32_t half, std::uint64_t epoch,
                             std::uint64_t seed) {
  return philox(half, site, static_cast<std::uint32_t>(epoch),
                static_cast<std::uint32_t>(epoch >> 32), seed)
      .word[0];
}

}  // namespace

Sampler::Sampler(std::uint64_t size, std::uint64_t seed, bool shuffle, std::uint32_t stream)
    : size_(size), seed_(seed), shuffle_(shuffle), stream_(stream) {
  DELTAPIPE_ASSERT(size > 0, "a sampler needs samples");
  DELTAPIPE_ASSERT(stream >> (32 - kRoundBits) == 0, fmt::format("stream {}", stream));
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2);
}

std::uint64_t Sampler::at(std::uint64_t epoch, std::uint64_t position) const {
  DELTAPIPE_ASSERT(position < size_, fmt::format("position {}", position));
  if (!shuffle_) return position;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t value = position;
  do {
    std::uint64_t left = value >> half_bits_;
    std::uint64_t right = value & mask;
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      const std::uint64_t mixed =
          left ^ (round_function(round | stream_ << kRoundBits, static_cast<std::uint32_t>(right),
                                 epoch, seed_) &
                  mask);
      left = right;
      right = mixed;
    }
    value = (left << half_bits_) | right;
  } while (value >= size_);
  return value;
}

std::uint64_t Sampler::steps_per_epoch(std::uint64_t global_batch_size) const {
  DELTAPIPE_ASSERT(global_batch_size > 0, "a batch needs samples");
  return size_ / global_batch_size + (size_ % global_batch_size != 0);
}

std::vector<std::uint64_t> Sampler::batch(std::uint64_t step,
                                          std::uint64_t global_batch_size) const {
  const std::uint64_t steps = steps_per_epoch(global_batch_size);
  const std::uint64_t epoch = step / steps;
  const std::uint64_t first = (step % steps) * global_batch_size;
  const std::uint64_t count = std::min(global_batch_size, size_ - first);
  std::vector<std::uint64_t> ids(count);
  for (std::uint64_t i = 0; i < count; ++i) ids[i] = at(epoch, first + i);
  return ids;
}

}  // namespace deltapipe
