// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/activation_cache.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <limits>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/parallel/execution.hpp"
#include "core/cache/io_thread.hpp"
#include "core/cache/next_use.hpp"
#include "core/cache/spill_file.hpp"

namespace deltapipe {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Returns the distance between consecutive records in the pool and in staging memory.
std::size_t record_stride(std::size_t record_bytes) {
  return (record_bytes + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
}

std::uint64_t pool_slots(const CacheShape& shape, std::uint64_t budget_bytes) {
  if (budget_bytes == 0) return shape.samples;
  return std::min<std::uint64_t>(shape.samples, budget_bytes / record_stride(shape.record_bytes));
}

/// Returns true if some records must be in a file.
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

/// Task that reads or writes one record.
class RecordTask final : public IoTask {
 public:
  void execute() noexcept override {
    try {
      if (is_write)
        file->write_record(sample, bytes, visits);
      else
        is_damaged = !file->try_read_record(sample, bytes);
    } catch (...) {
      error = std::current_exception();
    }
  }

  SpillFile* file = nullptr;
  std::uint8_t* bytes = nullptr;
  bool is_write = false;
  std::uint64_t sample = 0;
  std::uint32_t visits = 0;
  bool is_damaged = false;
  std::exception_ptr error;
};

enum class SlotState {
  free,
  filling,    ///< a copy from the pool is under way
  submitted,  ///< belongs to the I/O thread until its task is done
  ready       ///< holds a record that was read
};

/// Staging memory for one record. A slot serves either reads or writes, never both.
struct StagingSlot {
  RecordTask task;
  SlotState state = SlotState::free;
};

/// If kernels run on host memory, staging slots are in the pool's allocation. A record then moves
/// between them by an exchange of addresses.
constexpr bool kSharedMemory = std::is_same_v<MemSpace, StagingSpace>;

constexpr std::int32_t kNowhere = -1;

/// Location of a sample's record. If there are several, their content is the same.
struct Place {
  std::int32_t pool = kNowhere;   ///< slot in the pool
  std::int32_t read = kNowhere;   ///< read slot: being read or ready
  std::int32_t write = kNowhere;  ///< write slot with the newest content, not yet written
  bool dirty = false;             ///< the pool's content is newer than the file's
  bool pinned = false;
};

}  // namespace

class ActivationCacheState {
 public:
  ActivationCacheState(const ExecSpace& copies, CacheIoThread* io, const CacheShape& shape,
                       const CacheIdentity& identity, std::uint64_t budget_bytes,
                       const std::string& spill_path, SpillStart start);
  ~ActivationCacheState();

  void prefetch(std::span<const std::uint64_t> sample_ids);
  void clear_prefetch();
  void acquire(std::span<const std::uint64_t> sample_ids, MemoryRecords& records,
               std::vector<std::uint32_t>& visits);
  void release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids, bool changed);
  void flush();
  void forget(std::span<const std::uint64_t> sample_ids);
  bool has_damaged() const { return !damaged_.empty(); }
  std::vector<std::uint64_t> take_damaged();
  void find_damaged_records();
  std::vector<std::uint64_t> hashes_in_file(std::size_t bytes);
  std::uint64_t record_hash(std::uint64_t sample);
  void write_state(StateWriter& writer);
  void read_state(StateReader& reader);
  void remove_file_at_end();
  SpillFile* file() const { return file_.get(); }
  void refer_to_file(std::uint64_t generation) { generation_ = generation; }

  CacheStatistics statistics;
  std::vector<std::uint32_t> visits;  ///< indexed by sample

 private:
  void allocate_memory(std::uint64_t slots);
  std::uint8_t* pool_bytes(std::int32_t slot);
  void copy_to_pool(std::int32_t slot, const std::uint8_t* bytes);
  void copy_from_pool(std::uint8_t* bytes, std::int32_t slot);
  void exchange(std::int32_t pool_slot, RecordTask& task);

  void settle_released();
  void wait_for_copies();
  void collect_finished();
  void finish(StagingSlot& slot);
  void rethrow_failure();
  void note_damaged(std::uint64_t sample);
  void wait_for(StagingSlot& slot);
  void wait_for_all_tasks();
  void come_to_rest(const char* what);
  bool is_in_file_only(std::uint64_t sample, const RecordPlaces* places) const;
  StateItem records_item(const RecordPlaces* places) const;
  RecordPlaces write_places(StateWriter& writer);
  RecordPlaces read_places(StateReader& reader);
  void fetch(std::uint64_t sample, std::uint8_t* bytes);
  void put(std::uint64_t sample, const std::uint8_t* bytes);

  void pin(std::span<const std::uint64_t> sample_ids);
  void start_read(std::uint64_t sample);
  void start_announced_reads();
  void free_read_slot(std::uint64_t sample);
  void bring_in(std::uint64_t sample);
  std::int32_t take_pool_slot();
  void give_up(std::uint64_t sample);
  std::int32_t take_write_slot();
  void fill_write_slot(std::uint64_t sample, bool by_exchange);
  void submit_filled_writes();
  void drop_from_pool(std::uint64_t sample);
  void count_visit_kind(std::uint64_t sample);

  CacheShape shape_;
  std::size_t stride_;
  ExecSpace copies_;
  bool copying_ = false;  ///< queued copies may not be complete
  CacheIoThread* io_;
  std::unique_ptr<SpillFile> file_;

  DeviceBytes pool_;
  HostBytes staging_;
  std::vector<std::uint64_t> pool_offset_;  ///< offset of each slot's memory in pool_
  std::vector<StagingSlot> reads_;
  std::vector<StagingSlot> writes_;
  std::vector<std::int32_t> free_pool_;
  std::vector<std::int32_t> free_reads_;
  std::deque<std::int32_t> submitted_writes_;  ///< oldest first
  std::vector<std::int32_t> free_writes_;
  std::vector<std::int32_t> filled_writes_;

  std::vector<Place> places_;
  AnnouncedUses uses_;
  EvictionOrder evictable_;
  int pinned_ = 0;
  /// Instances that may still run kernels on records that are no longer pinned.
  std::vector<ExecSpace> released_on_;
  std::exception_ptr failure_;
  std::set<std::uint64_t> damaged_;  ///< samples that were found and not yet taken
  /// Generation of the next state that refers to the file.
  std::optional<std::uint64_t> generation_;
};

ActivationCacheState::ActivationCacheState(const ExecSpace& copies, CacheIoThread* io,
                                           const CacheShape& shape, const CacheIdentity& identity,
                                           std::uint64_t budget_bytes,
                                           const std::string& spill_path, SpillStart start)
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
    visits = file_->read_visits();
  } else {
    visits.assign(shape.samples, 0);
  }
  places_.resize(shape.samples);
  allocate_memory(pool_slots(shape, budget_bytes));
}

ActivationCacheState::~ActivationCacheState() {
  for (StagingSlot& slot : reads_)
    if (slot.state == SlotState::submitted) io_->wait_read(slot.task);
  for (StagingSlot& slot : writes_)
    if (slot.state == SlotState::submitted) io_->wait_write(slot.task);
}

void ActivationCacheState::allocate_memory(std::uint64_t slots) {
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

std::uint8_t* ActivationCacheState::pool_bytes(std::int32_t slot) {
  return pool_.data() + pool_offset_[static_cast<std::size_t>(slot)];
}

/// With shared memory: swaps the memory of a pool slot and a staging slot, which moves a record
/// without a copy. Their former contents are swapped too.
void ActivationCacheState::exchange(std::int32_t pool_slot, RecordTask& task) {
  std::uint64_t& offset = pool_offset_[static_cast<std::size_t>(pool_slot)];
  std::uint8_t* bytes = pool_.data() + offset;
  offset = static_cast<std::uint64_t>(task.bytes - pool_.data());
  task.bytes = bytes;
}

namespace {

template <class Space>
using RawBytes =
    Kokkos::View<std::uint8_t*, Layout, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class Space>
using ConstRawBytes =
    Kokkos::View<const std::uint8_t*, Layout, Space, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

}  // namespace

void ActivationCacheState::copy_to_pool(std::int32_t slot, const std::uint8_t* bytes) {
  const RawBytes<MemSpace> to(pool_bytes(slot), shape_.record_bytes);
  const ConstRawBytes<StagingSpace> from(bytes, shape_.record_bytes);
  Kokkos::deep_copy(copies_, to, from);
  copying_ = true;
}

void ActivationCacheState::copy_from_pool(std::uint8_t* bytes, std::int32_t slot) {
  const RawBytes<StagingSpace> to(bytes, shape_.record_bytes);
  const ConstRawBytes<MemSpace> from(pool_bytes(slot), shape_.record_bytes);
  Kokkos::deep_copy(copies_, to, from);
  copying_ = true;
}

/// Ensures that no kernel uses an unpinned record when it is copied or moved.
void ActivationCacheState::settle_released() {
  for (const ExecSpace& exec : released_on_)
    if (kSharedMemory)
      exec.fence();  // the I/O thread reads the records directly
    else
      order_after(copies_, exec);
  released_on_.clear();
}

void ActivationCacheState::wait_for_copies() {
  if (std::exchange(copying_, false)) copies_.fence();
}

void ActivationCacheState::note_damaged(std::uint64_t sample) {
  if (damaged_.insert(sample).second) ++statistics.damaged;
}

/// Records the result of a finished task.
void ActivationCacheState::finish(StagingSlot& slot) {
  RecordTask& task = slot.task;
  if (task.error && !failure_) failure_ = task.error;
  if (!task.error)
    (task.is_write ? statistics.bytes_written : statistics.bytes_read) += shape_.record_bytes;
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

void ActivationCacheState::collect_finished() {
  for (StagingSlot& slot : reads_)
    if (slot.state == SlotState::submitted && slot.task.is_done()) finish(slot);
  while (!submitted_writes_.empty()) {
    StagingSlot& slot = writes_[static_cast<std::size_t>(submitted_writes_.front())];
    if (!slot.task.is_done()) break;
    submitted_writes_.pop_front();
    finish(slot);
  }
}

void ActivationCacheState::rethrow_failure() {
  if (failure_) std::rethrow_exception(failure_);
}

/// Waits for a submitted slot; among writes only for the oldest.
void ActivationCacheState::wait_for(StagingSlot& slot) {
  if (!slot.task.is_done()) {
    const Clock::time_point begin = Clock::now();
    if (slot.task.is_write)
      io_->wait_write(slot.task);
    else
      io_->wait_read(slot.task);
    statistics.stall_seconds += seconds_since(begin);
  }
  collect_finished();
  rethrow_failure();
}

void ActivationCacheState::wait_for_all_tasks() {
  for (StagingSlot& slot : reads_)
    if (slot.state == SlotState::submitted) wait_for(slot);
  while (!submitted_writes_.empty())
    wait_for(writes_[static_cast<std::size_t>(submitted_writes_.front())]);
}

void ActivationCacheState::prefetch(std::span<const std::uint64_t> sample_ids) {
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

void ActivationCacheState::clear_prefetch() {
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

void ActivationCacheState::start_announced_reads() {
  if (!file_) return;
  const auto reserved = static_cast<std::size_t>(shape_.max_samples_in_flight);
  // Most of the next records may be in the pool, but later uses than this need no read yet.
  const std::size_t horizon =
      std::min(uses_.size(), 8 * static_cast<std::size_t>(shape_.prefetch_samples));
  for (std::size_t i = 0; i < horizon && free_reads_.size() > reserved; ++i) {
    const std::uint64_t sample = uses_.sample_at(i);
    const Place& place = places_[sample];
    const bool needs_read = !uses_.is_consumed(i) && visits[sample] > 0 && place.pool == kNowhere &&
                            place.read == kNowhere;
    if (needs_read) start_read(sample);
  }
}

/// Fills a read slot with the record of a sample that has one outside of the pool.
void ActivationCacheState::start_read(std::uint64_t sample) {
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

void ActivationCacheState::free_read_slot(std::uint64_t sample) {
  Place& place = places_[sample];
  reads_[static_cast<std::size_t>(place.read)].state = SlotState::free;
  free_reads_.push_back(place.read);
  place.read = kNowhere;
}

void ActivationCacheState::pin(std::span<const std::uint64_t> sample_ids) {
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

void ActivationCacheState::count_visit_kind(std::uint64_t sample) {
  const Place& place = places_[sample];
  if (visits[sample] == 0) {
    ++statistics.first_visits;
  } else if (place.pool != kNowhere) {
    ++statistics.hits;
  } else {
    ++statistics.misses;
    const bool ready = place.read != kNowhere &&
                       reads_[static_cast<std::size_t>(place.read)].state == SlotState::ready;
    if (!ready && place.write == kNowhere) ++statistics.late_misses;
  }
}

void ActivationCacheState::acquire(std::span<const std::uint64_t> sample_ids,
                                   MemoryRecords& records, std::vector<std::uint32_t>& visits_out) {
  const Clock::time_point begin = Clock::now();
  collect_finished();
  rethrow_failure();
  settle_released();
  pin(sample_ids);
  for (const std::uint64_t sample : sample_ids) {
    count_visit_kind(sample);
    const Place& place = places_[sample];
    if (place.pool == kNowhere && place.read == kNowhere && visits[sample] > 0) start_read(sample);
  }
  records.pool = pool_;
  records.offset_B.clear();
  visits_out.clear();
  for (const std::uint64_t sample : sample_ids) {
    if (places_[sample].pool == kNowhere) bring_in(sample);
    records.offset_B.push_back(pool_offset_[static_cast<std::size_t>(places_[sample].pool)]);
    visits_out.push_back(visits[sample]);
  }
  wait_for_copies();
  for (const std::uint64_t sample : sample_ids)
    if (places_[sample].read != kNowhere) free_read_slot(sample);
  submit_filled_writes();
  start_announced_reads();
  statistics.acquire_seconds += seconds_since(begin);
}

/// Gives a pinned sample a slot in the pool, with its record unless this is a first visit.
void ActivationCacheState::bring_in(std::uint64_t sample) {
  Place& place = places_[sample];
  place.pool = take_pool_slot();
  place.dirty = false;
  if (visits[sample] == 0) return;
  StagingSlot& slot = reads_[static_cast<std::size_t>(place.read)];
  if (slot.state == SlotState::submitted) wait_for(slot);
  if (kSharedMemory)
    exchange(place.pool, slot.task);
  else
    copy_to_pool(place.pool, slot.task.bytes);
}

std::int32_t ActivationCacheState::take_pool_slot() {
  if (free_pool_.empty()) {
    DELTAPIPE_ASSERT(!evictable_.empty(), "all records in the pool are pinned");
    give_up(evictable_.victim());
  }
  const std::int32_t slot = free_pool_.back();
  free_pool_.pop_back();
  return slot;
}

void ActivationCacheState::give_up(std::uint64_t sample) {
  if (places_[sample].dirty) fill_write_slot(sample, kSharedMemory);
  drop_from_pool(sample);
}

void ActivationCacheState::drop_from_pool(std::uint64_t sample) {
  Place& place = places_[sample];
  evictable_.erase(sample);
  free_pool_.push_back(place.pool);
  place.pool = kNowhere;
  place.dirty = false;
}

std::int32_t ActivationCacheState::take_write_slot() {
  if (free_writes_.empty()) {
    DELTAPIPE_ASSERT(!submitted_writes_.empty(), "no write slot is free");
    wait_for(writes_[static_cast<std::size_t>(submitted_writes_.front())]);
  }
  const std::int32_t slot = free_writes_.back();
  free_writes_.pop_back();
  return slot;
}

/// Prepares the write of a record, which starts when submit_filled_writes() is called after a
/// fence. After an exchange the record is no longer in the pool.
void ActivationCacheState::fill_write_slot(std::uint64_t sample, bool by_exchange) {
  Place& place = places_[sample];
  place.write = take_write_slot();
  place.dirty = false;
  StagingSlot& slot = writes_[static_cast<std::size_t>(place.write)];
  slot.state = SlotState::filling;
  slot.task.sample = sample;
  slot.task.visits = visits[sample];
  if (by_exchange)
    exchange(place.pool, slot.task);
  else
    copy_from_pool(slot.task.bytes, place.pool);
  filled_writes_.push_back(place.write);
}

void ActivationCacheState::submit_filled_writes() {
  for (const std::int32_t index : filled_writes_) {
    StagingSlot& slot = writes_[static_cast<std::size_t>(index)];
    slot.state = SlotState::submitted;
    submitted_writes_.push_back(index);
    io_->submit_write(slot.task);
  }
  filled_writes_.clear();
}

void ActivationCacheState::release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids,
                                   bool changed) {
  for (const std::uint64_t sample : sample_ids) {
    DELTAPIPE_ASSERT(sample < shape_.samples && places_[sample].pinned,
                     fmt::format("sample {} is released but not acquired", sample));
    Place& place = places_[sample];
    place.pinned = false;
    --pinned_;
    if (changed) {
      place.dirty = true;
      place.write = kNowhere;
      ++visits[sample];
    }
    evictable_.insert(sample, uses_.next_use(sample));
    if (visits[sample] == 0) drop_from_pool(sample);
  }
  if (!sample_ids.empty()) released_on_.push_back(exec);
  collect_finished();
  rethrow_failure();
}

void ActivationCacheState::flush() {
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
  const double stalled = statistics.stall_seconds;
  wait_for_all_tasks();
  statistics.stall_seconds = stalled;
  file_->sync();
}

void ActivationCacheState::forget(std::span<const std::uint64_t> sample_ids) {
  collect_finished();
  rethrow_failure();
  settle_released();
  wait_for_all_tasks();
  for (const std::uint64_t sample : sample_ids) {
    DELTAPIPE_ASSERT(sample < shape_.samples && !places_[sample].pinned,
                     fmt::format("sample {} is forgotten while acquired", sample));
    if (places_[sample].read != kNowhere) free_read_slot(sample);
    if (places_[sample].pool != kNowhere) drop_from_pool(sample);
    visits[sample] = 0;
    if (file_) file_->forget_record(sample);
  }
}

void ActivationCacheState::remove_file_at_end() {
  if (file_) file_->remove_at_end();
}

std::vector<std::uint64_t> ActivationCacheState::take_damaged() {
  std::vector<std::uint64_t> damaged(damaged_.begin(), damaged_.end());
  damaged_.clear();
  return damaged;
}

void ActivationCacheState::find_damaged_records() {
  if (!file_) return;
  come_to_rest("find_damaged_records()");
  std::vector<std::uint8_t> bytes(shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample) {
    const bool in_file_only = visits[sample] > 0 && places_[sample].pool == kNowhere;
    if (in_file_only && !file_->try_read_record(sample, bytes.data())) note_damaged(sample);
  }
}

std::vector<std::uint64_t> ActivationCacheState::hashes_in_file(std::size_t bytes) {
  DELTAPIPE_ASSERT(bytes <= shape_.record_bytes, "more than a record");
  std::vector<std::uint64_t> hashes(shape_.samples, 0);
  if (!file_) return hashes;
  collect_finished();
  rethrow_failure();
  wait_for_all_tasks();
  std::vector<std::uint8_t> record(shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (visits[sample] > 0 && file_->try_read_record(sample, record.data()))
      hashes[sample] = std::max<std::uint64_t>(1, record_checksum(record.data(), bytes));
  return hashes;
}

std::uint64_t ActivationCacheState::record_hash(std::uint64_t sample) {
  collect_finished();
  rethrow_failure();
  const Place& place = places_.at(sample);
  DELTAPIPE_ASSERT(!place.pinned, "the hash of an acquired record");
  if (visits[sample] == 0) return 0;
  HostBytes record(uninitialized("deltapipe::ActivationCache::hashed_record"), shape_.record_bytes);
  if (place.pool != kNowhere)
    settle_released();
  else
    wait_for_all_tasks();
  fetch(sample, record.data());
  return record_checksum(record.data(), shape_.record_bytes);
}

/// Reads a record that no kernel and no task is changing.
void ActivationCacheState::fetch(std::uint64_t sample, std::uint8_t* bytes) {
  const Place& place = places_[sample];
  if (place.pool == kNowhere) return file_->read_record(sample, bytes);
  copy_from_pool(bytes, place.pool);
  wait_for_copies();
}

/// Ensures that no record is pinned and no task is under way.
void ActivationCacheState::come_to_rest(const char* what) {
  collect_finished();
  rethrow_failure();
  DELTAPIPE_ASSERT(pinned_ == 0, std::string(what) + " while samples are acquired");
  settle_released();
  const double stalled = statistics.stall_seconds;
  wait_for_all_tasks();
  statistics.stall_seconds = stalled;
}

/// Returns true if the state refers to a visited sample's place in the file.
bool ActivationCacheState::is_in_file_only(std::uint64_t sample, const RecordPlaces* places) const {
  return places != nullptr && places->slots[sample] != RecordPlaces::kNone;
}

/// Returns the item for all bytes of records, in the order of samples.
StateItem ActivationCacheState::records_item(const RecordPlaces* places) const {
  std::uint64_t count = 0;
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (visits[sample] > 0 && !is_in_file_only(sample, places)) ++count;
  return {"records", StateType::u8, {count, shape_.record_bytes}};
}

/// Records that are newer in memory, or only there, have no place in the file.
RecordPlaces ActivationCacheState::write_places(StateWriter& writer) {
  RecordPlaces places = file_->hold(*generation_);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (visits[sample] == 0 || places_[sample].dirty) places.slots[sample] = RecordPlaces::kNone;
  write_scalar(writer, "generation", *generation_);
  write_text(writer, "spill_file", file_->path());
  write_scalar(writer, "spill_file_id", file_->id());
  write_array<std::uint32_t>(writer, "slots", places.slots);
  write_array<std::uint64_t>(writer, "checksums", places.checksums);
  return places;
}

void ActivationCacheState::write_state(StateWriter& writer) {
  come_to_rest("write_state()");
  write_array<std::uint32_t>(writer, "visits", visits);
  std::optional<RecordPlaces> places;
  if (file_ && generation_) places = write_places(writer);
  generation_.reset();
  const RecordPlaces* const known = places ? &*places : nullptr;
  writer.begin_item(records_item(known));
  const HostBytes record(uninitialized("deltapipe::ActivationCache::written_record"),
                         shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample) {
    if (visits[sample] == 0 || is_in_file_only(sample, known)) continue;
    const std::int32_t slot = places_[sample].pool;
    if (kSharedMemory && slot != kNowhere) {
      writer.append(pool_bytes(slot), shape_.record_bytes);
      continue;
    }
    fetch(sample, record.data());
    writer.append(record.data(), shape_.record_bytes);
  }
}

/// Makes the file's records those of the state.
RecordPlaces ActivationCacheState::read_places(StateReader& reader) {
  if (!file_)
    reader.refuse("slots", "belongs to records in a spill file, but this cache does not have one",
                  "", "set cache.budget to its former value");
  RecordPlaces places{std::vector<std::uint32_t>(shape_.samples),
                      std::vector<std::uint64_t>(shape_.samples)};
  const auto generation = read_scalar<std::uint64_t>(reader, "generation");
  (void)read_text(reader, "spill_file");
  if (const auto id = read_scalar<std::uint64_t>(reader, "spill_file_id"); id != file_->id())
    reader.refuse("spill_file_id", "is of another spill file than " + file_->path(),
                  std::to_string(id), "restore the run's cache files");
  read_array<std::uint32_t>(reader, "slots", places.slots);
  read_array<std::uint64_t>(reader, "checksums", places.checksums);
  std::vector<std::uint32_t> in_file = visits;
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (!is_in_file_only(sample, &places)) in_file[sample] = 0;
  file_->go_back(places, in_file, generation);
  return places;
}

void ActivationCacheState::read_state(StateReader& reader) {
  come_to_rest("read_state()");
  clear_prefetch();
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample)
    if (places_[sample].pool != kNowhere) drop_from_pool(sample);
  const std::vector<std::uint32_t> former = visits;
  read_array<std::uint32_t>(reader, "visits", visits);
  const std::vector<std::string> items = reader.items_left();
  std::optional<RecordPlaces> places;
  if (std::find(items.begin(), items.end(), "slots") != items.end()) places = read_places(reader);
  const RecordPlaces* const known = places ? &*places : nullptr;
  reader.begin_item(records_item(known));
  const HostBytes record(uninitialized("deltapipe::ActivationCache::read_record"),
                         shape_.record_bytes);
  for (std::uint64_t sample = 0; sample < shape_.samples; ++sample) {
    if (is_in_file_only(sample, known)) continue;
    if (visits[sample] > 0) {
      reader.take(record.data(), shape_.record_bytes);
      put(sample, record.data());
    } else if (former[sample] > 0 && file_) {
      file_->forget_record(sample);
    }
  }
}

/// Stores a record where there is room: in the pool, otherwise in the file.
void ActivationCacheState::put(std::uint64_t sample, const std::uint8_t* bytes) {
  if (free_pool_.empty()) return file_->write_record(sample, bytes, visits[sample]);
  Place& place = places_[sample];
  place.pool = take_pool_slot();
  place.dirty = true;
  copy_to_pool(place.pool, bytes);
  wait_for_copies();
  evictable_.insert(sample, uses_.next_use(sample));
}

ActivationCache::ActivationCache(const ExecSpace& copies, CacheIoThread* io,
                                 const CacheShape& shape, const CacheIdentity& identity,
                                 std::uint64_t budget_bytes, const std::string& spill_path,
                                 SpillStart start)
    : state_(std::make_unique<ActivationCacheState>(copies, io, shape, identity, budget_bytes,
                                                    spill_path, start)) {}

ActivationCache::~ActivationCache() = default;

void ActivationCache::prefetch(std::span<const std::uint64_t> sample_ids) {
  state_->prefetch(sample_ids);
}

void ActivationCache::clear_prefetch() {
  state_->clear_prefetch();
}

void ActivationCache::acquire(std::span<const std::uint64_t> sample_ids, MemoryRecords& records,
                              std::vector<std::uint32_t>& visits) {
  state_->acquire(sample_ids, records, visits);
}

void ActivationCache::release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids) {
  state_->release(exec, sample_ids, true);
}

void ActivationCache::release_unchanged(const ExecSpace& exec,
                                        std::span<const std::uint64_t> sample_ids) {
  state_->release(exec, sample_ids, false);
}

void ActivationCache::flush() {
  state_->flush();
}

void ActivationCache::remove_file_at_end() {
  state_->remove_file_at_end();
}

void ActivationCache::let_replace_file() {
  if (state_->file() != nullptr) state_->file()->let_replace();
}

void ActivationCache::forget(std::span<const std::uint64_t> sample_ids) {
  state_->forget(sample_ids);
}

bool ActivationCache::has_damaged() const {
  return state_->has_damaged();
}

std::vector<std::uint64_t> ActivationCache::take_damaged() {
  return state_->take_damaged();
}

void ActivationCache::find_damaged_records() {
  state_->find_damaged_records();
}

std::vector<std::uint64_t> ActivationCache::hashes_in_file(std::size_t bytes) {
  return state_->hashes_in_file(bytes);
}

void ActivationCache::write_state(StateWriter& writer) {
  state_->write_state(writer);
}

void ActivationCache::read_state(StateReader& reader) {
  state_->read_state(reader);
}

void ActivationCache::refer_to_file(std::uint64_t generation) {
  state_->refer_to_file(generation);
}

void ActivationCache::let_go(std::uint64_t generation) {
  if (state_->file() != nullptr) state_->file()->let_go(generation);
}

void ActivationCache::sync() {
  if (state_->file() != nullptr) state_->file()->sync();
}

bool ActivationCache::has_file() const {
  return state_->file() != nullptr;
}

std::uint64_t ActivationCache::file_id() const {
  return has_file() ? state_->file()->id() : 0;
}

CacheStatistics ActivationCache::take_statistics() {
  return std::exchange(state_->statistics, {});
}

std::span<const std::uint32_t> ActivationCache::visits() const {
  return state_->visits;
}

std::uint64_t ActivationCache::record_hash(std::uint64_t sample_id) {
  return state_->record_hash(sample_id);
}

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
      sizeof(Place) + 3 * sizeof(std::uint64_t) + 4 + (has_file ? 16 : 0);
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
