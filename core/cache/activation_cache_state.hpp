// SPDX-License-Identifier: BSD-3-Clause
// Implementation of ActivationCache. The sources activation_cache_*.cpp define its parts: use of
// records, pool, staging memory and checkpoints.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/parallel/execution.hpp"
#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/cache/io_thread.hpp"
#include "core/cache/next_use.hpp"
#include "core/cache/spill_file.hpp"

namespace deltapipe {

/// Public functions are those of ActivationCache, which documents them.
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
  void release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids);
  void flush();
  void forget(std::span<const std::uint64_t> sample_ids);
  bool has_damaged() const { return !damaged_.empty(); }
  std::vector<std::uint64_t> take_damaged();
  void find_damaged_records();
  std::vector<std::uint64_t> hashes_in_file(std::size_t bytes);
  void write_state(StateWriter& writer);
  void read_state(StateReader& reader);
  void remove_file_at_end();
  /// Returns null if all records are in the pool.
  SpillFile* file() const { return file_.get(); }
  void refer_to_file(std::uint64_t generation) { generation_ = generation; }

  CacheStatistics statistics;
  std::vector<std::uint32_t> visits;  ///< indexed by sample

  static constexpr std::int32_t kNowhere = -1;

  /// Location of a sample's record. If there are several, their content is the same.
  struct Place {
    std::int32_t pool = kNowhere;   ///< slot in the pool
    std::int32_t read = kNowhere;   ///< read slot: being read or ready
    std::int32_t write = kNowhere;  ///< write slot with the newest content, not yet written
    bool dirty = false;             ///< the pool's content is newer than the file's
    bool pinned = false;
  };

 private:
  using Clock = std::chrono::steady_clock;

  /// If kernels run on host memory, staging slots are in the pool's allocation. A record then moves
  /// between them by an exchange of addresses.
  static constexpr bool kSharedMemory = std::is_same_v<MemSpace, StagingSpace>;

  /// Task that reads or writes one record.
  class RecordTask final : public IoTask {
   public:
    void execute() noexcept override;

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

  // Use of records: activation_cache_state.cpp.

  /// Allocates a pool of that number of slots, and the staging memory if there is a file.
  void allocate_memory(std::uint64_t slots);
  void pin(std::span<const std::uint64_t> sample_ids);
  /// Counts an acquired sample as a first visit, a hit or a miss.
  void count_visit_kind(std::uint64_t sample);
  static double seconds_since(Clock::time_point begin);

  // The pool: activation_cache_pool.cpp.

  std::uint8_t* pool_bytes(std::int32_t slot);
  /// Queue a copy of one record; wait_for_copies() completes it.
  void copy_to_pool(std::int32_t slot, const std::uint8_t* bytes);
  void copy_from_pool(std::uint8_t* bytes, std::int32_t slot);
  void wait_for_copies();
  /// With shared memory: swaps the memory of a pool slot and a staging slot, which moves a record
  /// without a copy. Their former contents are swapped too.
  void exchange(std::int32_t pool_slot, RecordTask& task);
  /// Ensures that no kernel uses an unpinned record when it is copied or moved.
  void settle_released();
  /// Gives a pinned sample a slot in the pool, with its record unless this is a first visit.
  void bring_in(std::uint64_t sample);
  /// Returns a free slot; evicts a record if there is no other.
  std::int32_t take_pool_slot();
  /// Removes a record from the pool; first prepares its write if it is newer than the file's.
  void give_up(std::uint64_t sample);
  /// Removes a record from the pool without a write.
  void drop_from_pool(std::uint64_t sample);

  // Staging memory and tasks: activation_cache_staging.cpp.

  /// Starts the reads of the next announced records, except for slots that acquire() may need.
  void start_announced_reads();
  /// Fills a read slot with the record of a sample that has one outside of the pool.
  void start_read(std::uint64_t sample);
  void free_read_slot(std::uint64_t sample);
  /// Returns a free slot; waits for the oldest write if there is no other.
  std::int32_t take_write_slot();
  /// Prepares the write of a record, which starts when submit_filled_writes() is called after a
  /// fence. After an exchange the record is no longer in the pool.
  void fill_write_slot(std::uint64_t sample, bool by_exchange);
  void submit_filled_writes();
  /// Finishes the slots whose tasks are done; does not wait.
  void collect_finished();
  /// Records the result of a finished task.
  void finish(StagingSlot& slot);
  /// Throws the first failure of a task, now and at every later call.
  void rethrow_failure();
  /// Waits for a submitted slot; among writes only for the oldest.
  void wait_for(StagingSlot& slot);
  void wait_for_all_tasks();
  /// Ensures that no record is pinned and no task is under way.
  void come_to_rest(const char* what);

  // Checkpoints and damaged records: activation_cache_checkpoint.cpp.

  void note_damaged(std::uint64_t sample);
  /// Reads a record that no kernel and no task is changing.
  void fetch(std::uint64_t sample, std::uint8_t* bytes);
  /// Stores a record where there is room: in the pool, otherwise in the file.
  void put(std::uint64_t sample, const std::uint8_t* bytes);
  /// Returns true if the state refers to a visited sample's place in the file.
  bool is_in_file_only(std::uint64_t sample, const RecordPlaces* places) const;
  /// Returns the item for all bytes of records, in the order of samples.
  StateItem records_item(const RecordPlaces* places) const;
  /// Records that are newer in memory, or only there, have no place in the file.
  RecordPlaces write_places(StateWriter& writer);
  /// Makes the file's records those of the state.
  RecordPlaces read_places(StateReader& reader);

  CacheShape shape_;
  std::size_t stride_;  ///< bytes from one slot to the next
  ExecSpace copies_;
  bool copying_ = false;             ///< queued copies may not be complete
  CacheIoThread* io_;                ///< may be null if there is no file
  std::unique_ptr<SpillFile> file_;  ///< null: all records are in the pool

  DeviceBytes pool_;
  HostBytes staging_;                       ///< empty with shared memory
  std::vector<std::uint64_t> pool_offset_;  ///< offset of each slot's memory in pool_
  std::vector<StagingSlot> reads_;
  std::vector<StagingSlot> writes_;
  std::vector<std::int32_t> free_pool_;
  std::vector<std::int32_t> free_reads_;
  std::deque<std::int32_t> submitted_writes_;  ///< oldest first
  std::vector<std::int32_t> free_writes_;
  std::vector<std::int32_t> filled_writes_;  ///< to be submitted after wait_for_copies()

  std::vector<Place> places_;  ///< indexed by sample
  AnnouncedUses uses_;
  EvictionOrder evictable_;  ///< records in the pool that are not pinned
  int pinned_ = 0;           ///< number of acquired samples
  /// Instances that may still run kernels on records that are no longer pinned.
  std::vector<ExecSpace> released_on_;
  std::exception_ptr failure_;       ///< the first failure of a task
  std::set<std::uint64_t> damaged_;  ///< samples that were found and not yet taken
  /// Generation of the next state that refers to the file.
  std::optional<std::uint64_t> generation_;
};

}  // namespace deltapipe
