// SPDX-License-Identifier: BSD-3-Clause
// The pool: records in device memory, and their moves to and from staging memory.
#include <utility>

#include "core/base/error.hpp"
#include "core/cache/activation_cache.hpp"

namespace deltapipe {

namespace {

template <class Space>
using RawBytes =
    Kokkos::View<std::uint8_t*, Layout, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class Space>
using ConstRawBytes =
    Kokkos::View<const std::uint8_t*, Layout, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

}  // namespace

std::uint8_t* ActivationCache::pool_bytes(std::int32_t slot) {
  return pool_.data() + pool_offset_[static_cast<std::size_t>(slot)];
}

void ActivationCache::exchange(std::int32_t pool_slot, RecordTask& task) {
  std::uint64_t& offset = pool_offset_[static_cast<std::size_t>(pool_slot)];
  std::uint8_t* bytes = pool_.data() + offset;
  offset = static_cast<std::uint64_t>(task.bytes - pool_.data());
  task.bytes = bytes;
}

void ActivationCache::copy_to_pool(std::int32_t slot, const std::uint8_t* bytes) {
  const RawBytes<MemSpace> to(pool_bytes(slot), shape_.record_bytes);
  const ConstRawBytes<StagingSpace> from(bytes, shape_.record_bytes);
  Kokkos::deep_copy(copies_, to, from);
  copying_ = true;
}

void ActivationCache::copy_from_pool(std::uint8_t* bytes, std::int32_t slot) {
  const RawBytes<StagingSpace> to(bytes, shape_.record_bytes);
  const ConstRawBytes<MemSpace> from(pool_bytes(slot), shape_.record_bytes);
  Kokkos::deep_copy(copies_, to, from);
  copying_ = true;
}

void ActivationCache::settle_released() {
  for (const ExecSpace& exec : released_on_)
    if (kSharedMemory)
      exec.fence();  // the I/O thread reads the records directly
    else
      order_after(copies_, exec);
  released_on_.clear();
}

void ActivationCache::wait_for_copies() {
  if (std::exchange(copying_, false)) copies_.fence();
}

void ActivationCache::bring_in(std::uint64_t sample) {
  Place& place = places_[sample];
  place.pool = take_pool_slot();
  place.dirty = false;
  if (visits_[sample] == 0) return;
  StagingSlot& slot = reads_[static_cast<std::size_t>(place.read)];
  if (slot.state == SlotState::submitted) wait_for(slot);
  if (kSharedMemory)
    exchange(place.pool, slot.task);
  else
    copy_to_pool(place.pool, slot.task.bytes);
}

std::int32_t ActivationCache::take_pool_slot() {
  if (free_pool_.empty()) {
    DELTAPIPE_ASSERT(!evictable_.empty(), "all records in the pool are pinned");
    give_up(evictable_.victim());
  }
  const std::int32_t slot = free_pool_.back();
  free_pool_.pop_back();
  return slot;
}

void ActivationCache::give_up(std::uint64_t sample) {
  if (places_[sample].dirty) fill_write_slot(sample, kSharedMemory);
  drop_from_pool(sample);
}

void ActivationCache::drop_from_pool(std::uint64_t sample) {
  Place& place = places_[sample];
  evictable_.erase(sample);
  free_pool_.push_back(place.pool);
  place.pool = kNowhere;
  place.dirty = false;
}

}  // namespace deltapipe
