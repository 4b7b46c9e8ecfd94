// SPDX-License-Identifier: BSD-3-Clause
// Staging memory: reads ahead of use and writes behind it, as tasks of the I/O thread.
#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/cache/spill_file.hpp"

namespace deltapipe {

void ActivationCache::RecordTask::execute() noexcept {
  try {
    if (is_write)
      file->write_record(sample, bytes, visits);
    else
      is_damaged = !file->try_read_record(sample, bytes);
  } catch (...) {
    error = std::current_exception();
  }
}

void ActivationCache::start_announced_reads() {
  if (!file_) return;
  const auto reserved = static_cast<std::size_t>(shape_.max_samples_in_flight);
  // Most of the next records may be in the pool, but later uses than this need no read yet.
  const std::size_t horizon =
      std::min(uses_.size(), 8 * static_cast<std::size_t>(shape_.prefetch_samples));
  for (std::size_t i = 0; i < horizon && free_reads_.size() > reserved; ++i) {
    const std::uint64_t sample = uses_.sample_at(i);
    const Place& place = places_[sample];
    const bool needs_read = !uses_.is_consumed(i) && visits_[sample] > 0 &&
                            place.pool == kNowhere && place.read == kNowhere;
    if (needs_read) start_read(sample);
  }
}

void ActivationCache::start_read(std::uint64_t sample) {
  DELTAPIPE_ASSERT(!free_reads_.empty(), "no read slot is free");
  Place& place = places_[sample];
  place.read = free_reads_.back();
  free_reads_.pop_back();
  StagingSlot& slot = reads_[static_cast<std::size_t>(place.read)];
  slot.task.sample = sample;
  if (place.write != kNowhere) {
    // The record is not yet in the file but in the write slot, which the I/O thread only reads.
    const RecordTask& write = writes_[static_cast<std::size_t>(place.write)].task;
    std::copy_n(write.bytes, shape_.record_bytes, slot.task.bytes);
    slot.state = SlotState::ready;
    return;
  }
  slot.state = SlotState::submitted;
  io_->submit_read(slot.task);
}

void ActivationCache::free_read_slot(std::uint64_t sample) {
  Place& place = places_[sample];
  reads_[static_cast<std::size_t>(place.read)].state = SlotState::free;
  free_reads_.push_back(place.read);
  place.read = kNowhere;
}

std::int32_t ActivationCache::take_write_slot() {
  if (free_writes_.empty()) {
    DELTAPIPE_ASSERT(!submitted_writes_.empty(), "no write slot is free");
    wait_for(writes_[static_cast<std::size_t>(submitted_writes_.front())]);
  }
  const std::int32_t slot = free_writes_.back();
  free_writes_.pop_back();
  return slot;
}

void ActivationCache::fill_write_slot(std::uint64_t sample, bool by_exchange) {
  Place& place = places_[sample];
  place.write = take_write_slot();
  place.dirty = false;
  StagingSlot& slot = writes_[static_cast<std::size_t>(place.write)];
  slot.state = SlotState::filling;
  slot.task.sample = sample;
  slot.task.visits = visits_[sample];
  if (by_exchange)
    exchange(place.pool, slot.task);
  else
    copy_from_pool(slot.task.bytes, place.pool);
  filled_writes_.push_back(place.write);
}

void ActivationCache::submit_filled_writes() {
  for (const std::int32_t index : filled_writes_) {
    StagingSlot& slot = writes_[static_cast<std::size_t>(index)];
    slot.state = SlotState::submitted;
    submitted_writes_.push_back(index);
    io_->submit_write(slot.task);
  }
  filled_writes_.clear();
}

void ActivationCache::collect_finished() {
  for (StagingSlot& slot : reads_)
    if (slot.state == SlotState::submitted && slot.task.is_done()) finish(slot);
  while (!submitted_writes_.empty()) {
    StagingSlot& slot = writes_[static_cast<std::size_t>(submitted_writes_.front())];
    if (!slot.task.is_done()) break;
    submitted_writes_.pop_front();
    finish(slot);
  }
}

void ActivationCache::finish(StagingSlot& slot) {
  RecordTask& task = slot.task;
  if (task.error && !failure_) failure_ = task.error;
  if (!task.error)
    (task.is_write ? statistics_.bytes_written : statistics_.bytes_read) += shape_.record_bytes;
  if (!task.is_write) {
    slot.state = SlotState::ready;
    if (!std::exchange(task.is_damaged, false)) return;
    std::fill_n(task.bytes, shape_.record_bytes, std::uint8_t{0});
    note_damaged(task.sample);
    return;
  }
  const auto index = static_cast<std::int32_t>(&slot - writes_.data());
  if (places_[task.sample].write == index) places_[task.sample].write = kNowhere;
  slot.state = SlotState::free;
  free_writes_.push_back(index);
}

void ActivationCache::rethrow_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

void ActivationCache::wait_for(StagingSlot& slot) {
  if (!slot.task.is_done()) {
    const Clock::time_point begin = Clock::now();
    if (slot.task.is_write)
      io_->wait_write(slot.task);
    else
      io_->wait_read(slot.task);
    statistics_.stall_seconds += seconds_since(begin);
  }
  collect_finished();
  rethrow_failure();
}

void ActivationCache::wait_for_all_tasks() {
  for (StagingSlot& slot : reads_)
    if (slot.state == SlotState::submitted) wait_for(slot);
  while (!submitted_writes_.empty())
    wait_for(writes_[static_cast<std::size_t>(submitted_writes_.front())]);
}

void ActivationCache::come_to_rest(const char* what) {
  collect_finished();
  rethrow_failure();
  DELTAPIPE_ASSERT(pinned_ == 0, std::string(what) + " while samples are acquired");
  settle_released();
  const double stalled = statistics_.stall_seconds;
  wait_for_all_tasks();
  statistics_.stall_seconds = stalled;
}

}  // namespace deltapipe
