// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/activation_cache_sizes.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/cache/spill_file.hpp"

namespace deltapipe {

namespace cache_sizes {

std::size_t record_stride(std::size_t record_bytes) {
  return (record_bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

std::uint64_t pool_slots(const CacheShape& shape, std::uint64_t budget_bytes) {
  if (budget_bytes == 0) return shape.samples;
  return std::min<std::uint64_t>(shape.samples, budget_bytes / record_stride(shape.record_bytes));
}

bool spills(const CacheShape& shape, std::uint64_t budget_bytes) {
  return pool_slots(shape, budget_bytes) < shape.samples;
}

std::size_t read_slots(const CacheShape& shape) {
  return static_cast<std::size_t>(shape.prefetch_samples) +
         static_cast<std::size_t>(shape.max_samples_in_flight);
}

std::size_t write_slots(const CacheShape& shape) {
  return read_slots(shape);
}

void check_shape(const CacheShape& shape) {
  DELTAPIPE_ASSERT(shape.samples > 0, "a cache of no samples");
  DELTAPIPE_ASSERT(shape.record_bytes > 0, "a cache of empty records");
  DELTAPIPE_ASSERT(shape.max_samples_in_flight > 0, "no sample may be in flight");
  DELTAPIPE_ASSERT(shape.prefetch_samples >= 0, "negative prefetch");
}

}  // namespace cache_sizes

using namespace cache_sizes;

std::uint64_t ActivationCache::minimum_budget_bytes(const CacheShape& shape) {
  const auto in_flight = static_cast<std::uint64_t>(shape.max_samples_in_flight);
  return std::min(shape.samples, in_flight) * record_stride(shape.record_bytes);
}

void ActivationCache::check_budget(const CacheShape& shape, std::uint64_t budget_bytes) {
  const std::uint64_t minimum = minimum_budget_bytes(shape);
  if (budget_bytes != 0 && budget_bytes < minimum)
    throw UserError(
        {.what = "the activation cache's budget is too small",
         .value = fmt::format("{} bytes", budget_bytes),
         .remedy = fmt::format(
             "set cache.budget to at least {}, the records of the micro-batches in flight, or to 0",
             minimum),
         .keys = {"cache.budget"}});
}

CacheMemory ActivationCache::memory_bytes(const CacheShape& shape, std::uint64_t budget_bytes) {
  check_shape(shape);
  const std::size_t stride = record_stride(shape.record_bytes);
  CacheMemory memory;
  memory.pool_bytes = pool_slots(shape, budget_bytes) * stride;
  const bool has_file = spills(shape, budget_bytes);
  if (has_file) memory.staging_bytes = (read_slots(shape) + write_slots(shape)) * stride;
  // Places, eviction keys, announced uses and visits; visits and checksums of the file.
  const std::uint64_t sample_bytes =
      sizeof(ActivationCache::Place) + 3 * sizeof(std::uint64_t) + 4 + (has_file ? 16 : 0);
  // Offset, free list and node of the eviction order.
  const std::uint64_t slot_bytes = sizeof(std::uint64_t) + sizeof(std::int32_t) + 64;
  memory.table_bytes = shape.samples * sample_bytes + pool_slots(shape, budget_bytes) * slot_bytes;
  // Rows that are held and rows that are free.
  if (has_file) memory.table_bytes += shape.spare_records * (4 + 2 + 4);
  return memory;
}

std::uint64_t ActivationCache::disk_bytes_needed(const CacheShape& shape,
                                                 std::uint64_t budget_bytes) {
  return spills(shape, budget_bytes)
             ? SpillFile::bytes_needed(shape.samples, shape.record_bytes, shape.reserved_records)
             : 0;
}

std::uint64_t ActivationCache::state_bytes(const CacheShape& shape, std::uint64_t budget_bytes,
                                           bool copies_file) {
  constexpr std::uint64_t kVisits = sizeof(std::uint32_t);
  constexpr std::uint64_t kPlace = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  if (copies_file || !spills(shape, budget_bytes))
    return shape.samples * (shape.record_bytes + kVisits);
  return shape.samples * (kVisits + kPlace) + budget_bytes;
}

}  // namespace deltapipe
