// SPDX-License-Identifier: BSD-3-Clause
// HDF5 file with the records of one end of one boundary direction:
//   records   [S + spare, record_bytes] uint8, one chunk per record
//   slots     [S] uint32, row of the sample's record in `records`
//   visits    [S] uint32, 0: no record
//   checksums [S] uint64, XXH3 (64 bits) of the record
//   needed    [1] uint32, 1: the owner is not finished and may resume with it
// Root attributes identify its contents, the file (file_id) and its owner (run_id,
// output_directory, checkpoint_directory). They are in the file's first kilobytes, so that they
// still identify a truncated file.
//
// Checkpoints refer to records by their rows. A row to which a checkpoint refers is held: the
// sample's next record is written to a spare row. The held row is free again when no checkpoint
// refers to it.
//
// All space is allocated at creation, without filters, so that later only the elements change. HDF5
// is therefore used only to create and to check the file. Afterwards the file is closed for HDF5,
// and records are read and written at their fixed places. Thus h5ls and h5py can read the file
// during training, a killed run leaves a valid HDF5 file, and other threads may use the library at
// the same time. After a kill each record is either the last one written or torn, and then its
// checksum does not match. After a power failure only data covered by sync() is certain. A file
// gets its name when it is complete, so that a kill leaves no file that cannot be opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/cache/activation_cache.hpp"
#include "core/files/descriptor.hpp"

namespace deltapipe {

/// Places of a checkpoint's records.
struct RecordPlaces {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::vector<std::uint32_t> slots;      ///< S entries; kNone: not in the file
  std::vector<std::uint64_t> checksums;  ///< S entries
};

/// Only one thread at a time may call the functions, except let_go() and sync().
class SpillFile {
 public:
  /// `spare` is the number of rows in addition to those of the samples; `reserved` of them reserve
  /// their disk space now. An existing file may have more rows; one with fewer is copied to a
  /// larger one. Throws UserError for too little disk space, or if the existing file is not an
  /// activation cache, is in use, is truncated or is needed by another run. With open_existing,
  /// also throws if it belongs to another cache.
  SpillFile(const std::string& path, const CacheIdentity& identity, std::uint64_t samples,
            std::size_t record_bytes, SpillStart start, std::uint64_t spare = 0,
            std::uint64_t reserved = 0);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Makes the destructor remove the file.
  void remove_at_end() { remove_at_end_ = true; }
  /// Marks the file as no longer needed by its run; this survives a crash of the machine.
  void let_replace();

  const std::string& path() const { return path_; }
  /// Returns a random number assigned at creation; a larger copy of the file has the same.
  std::uint64_t id() const { return id_; }
  /// Returns the visits of the records in the file, S entries.
  std::vector<std::uint32_t> read_visits();

  /// Writes a record; `bytes` has record_bytes bytes. Throws UserError for a full disk or an
  /// input/output error.
  void write_record(std::uint64_t sample, const std::uint8_t* bytes, std::uint32_t visits);
  /// Reads a record. Throws UserError for a checksum that does not match (names both) or a
  /// truncated file.
  void read_record(std::uint64_t sample, std::uint8_t* bytes);
  /// Returns false if the checksum does not match, or the disk cannot read the record.
  bool try_read_record(std::uint64_t sample, std::uint8_t* bytes);
  /// Removes the sample's record.
  void forget_record(std::uint64_t sample);
  /// Writes data to the disk; all earlier writes are on the disk on return.
  void sync();

  /// Returns the current places of records. Those rows keep their content until let_go(generation).
  /// The file is marked as needed from then on.
  RecordPlaces hold(std::uint64_t generation);
  /// Releases a generation; has no effect for one that is not held.
  void let_go(std::uint64_t generation);
  /// Restores the records of a generation that is held. `visits` has S entries, 0 for samples
  /// without a record. Throws UserError when the places do not belong to this file.
  void go_back(const RecordPlaces& places, const std::vector<std::uint32_t>& visits,
               std::uint64_t generation);

  static std::uint64_t bytes_needed(std::uint64_t samples, std::size_t record_bytes,
                                    std::uint64_t reserved = 0);

 private:
  void remove_former(const CacheOwner& owner);
  bool begins_as_cache_of(const CacheOwner& owner) const;
  void create(const CacheIdentity& identity);
  void make(const CacheIdentity& identity, const std::function<void()>& fill);
  void grow(const CacheIdentity& identity, std::uint64_t rows);
  void set_needed(bool needed);
  void open_descriptor(const std::string& place);
  void open_existing(const CacheIdentity& identity);
  void read_identity(const CacheIdentity& expected);
  void locate_datasets(const std::string& place);
  void reserve_space();
  void reserve(std::uint64_t begin, std::uint64_t end);
  void read_tables();
  void check_places(const RecordPlaces& places) const;
  void find_free_slots();
  std::uint32_t slot_to_write(std::uint64_t sample);
  [[noreturn]] void throw_foreign(const std::string& what, const std::string& value) const;
  void write_bytes(const void* bytes, std::size_t size, std::uint64_t offset);
  void read_bytes(void* bytes, std::size_t size, std::uint64_t offset);
  bool try_read_bytes(void* bytes, std::size_t size, std::uint64_t offset);

  std::string path_;
  std::uint64_t id_ = 0;
  std::uint64_t samples_;
  std::size_t record_bytes_;
  FileDescriptor file_;
  std::uint64_t rows_ = 0;            ///< rows of `records`
  std::uint64_t reserved_ = 0;        ///< rows beyond the samples' whose space is reserved
  std::uint64_t records_offset_ = 0;  ///< offset of row 0 in the file
  std::uint64_t slots_offset_ = 0;
  std::uint64_t visits_offset_ = 0;
  std::uint64_t checksums_offset_ = 0;
  std::uint64_t needed_offset_ = 0;
  std::vector<std::uint64_t> checksums_;
  std::vector<std::uint32_t> slots_;
  bool remove_at_end_ = false;
  bool marked_needed_ = false;  ///< set by hold()

  std::mutex mutex_;  ///< guards the following members
  /// Rows that each generation holds.
  std::map<std::uint64_t, std::vector<std::uint32_t>> generations_;
  /// Number of generations that hold each row; empty: no row is held.
  std::vector<std::uint16_t> holders_;
  std::vector<std::uint32_t> free_slots_;  ///< the lowest last
};

/// Throws UserError when `path` is the spill file of another run than `owner` and the runs that it
/// replaces, and that run may resume with it.
void check_spill_file_owner(const std::string& path, const CacheOwner& owner);

/// Returns true if the file belongs to the run, or to a run that it replaces.
bool is_spill_file_of(const std::string& path, const CacheOwner& owner);

/// Returns the run that may resume with the file; nothing if there is no such run, or `path` is not
/// a valid spill file.
std::optional<CacheOwner> run_that_needs(const std::string& path);

/// Opens the datasets of a spill file. Throws UserError when one of them cannot be opened.
void check_spill_file_datasets(const std::string& path);

/// Marks a file as no longer needed by its run. Throws UserError when that cannot be written.
void let_replace_spill_file(const std::string& path);

/// Returns the XXH3, 64 bits.
std::uint64_t record_checksum(const std::uint8_t* bytes, std::size_t size);

}  // namespace deltapipe
