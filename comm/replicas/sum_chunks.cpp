// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/sum_chunks.hpp"

#include "core/base/pieces.hpp"

namespace deltapipe {

namespace {

// All peers together buffer about as many elements, whatever their number.
constexpr std::size_t kPartsTogether = std::size_t{1} << 18;
constexpr std::size_t kSmallestPart = 4096;

}  // namespace

std::vector<std::size_t> bucket_sizes(const ParameterArena<float>& parameters) {
  std::vector<std::size_t> sizes;
  for (const BucketRange& bucket : parameters.buckets()) sizes.push_back(bucket.end - bucket.begin);
  return sizes;
}

std::vector<std::size_t> statistic_sizes(const ParameterArena<float>& parameters) {
  const std::size_t size = parameters.statistic_size();
  return size == 0 ? std::vector<std::size_t>() : std::vector{size};
}

std::vector<SumChunk> sum_chunks(std::span<const std::size_t> bucket_sizes, int replicas) {
  const auto parts = static_cast<std::size_t>(replicas);
  const std::size_t most = parts * std::max(kSmallestPart, in_groups(kPartsTogether / parts));
  std::vector<SumChunk> chunks;
  for (std::size_t bucket = 0; bucket < bucket_sizes.size(); ++bucket)
    for_pieces(0, bucket_sizes[bucket], most, [&](std::size_t begin, std::size_t size) {
      chunks.push_back({bucket, {begin, size}, in_groups((size + parts - 1) / parts)});
    });
  return chunks;
}

std::size_t largest_part(std::span<const SumChunk> chunks) {
  std::size_t largest = 0;
  for (const SumChunk& chunk : chunks) largest = std::max(largest, chunk.part(0).size);
  return largest;
}

}  // namespace deltapipe
