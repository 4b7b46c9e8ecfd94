// SPDX-License-Identifier: BSD-3-Clause
// Numbers and sizes of an activation cache's slots for records. They follow from its shape and its
// budget alone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/cache/activation_cache.hpp"

namespace deltapipe::cache_sizes {

/// Asserts that a cache can have this shape.
void check_shape(const CacheShape& shape);

/// Returns the distance between consecutive records in the pool and in staging memory.
std::size_t record_stride(std::size_t record_bytes);

/// Returns the number of records in the pool.
std::uint64_t pool_slots(const CacheShape& shape, std::uint64_t budget_bytes);

/// Returns true if some records must be in a file.
bool spills(const CacheShape& shape, std::uint64_t budget_bytes);

/// Return the numbers of staging slots of a cache that spills.
std::size_t read_slots(const CacheShape& shape);
std::size_t write_slots(const CacheShape& shape);

}  // namespace deltapipe::cache_sizes
