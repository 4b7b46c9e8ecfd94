// SPDX-License-Identifier: BSD-3-Clause
// Records of one end of one boundary direction: for each sample an opaque record (memory m(s),
// errors), its visit count and its checksum. Records are in device memory up to a budget. The
// others are in a spill file, from which one thread reads ahead and to which it writes behind.
//
// In a training loop, for every micro-batch and in the order of announcement:
//   cache.prefetch(ids of a later micro-batch);     // or of a whole epoch at once
//   cache.acquire(ids, records, visits);
//   codec.encode or decode(exec, ..., records);
//   cache.release(exec, ids);
//
// A cache's functions must be called from one thread. A failure of the spill file (full disk,
// truncated file) throws UserError at the next call of any function and at all later calls. A
// damaged record is not a failure: take_damaged() reports it.
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
#include <utility>
#include <vector>

#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"
#include "core/cache/io_thread.hpp"
#include "core/cache/next_use.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/wire/records.hpp"

namespace deltapipe {

class SpillFile;
struct RecordPlaces;

struct CacheShape {
  std::uint64_t samples = 0;      ///< S: the cache numbers samples 0 ... S-1
  std::size_t record_bytes = 0;   ///< size of one record: Codec::record().bytes() of this end
  int max_samples_in_flight = 1;  ///< largest number of samples acquired and not yet released
  int prefetch_samples = 8;       ///< records to read ahead: micro-batches times their samples
  /// Rows of the spill file in addition to those of the samples, for records to which checkpoints
  /// refer, and the number of these rows that reserve their disk space at the start.
  std::uint64_t spare_records = 0;
  std::uint64_t reserved_records = 0;
};

/// Identity stored in a spill file; a file with another identity is not opened again.
struct CacheIdentity {
  std::uint32_t boundary = 0;  ///< i: between stages i and i+1
  bool backward = false;       ///< gradients, from stage i+1 to i
  bool sender = false;         ///< otherwise the receiver's end
  /// Blocks of the model on the sending side of the boundary: another boundary has other
  /// activations.
  std::uint64_t blocks_before = 0;
  std::string storage;         ///< name of the record's format, as in the deck: fp16, bits4, ...
  std::uint64_t tokens = 0;    ///< T
  std::uint64_t channels = 0;  ///< C
  std::uint64_t data_fingerprint = 0;  ///< fingerprint of the data set that defines sample ids
  /// Record n belongs to the data set's sample first_sample + n * sample_stride.
  std::uint64_t first_sample = 0;
  std::uint64_t sample_stride = 1;
  CacheOwner owner = {};
  /// If true, no other run may replace the file until the owner is finished. Otherwise this holds
  /// after a state refers to the file: refer_to_file().
  bool is_needed = false;
};

enum class SpillStart {
  create,        ///< a new file; replaces one that no other run needs
  open_existing  ///< visits and records as of the last flush()
};

/// Statistics since the last take_statistics(). Every acquired sample counts as one of
/// first_visits, hits and misses.
struct CacheStatistics {
  std::uint64_t first_visits = 0;
  std::uint64_t hits = 0;           ///< record was in device memory
  std::uint64_t misses = 0;         ///< record came from the file or from the write queue
  std::uint64_t late_misses = 0;    ///< misses for which acquire() had to wait
  std::uint64_t damaged = 0;        ///< records of the file whose checksum did not match
  std::uint64_t bytes_read = 0;     ///< bytes from the file
  std::uint64_t bytes_written = 0;  ///< bytes to the file
  double stall_seconds = 0;         ///< waits for the I/O thread in acquire()
  double acquire_seconds = 0;       ///< total time in acquire(), including stalls and copies
};

struct CacheMemory {
  std::uint64_t pool_bytes = 0;     ///< device memory: at most the budget if there is one
  std::uint64_t staging_bytes = 0;  ///< host memory for reads and writes under way
  std::uint64_t table_bytes = 0;    ///< host memory: visit counts, places, checksums
};

class ActivationCache {
 public:
  /// Copies between device and staging memory run on `copies`; a separate instance overlaps them
  /// with other work. If budget_bytes is 0 or has room for all records, they stay in device memory
  /// and there is no file; `io` and `spill_path` are then unused (may be null, empty). `io` must
  /// outlive the cache. Throws UserError for a budget under minimum_budget_bytes(), too little
  /// memory or disk space, or a spill file that belongs to another cache.
  ActivationCache(const ExecSpace& copies, CacheIoThread* io, const CacheShape& shape,
                  const CacheIdentity& identity, std::uint64_t budget_bytes,
                  const std::string& spill_path, SpillStart start = SpillStart::create);
  /// Waits for reads and writes under way. Records that are only in device memory are lost; call
  /// flush() first to keep them.
  ~ActivationCache();
  ActivationCache(const ActivationCache&) = delete;
  ActivationCache& operator=(const ActivationCache&) = delete;

  /// Appends to the announced order of use; reads start ahead. Never waits. Announcing more than
  /// CacheShape::prefetch_samples ahead is harmless but has no benefit. An announced sample must be
  /// acquired, or clear_prefetch() called.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// Forgets all announcements of future uses (evaluation, early end of an epoch).
  void clear_prefetch();

  /// Pins the records of a micro-batch in the pool and fills `records` and `visits`, one entry per
  /// sample. visits 0: first visit, the record's content is undefined. Waits only for unfinished
  /// reads and for room in the write queue. A sample must not be acquired twice without a release
  /// in between.
  void acquire(std::span<const std::uint64_t> sample_ids, MemoryRecords& records,
               std::vector<std::uint32_t>& visits);

  /// Unpins acquired records, which are now new: visits increase by one. The kernels that write
  /// them are complete or ordered on `exec`; does not wait for them.
  void release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids);

  /// Writes every record to the file and the file to the disk; waits. No record may be pinned.
  /// Without a file: does nothing.
  void flush();

  /// Makes the destructor remove the spill file. Without a file: does nothing.
  void remove_file_at_end();
  /// Marks the run as finished, so that any run may replace the file. Without a file: does nothing.
  void let_replace_file();

  /// Makes the next visit of these samples a first visit. None may be pinned.
  void forget(std::span<const std::uint64_t> sample_ids);

  /// Return the samples whose record in the file was found damaged since the last take_damaged().
  /// acquire() has filled these records with zeros: results computed with them do not count, and
  /// both ends must call forget() for these samples.
  bool has_damaged() const { return !damaged_.empty(); }
  std::vector<std::uint64_t> take_damaged();
  /// Reads the whole file for take_damaged(). No record may be pinned. Without a file: finds none.
  void find_damaged_records();

  /// After SpillStart::open_existing: returns, for every sample's record in the file, the XXH3 of
  /// its first `bytes`; 0: the record is missing or damaged. Reads the whole file. Without a file:
  /// all 0.
  std::vector<std::uint64_t> hashes_in_file(std::size_t bytes);

  /// Write and read visits and the records of visited samples, wherever they are: items `visits`
  /// and `records`. Wait; no record may be pinned. Announcements, and the choice of records in
  /// memory, are not part of the state: after read_state() nothing is announced, and hits and
  /// misses may differ.
  void write_state(StateWriter& writer);
  void read_state(StateReader& reader);

  /// Makes the next write_state() refer to records in the spill file by their places (items
  /// `generation`, `spill_file`, `slots`, `checksums`). Its `records` then contain only those that
  /// are in memory alone. The file retains its records until let_go(generation); sync() writes them
  /// to the disk. read_state() then requires the file. Without a file, this function, let_go() and
  /// sync() do nothing.
  void refer_to_file(std::uint64_t generation) { generation_ = generation; }
  /// May be called from any thread.
  void let_go(std::uint64_t generation);
  void sync();
  bool has_file() const { return file_ != nullptr; }
  /// Returns the file's file_id; 0: there is no file.
  std::uint64_t file_id() const;

  CacheStatistics take_statistics() { return std::exchange(statistics_, {}); }

  /// Returns the visits of every sample, S entries; equal at both ends of a boundary.
  std::span<const std::uint32_t> visits() const { return visits_; }

  /// Returns the smallest budget other than 0.
  static std::uint64_t minimum_budget_bytes(const CacheShape& shape);
  /// Throws UserError when the budget is not 0 and below the minimum.
  static void check_budget(const CacheShape& shape, std::uint64_t budget_bytes);
  static CacheMemory memory_bytes(const CacheShape& shape, std::uint64_t budget_bytes);
  /// Returns the size of the spill file; 0: there is no file.
  static std::uint64_t disk_bytes_needed(const CacheShape& shape, std::uint64_t budget_bytes);
  /// Returns the size of what write_state() writes once all samples have been visited, at most. If
  /// there is a spill file, its records are a part of that only with `copies_file`.
  static std::uint64_t state_bytes(const CacheShape& shape, std::uint64_t budget_bytes,
                                   bool copies_file);

 private:
  using Clock = std::chrono::steady_clock;

  static constexpr std::int32_t kNowhere = -1;

  /// Location of a sample's record. If there are several, their content is the same.
  struct Place {
    std::int32_t pool = kNowhere;   ///< slot in the pool
    std::int32_t read = kNowhere;   ///< read slot: being read or ready
    std::int32_t write = kNowhere;  ///< write slot with the newest content, not yet written
    bool dirty = false;             ///< the pool's content is newer than the file's
    bool pinned = false;
  };

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

  // Use of records: activation_cache.cpp.

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

  std::vector<std::uint32_t> visits_;  ///< indexed by sample
  std::vector<Place> places_;          ///< indexed by sample
  AnnouncedUses uses_;
  EvictionOrder evictable_;  ///< records in the pool that are not pinned
  int pinned_ = 0;           ///< number of acquired samples
  /// Instances that may still run kernels on records that are no longer pinned.
  std::vector<ExecSpace> released_on_;
  std::exception_ptr failure_;       ///< the first failure of a task
  std::set<std::uint64_t> damaged_;  ///< samples that were found and not yet taken
  /// Generation of the next state that refers to the file.
  std::optional<std::uint64_t> generation_;
  CacheStatistics statistics_;
};

}  // namespace deltapipe
