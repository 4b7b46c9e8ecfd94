// SPDX-License-Identifier: BSD-3-Clause
// What one end of one boundary direction keeps of each sample (memories m(s), errors): one record
// of opaque bytes, its visit count and its checksum. Records live in device memory up to a budget;
// the others are in a spill file, from which one thread reads ahead and to which it writes behind.
//
// In a training loop, for every micro-batch and in the order of announcement:
//   cache.prefetch(ids of a later micro-batch);     // or of a whole epoch at once
//   cache.acquire(ids, records, visits);
//   codec.encode or decode(exec, ..., records);
//   cache.release(exec, ids);
//
// One thread calls a cache's functions. A failure of the spill file (full disk, truncated file) is
// a UserError at the next call of any of them, and at every call after that one. A damaged record
// is no failure: take_damaged() tells of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"
#include "core/cache/settings.hpp"
#include "core/codec/wire/records.hpp"

namespace deltapipe {

class CacheIoThread;
class ActivationCacheState;

struct CacheShape {
  std::uint64_t samples = 0;      ///< S: the cache knows samples as 0 ... S-1
  std::size_t record_bytes = 0;   ///< of one record: Codec::record().bytes() of this end
  int max_samples_in_flight = 1;  ///< acquired and not yet released, at most
  int prefetch_samples = 8;       ///< records read ahead: micro-batches times their samples
  /// For records that checkpoints refer to: rows of the spill file beside those of the samples, and
  /// how many of them take their disk space at the start.
  std::uint64_t spare_records = 0;
  std::uint64_t reserved_records = 0;
};

/// Identity that a spill file states; a file with another one is not opened again.
struct CacheIdentity {
  std::uint32_t boundary = 0;  ///< i: between stages i and i+1
  bool backward = false;       ///< gradients, from stage i+1 to i
  bool sender = false;         ///< else the receiver's end
  /// Of the model, on the sending side of the cut: another cut has other activations.
  std::uint64_t blocks_before = 0;
  std::string storage;         ///< name of the record's format, as in the deck: fp16, bits4, ...
  std::uint64_t tokens = 0;    ///< T
  std::uint64_t channels = 0;  ///< C
  std::uint64_t data_fingerprint = 0;  ///< of the data set that gives sample ids their meaning
  /// Record n is that of the data set's sample first_sample + n * sample_stride.
  std::uint64_t first_sample = 0;
  std::uint64_t sample_stride = 1;
  CacheOwner owner = {};
  /// Until the owner is finished no other run replaces the file. Else from when a state refers to
  /// it: refer_to_file().
  bool is_needed = false;
};

enum class SpillStart {
  create,        ///< a new file; one that no other run needs any more is replaced
  open_existing  ///< visits and records as they were after the last flush()
};

/// Since the last take_statistics(); every acquired sample is one of first_visits, hits and misses.
struct CacheStatistics {
  std::uint64_t first_visits = 0;
  std::uint64_t hits = 0;           ///< record was in device memory
  std::uint64_t misses = 0;         ///< record came from the file or from what waited to be written
  std::uint64_t late_misses = 0;    ///< of the misses, those that acquire() had to wait for
  std::uint64_t damaged = 0;        ///< records of the file whose checksum did not match
  std::uint64_t bytes_read = 0;     ///< from the file
  std::uint64_t bytes_written = 0;  ///< to the file
  double stall_seconds = 0;         ///< waited for the I/O thread in acquire()
  double acquire_seconds = 0;       ///< in acquire() altogether, stalls and copies included
};

struct CacheMemory {
  std::uint64_t pool_bytes = 0;     ///< device memory: at most the budget when there is one
  std::uint64_t staging_bytes = 0;  ///< host memory for reads and writes under way
  std::uint64_t table_bytes = 0;    ///< host memory: visit counts, places, checksums
};

class ActivationCache {
 public:
  /// Copies between device and staging memory run on `copies`: an instance of its own overlaps them
  /// with other work. budget_bytes 0, or room for all records: they stay in device memory, there is
  /// no file, `io` and `spill_path` are unused (may be null, empty). `io` must outlive the cache.
  /// UserError: a budget under minimum_budget_bytes(), too little memory or disk, a spill file that
  /// is not this cache's.
  ActivationCache(const ExecSpace& copies, CacheIoThread* io, const CacheShape& shape,
                  const CacheIdentity& identity, std::uint64_t budget_bytes,
                  const std::string& spill_path, SpillStart start = SpillStart::create);
  /// Waits for reads and writes under way. Records that only device memory holds are lost: flush()
  /// first to keep them.
  ~ActivationCache();
  ActivationCache(const ActivationCache&) = delete;
  ActivationCache& operator=(const ActivationCache&) = delete;

  /// Appends to the announced order of use; reads start ahead. Never waits. Announcing more than
  /// CacheShape::prefetch_samples ahead does no harm and brings nothing. An announced sample must
  /// be acquired or clear_prefetch() called.
  void prefetch(std::span<const std::uint64_t> sample_ids);
  /// Forgets all announcements that are still to come (evaluation, end of an epoch cut short).
  void clear_prefetch();

  /// Pins the records of a micro-batch in the pool and fills `records` and `visits`, one entry a
  /// sample. visits 0: first visit, the record's content is undefined. Waits only for reads that
  /// are not done yet and for room in the write queue. A sample must not be acquired twice without
  /// a release in between.
  void acquire(std::span<const std::uint64_t> sample_ids, MemoryRecords& records,
               std::vector<std::uint32_t>& visits);

  /// Unpins acquired records, which are new now: visits grow by one. The kernels that write them
  /// are complete or ordered on `exec`; does not wait for them.
  void release(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids);
  /// Unpins acquired records that nothing has changed (an evaluation, a step given up).
  void release_unchanged(const ExecSpace& exec, std::span<const std::uint64_t> sample_ids);

  /// Brings every record to the file and the file to the disk; waits. Nothing may be pinned.
  /// Without a file: does nothing.
  void flush();

  /// The spill file goes when the cache does. Without a file: does nothing.
  void remove_file_at_end();
  /// The run is finished, so that any may replace the file. Without a file: does nothing.
  void let_replace_file();

  /// Makes the next visit of these samples a first visit. None may be pinned.
  void forget(std::span<const std::uint64_t> sample_ids);

  /// Samples whose record in the file was found damaged since the last take_damaged(). Zeros were
  /// acquired in its place: what was computed with them does not count, and both ends have to
  /// forget() these samples.
  bool has_damaged() const;
  std::vector<std::uint64_t> take_damaged();
  /// Reads the whole file for take_damaged(). Nothing may be pinned. Without a file: finds none.
  void find_damaged_records();

  /// After SpillStart::open_existing: of every sample's record in the file the XXH3 of its first
  /// `bytes`; 0: missing or damaged. Reads the whole file. Without a file: all 0.
  std::vector<std::uint64_t> hashes_in_file(std::size_t bytes);

  /// Visits and the records of visited samples, wherever they are: items `visits` and `records`.
  /// Waits; nothing may be pinned. Announcements, and which records memory holds, are no state:
  /// after read_state() nothing is announced, and hits and misses may differ.
  void write_state(StateWriter& writer);
  void read_state(StateReader& reader);

  /// The next write_state() has of what is in the spill file only where it is (items `generation`,
  /// `spill_file`, `slots`, `checksums`), and `records` of what only memory has. What is in the
  /// file stays there until let_go(generation); sync() brings it to the disk. read_state() then
  /// needs the file. Without a file: does nothing, as the other two.
  void refer_to_file(std::uint64_t generation);
  /// Any thread may call these.
  void let_go(std::uint64_t generation);
  void sync();
  bool has_file() const;
  /// file_id of the spill file; 0: no file.
  std::uint64_t file_id() const;

  CacheStatistics take_statistics();

  /// Visits of every sample, S entries; equal at both ends of a boundary.
  std::span<const std::uint32_t> visits() const;
  /// XXH3 (64 bits) of a record as it is now, 0 before its first visit. For comparing the two ends;
  /// waits for the device or the file and must not be called while the sample is pinned.
  std::uint64_t record_hash(std::uint64_t sample_id);

  /// The smallest budget other than 0.
  static std::uint64_t minimum_budget_bytes(const CacheShape& shape);
  /// UserError when the budget is neither 0 nor the minimum at least.
  static void check_budget(const CacheShape& shape, std::uint64_t budget_bytes);
  static CacheMemory memory_bytes(const CacheShape& shape, std::uint64_t budget_bytes);
  /// Size of the spill file; 0: no file.
  static std::uint64_t disk_bytes_needed(const CacheShape& shape, std::uint64_t budget_bytes);

 private:
  std::unique_ptr<ActivationCacheState> state_;
};

}  // namespace deltapipe
