// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/activation_cache.hpp"

#include <fmt/format.h>

#include <limits>

#include "core/base/error.hpp"
#include "core/cache/activation_cache_sizes.hpp"
#include "core/cache/spill_file.hpp"

namespace deltapipe {

using namespace cache_sizes;

ActivationCache::ActivationCache(const ExecSpace& copies, CacheIoThread* io,
                                 const CacheShape& shape, const CacheIdentity& identity,
                                 std::uint64_t budget_bytes, const std::string& spill_path,
                                 SpillStart start)
    : shape_(shape),
      stride_(record_stride(shape.record_bytes)),
      copies_(copies),
      io_(io),
      uses_(shape.samples),
      evictable_(shape.samples) {
  check_shape(shape);
  ActivationCache::check_budget(shape, budget_bytes);
  if (spills(shape, budget_bytes)) {
    DELTAPIPE_ASSERT(io != nullptr, "a cache that spills needs an I/O thread");
    file_ = std::make_unique<SpillFile>(spill_path, identity, shape.samples, shape.record_bytes,
                                        start, shape.spare_records, shape.reserved_records);
    visits_ = file_->read_visits();
  } else {
    visits_.assign(shape.samples, 0);
  }
  places_.resize(shape.samples);
  allocate_memory(pool_slots(shape, budget_bytes));
}

ActivationCache::~ActivationCache() {
  for (StagingSlot& slot : reads_)
    if (slot.state == SlotState::submitted) io_->wait_read(slot.task);
  for (StagingSlot& slot : writes_)
    if (slot.state == SlotState::submitted) io_->wait_write(slot.task);
}

void ActivationCache::allocate_memory(std::uint64_t slots) {
  DELTAPIPE_ASSERT(slots <= std::numeric_limits<std::int32_t>::max(), "too many records");
  const std::size_t staging_slots = file_ ? read_slots(shape_) + write_slots(shape_) : 0;
  const std::uint64_t in_pool = slots + (kSharedMemory ? staging_slots : 0);
  try {
    pool_ = DeviceBytes(uninitialized("deltapipe::ActivationCache::pool"), in_pool * stride_);
    if (!kSharedMemory)
      staging_ =
          HostBytes(uninitialized("deltapipe::ActivationCache::staging"), staging_slots * stride_);
  } catch (const std::exception&) {
    throw UserError({.what = "no memory for an activation cache",
                     .value = fmt::format("{} bytes", slots * stride_),
                     .remedy = "set a smaller cache.budget: the rest goes to disk"});
  }
  pool_offset_.resize(slots);
  for (std::size_t i = 0; i < slots; ++i) pool_offset_[i] = i * stride_;
  free_pool_.resize(slots);
  for (std::size_t i = 0; i < slots; ++i) free_pool_[i] = static_cast<std::int32_t>(slots - 1 - i);
  if (!file_) return;
  reads_ = std::vector<StagingSlot>(read_slots(shape_));
  writes_ = std::vector<StagingSlot>(write_slots(shape_));
  std::uint8_t* bytes = kSharedMemory ? pool_.data() + slots * stride_ : staging_.data();
  for (std::size_t i = 0; i < staging_slots; ++i, bytes += stride_) {
    const bool is_write = i >= reads_.size();
    RecordTask& task = is_write ? writes_[i - reads_.size()].task : reads_[i].task;
    task.file = file_.get();
    task.bytes = bytes;
    task.is_write = is_write;
    (is_write ? free_writes_ : free_reads_)
        .push_back(static_cast<std::int32_t>(is_write ? i - reads_.size() : i));
  }
}

void ActivationCache::prefetch(std::span<const std::uint64_t> sample_ids) {
  collect_finished();
  rethrow_failure();
  for (const std::uint64_t sample : sample_ids) {
    DELTAPIPE_ASSERT(sample < shape_.samples, fmt::format("sample {}", sample));
    const bool new_use = uses_.next_use(sample) == AnnouncedUses::kUnknown;
    uses_.announce(sample);
    if (new_use && evictable_.contains(sample)) evictable_.insert(sample, uses_.next_use(sample));
  }
  start_announced_reads();
}

void ActivationCache::clear_prefetch() {
  collect_finished();
  rethrow_failure();
  for (std::size_t i = 0; i < uses_.size(); ++i) {
    const std::uint64_t sample = uses_.sample_at(i);
    if (evictable_.contains(sample)) evictable_.insert(sample, AnnouncedUses::kUnknown);
  }
  uses_.clear();
  for (StagingSlot& slot : reads_) {
    if (slot.state == SlotState::submitted) wait_for(slot);
    if (slot.state == SlotState::ready) free_read_slot(slot.task.sample);
  }
}

void ActivationCache::pin(std::span<const std::uint64_t> sample_ids) {
  pinned_ += static_cast<int>(sample_ids.size());
  DELTAPIPE_ASSERT(pinned_ <= shape_.max_samples_in_flight, "too many samples are acquired");
  for (const std::uint64_t sample : sample_ids) {
    DELTAPIPE_ASSERT(sample < shape_.samples, fmt::format("sample {}", sample));
    DELTAPIPE_ASSERT(!places_[sample].pinned, fmt::format("sample {} is acquired twice", sample));
    places_[sample].pinned = true;
    uses_.consume(sample);
    evictable_.erase(sample);
  }
}

void ActivationCache::count_visit_kind(std::uint64_t sample) {
  const Place& place = places_[sample];
  if (visits_[sample] == 0) {
    ++statistics_.first_visits;
  } else if (place.pool != kNowhere) {
    ++statistics_.hits;
  } else {
    ++statistics_.misses;
    const bool ready = place.read != kNowhere &&
                       reads_[static_cast<std::size_t>(place.read)].state == SlotState::ready;
    if (!ready && place.write == kNowhere) ++statistics_.late_misses;
  }
}

void ActivationCache::acquire(std::span<const std::uint64_t> sample_ids, MemoryRecords& records,
                              std::vector<std::uint32_t>& visits) {
  const Clock::time_point begin = Clock::now();
  collect_finished();
  rethrow_failure();
  settle_released();
  pin(sample_ids);
  for (const std::uint64_t sample : sample_ids) {
    count_visit_kind(sample);
    const Place& place = places_[sample];
    if (place.pool == kNowhere && place.read == kNowhere && visits_[sample] > 0) start_read(sample);
  }
  records.pool = pool_;
  records.offset_B.clear();
  visits.clear();
  for (const std::uint64_t sample : sample_ids) {
    if (places_[sample].pool == kNowhere) bring_in(sample);
    records.offset_B.push_back(pool_offset_[static_cast<std::size_t>(places_[sample].pool)]);
    visits.push_back(visits_[sample]);
  }
  wait_for_copies();
  for (const std::uint64_t sample : sample_ids)
    if (places_[sample].read != kNowhere) free_read_slot(sample);
  submit_filled_writes();
  start_announced_reads();
  statistics_.acquire_seconds += seconds_since(begin);
}

void ActivationCache::release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids) {
  for (const std::uint64_t sample : sample_ids) {
    DELTAPIPE_ASSERT(sample < shape_.samples && places_[sample].pinned,
                     fmt::format("sample {} is released but not acquired", sample));
    Place& place = places_[sample];
    place.pinned = false;
    --pinned_;
    place.dirty = true;
    place.write = kNowhere;
    ++visits_[sample];
    evictable_.insert(sample, uses_.next_use(sample));
  }
  if (!sample_ids.empty()) released_on_.push_back(exec);
  collect_finished();
  rethrow_failure();
}

void ActivationCache::flush() {
  if (!file_) return;
  collect_finished();
  rethrow_failure();
  DELTAPIPE_ASSERT(pinned_ == 0, "flush() while samples are acquired");
  settle_released();
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample) {
    if (!places_[sample].dirty) continue;
    fill_write_slot(sample, false);
    if (!free_writes_.empty()) continue;
    wait_for_copies();
    submit_filled_writes();
  }
  wait_for_copies();
  submit_filled_writes();
  const double stalled = statistics_.stall_seconds;
  wait_for_all_tasks();
  statistics_.stall_seconds = stalled;
  file_->sync();
}

void ActivationCache::forget(std::span<const std::uint64_t> sample_ids) {
  collect_finished();
  rethrow_failure();
  settle_released();
  wait_for_all_tasks();
  for (const std::uint64_t sample : sample_ids) {
    DELTAPIPE_ASSERT(sample < shape_.samples && !places_[sample].pinned,
                     fmt::format("sample {} is forgotten while acquired", sample));
    if (places_[sample].read != kNowhere) free_read_slot(sample);
    if (places_[sample].pool != kNowhere) drop_from_pool(sample);
    visits_[sample] = 0;
    if (file_) file_->forget_record(sample);
  }
}

void ActivationCache::remove_file_at_end() {
  if (file_) file_->remove_at_end();
}

void ActivationCache::let_replace_file() {
  if (file_) file_->let_replace();
}

void ActivationCache::let_go(std::uint64_t generation) {
  if (file_) file_->let_go(generation);
}

void ActivationCache::sync() {
  if (file_) file_->sync();
}

std::uint64_t ActivationCache::file_id() const {
  return file_ ? file_->id() : 0;
}

double ActivationCache::seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace deltapipe
