// SPDX-License-Identifier: BSD-3-Clause
// A model of what a cache must hold, and a directory of its own for every test.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/base/state/state_in_memory.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/cache/spill_file.hpp"
#include "tests/unit/core/files/files_support.hpp"

namespace cache_test {

using deltapipe::ActivationCache;
using deltapipe::CacheIdentity;
using deltapipe::CacheShape;
using Ids = std::vector<std::uint64_t>;
using Bytes = std::vector<std::uint8_t>;

using deltapipe::testing::TemporaryDirectory;

inline CacheIdentity identity() {
  return {.boundary = 2,
          .backward = false,
          .sender = true,
          .blocks_before = 5,
          .storage = "fp16",
          .tokens = 16,
          .channels = 8,
          .data_fingerprint = 0x1234567890abcdefu,
          .owner = {"run-1", "/runs/one", "/checkpoints/one"}};
}

inline deltapipe::StatePart part_of(ActivationCache& cache) {
  return {"cache", [&](auto& writer) { cache.write_state(writer); },
          [&](auto& reader) { cache.read_state(reader); }};
}

inline const deltapipe::StateContent::Item& item(const deltapipe::StateContent& content,
                                                 const std::string& name) {
  for (const auto& found : content.parts.front().items)
    if (found.item.name == name) return found;
  FAIL("no item " << name);
  throw 0;
}

/// Records of all visited samples, in their order.
inline Bytes records_of(ActivationCache& cache) {
  const deltapipe::StatePart part = part_of(cache);
  const auto content = deltapipe::state_in_memory({&part, 1});
  Bytes records;
  for (const std::byte byte : item(content, "records").bytes)
    records.push_back(std::to_integer<std::uint8_t>(byte));
  return records;
}

/// Content of all records in the file.
inline Ids damaged(ActivationCache& cache) {
  cache.find_damaged_records();
  return cache.take_damaged();
}

inline void put(const deltapipe::MemoryRecords& records, std::size_t b, const Bytes& bytes) {
  using Device =
      Kokkos::View<std::uint8_t*, deltapipe::MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  using Host =
      Kokkos::View<const std::uint8_t*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Kokkos::deep_copy(Device(records.pool.data() + records.offset_B[b], bytes.size()),
                    Host(bytes.data(), bytes.size()));
}

inline Bytes get(const deltapipe::MemoryRecords& records, std::size_t b, std::size_t size) {
  using Device = Kokkos::View<const std::uint8_t*, deltapipe::MemSpace,
                              Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  using Host =
      Kokkos::View<std::uint8_t*, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
  Bytes bytes(size);
  Kokkos::deep_copy(Host(bytes.data(), size),
                    Device(records.pool.data() + records.offset_B[b], size));
  return bytes;
}

/// Expected content of a cache: record and visits of every sample.
class Model {
 public:
  Model(const CacheShape& shape, unsigned seed) : shape_(shape), random_(seed) {}

  /// Acquires, compares with what was released last, and writes new bytes.
  void visit(ActivationCache& cache, const Ids& ids) {
    acquire(cache, ids);
    release(cache, ids);
  }

  void acquire(ActivationCache& cache, const Ids& ids) {
    deltapipe::MemoryRecords records;
    std::vector<std::uint32_t> visits;
    cache.acquire(ids, records, visits);
    REQUIRE(visits.size() == ids.size());
    REQUIRE(records.offset_B.size() == ids.size());
    for (std::size_t b = 0; b < ids.size(); ++b) {
      REQUIRE(records.offset_B[b] % deltapipe::kRecordAlignment == 0);
      REQUIRE(visits[b] == visits_[ids[b]]);
      if (visits[b] > 0) REQUIRE(get(records, b, shape_.record_bytes) == bytes_[ids[b]]);
      next_bytes_[ids[b]] = random_bytes();
      put(records, b, next_bytes_[ids[b]]);
    }
  }

  void release(ActivationCache& cache, const Ids& ids) {
    cache.release(deltapipe::ExecSpace(), ids);
    for (const std::uint64_t id : ids) {
      bytes_[id] = next_bytes_[id];
      ++visits_[id];
    }
  }

  void forget(std::uint64_t id) { visits_[id] = 0; }

  std::uint64_t hash(std::uint64_t id) {
    if (visits_[id] == 0) return 0;
    return deltapipe::record_checksum(bytes_[id].data(), bytes_[id].size());
  }

  void check_all(ActivationCache& cache) {
    Bytes records;
    for (std::uint64_t id = 0; id < shape_.samples; ++id) {
      REQUIRE(cache.visits()[id] == visits_[id]);
      if (visits_[id] > 0) records.insert(records.end(), bytes_[id].begin(), bytes_[id].end());
    }
    REQUIRE(records_of(cache) == records);
  }

  const Bytes& bytes(std::uint64_t id) { return bytes_[id]; }
  std::uint32_t visits(std::uint64_t id) { return visits_[id]; }
  std::mt19937_64& random() { return random_; }

 private:
  Bytes random_bytes() {
    Bytes bytes(shape_.record_bytes);
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random_());
    return bytes;
  }

  CacheShape shape_;
  std::mt19937_64 random_;
  std::map<std::uint64_t, Bytes> bytes_;
  std::map<std::uint64_t, Bytes> next_bytes_;
  std::map<std::uint64_t, std::uint32_t> visits_;
};

/// A budget for this many records, whatever the alignment.
inline std::uint64_t budget_for(const CacheShape& shape, std::uint64_t records) {
  CacheShape one = shape;
  one.max_samples_in_flight = 1;
  return ActivationCache::minimum_budget_bytes(one) * records;
}

inline Ids shuffled(std::uint64_t samples, std::mt19937_64& random) {
  Ids ids(samples);
  for (std::uint64_t i = 0; i < samples; ++i) ids[i] = i;
  std::shuffle(ids.begin(), ids.end(), random);
  return ids;
}

}  // namespace cache_test
