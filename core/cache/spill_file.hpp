// SPDX-License-Identifier: BSD-3-Clause
// The HDF5 file in which one end of one boundary direction keeps its records:
//   records   [S + spare, record_bytes] uint8, one chunk a record
//   slots     [S] uint32, the row of `records` that has the sample's
//   visits    [S] uint32, 0: no record
//   checksums [S] uint64, XXH3 (64 bits) of the record
//   needed    [1] uint32, 1: of a run that is not finished and may go on with it
// and root attributes that say what it is, which (file_id) and whose (run_id, output_directory,
// checkpoint_directory).
// They are in the file's first kilobytes, so that one which was cut short is still known by them.
//
// Checkpoints refer to records by their rows. What a checkpoint refers to is held: a sample's next
// record then goes to a spare row, and the row is free again once no checkpoint refers to it.
//
// All space is taken at creation, without filters, so that nothing but the elements themselves ever
// changes. The HDF5 library is therefore used only to create and to check the file; afterwards the
// file is closed for HDF5 and records are read and written at their fixed places. So h5ls and h5py
// read the file while training runs, a killed run leaves a sound HDF5 file, and other threads may
// use the library meanwhile. After a kill each record is the last one written, or torn: then its
// checksum does not match. After power loss only what sync() covered is sure. A file gets its name
// when it is complete, so that a kill leaves none that cannot be opened.
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

namespace deltapipe {

/// Owns a file descriptor.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_;
};

/// Places of a checkpoint's records.
struct RecordPlaces {
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};
  std::vector<std::uint32_t> slots;      ///< S; kNone: not in the file
  std::vector<std::uint64_t> checksums;  ///< S
};

/// One thread at a time calls the functions, but for let_go() and sync().
class SpillFile {
 public:
  /// UserError: not enough disk space, a file there that is not an activation cache, is in use, is
  /// truncated, that another run needs or (open_existing) is another cache's.
  /// `spare`: rows beside those of the samples; `reserved` of them get their disk space now. An
  /// existing file may have more; one with fewer is copied to a larger one.
  SpillFile(const std::string& path, const CacheIdentity& identity, std::uint64_t samples,
            std::size_t record_bytes, SpillStart start, std::uint64_t spare = 0,
            std::uint64_t reserved = 0);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// The destructor is to remove the file.
  void remove_at_end() { remove_at_end_ = true; }
  /// Its run needs it no longer, also after a crash of the machine.
  void let_replace();

  const std::string& path() const { return path_; }
  /// A random number that it got when it was created; a larger copy of it has the same.
  std::uint64_t id() const { return id_; }
  /// Visits of the records in the file, S entries.
  std::vector<std::uint32_t> read_visits();

  /// `bytes` are record_bytes long. UserError: full disk, input/output error.
  void write_record(std::uint64_t sample, const std::uint8_t* bytes, std::uint32_t visits);
  /// UserError: the record's checksum does not match (names both), truncated file.
  void read_record(std::uint64_t sample, std::uint8_t* bytes);
  /// False when the checksum does not match, or the disk cannot read the place.
  bool try_read_record(std::uint64_t sample, std::uint8_t* bytes);
  /// Sample has no record any more.
  void forget_record(std::uint64_t sample);
  /// Returns when everything written is on the disk.
  void sync();

  /// Returns the present places of records. Their rows keep their content until let_go(generation).
  /// The file is needed from then on.
  RecordPlaces hold(std::uint64_t generation);
  /// A generation that is not held changes nothing.
  void let_go(std::uint64_t generation);
  /// The records are again those of a generation, which is held; `visits`, S entries, is 0 where
  /// is missing. UserError when the places are not those of this file.
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
  std::uint64_t rows_ = 0;            ///< of `records`
  std::uint64_t reserved_ = 0;        ///< of those beyond the samples'
  std::uint64_t records_offset_ = 0;  ///< in the file, of row 0
  std::uint64_t slots_offset_ = 0;
  std::uint64_t visits_offset_ = 0;
  std::uint64_t checksums_offset_ = 0;
  std::uint64_t needed_offset_ = 0;
  std::vector<std::uint64_t> checksums_;
  std::vector<std::uint32_t> slots_;
  bool remove_at_end_ = false;
  bool marked_needed_ = false;  ///< by hold()

  std::mutex mutex_;                                                 ///< guards what follows
  std::map<std::uint64_t, std::vector<std::uint32_t>> generations_;  ///< rows that each holds
  std::vector<std::uint16_t> holders_;     ///< per row: generations that hold it; empty: none do
  std::vector<std::uint32_t> free_slots_;  ///< the lowest last
};

/// UserError when `path` is the spill file of another run than `owner` and those it takes the place
/// of, and that run may go on with it.
void check_spill_file_owner(const std::string& path, const CacheOwner& owner);

/// The file is one of the run, or of those it takes the place of.
bool is_spill_file_of(const std::string& path, const CacheOwner& owner);

/// The run that may go on with the file; nothing: none, or `path` is no sound spill file.
std::optional<CacheOwner> run_that_needs(const std::string& path);

/// Its run needs it no longer. UserError when that cannot be written.
void let_replace_spill_file(const std::string& path);

/// XXH3, 64 bits.
std::uint64_t record_checksum(const std::uint8_t* bytes, std::size_t size);

}  // namespace deltapipe
