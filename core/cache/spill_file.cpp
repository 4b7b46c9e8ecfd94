// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/spill_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/cache/disk_space.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace {

constexpr const char* kFormat = "deltapipe activation cache";
constexpr const char* kRunId = "run_id";
constexpr const char* kDirectory = "output_directory";
constexpr const char* kCheckpoints = "checkpoint_directory";
constexpr const char* kNeeded = "needed";
constexpr const char* kVersion = "format_version";
constexpr const char* kDatasets[] = {"records", "slots", "visits", "checksums", kNeeded};
constexpr std::uint64_t kFormatVersion = 5;
constexpr std::uint64_t kPage = 4096;
/// Space for HDF5's own structures: superblock, object headers, attributes; they use some
/// kilobytes.
constexpr std::uint64_t kOverheadBytes = 64 * 1024;

[[noreturn]] void throw_no_space(const std::string& path, std::uint64_t bytes, int error) {
  throw UserError({.what = fmt::format("the disk is full ({}): the activation cache needs {} bytes",
                                       system_message(error), bytes),
                   .file = path,
                   .remedy = "free space or set cache.directory to a larger disk; records and "
                             "checkpoints written before are complete"});
}

/// For a file that cannot be used any more. Mode resync replaces it.
constexpr const char* kDamagedRemedy =
    "check the disk and restore the file, resume without its records with "
    "checkpoint.mode = \"resync\" or, if there is no checkpoint, start again";

struct Attribute {
  const char* name;
  std::string text;  ///< numbers are decimal
  bool is_number;
};

std::vector<Attribute> attributes_of(const CacheIdentity& identity, std::uint64_t samples,
                                     std::size_t record_bytes) {
  return {{"format", kFormat, false},
          {kVersion, std::to_string(kFormatVersion), true},
          {"boundary", std::to_string(identity.boundary), true},
          {"direction", identity.backward ? "backward" : "forward", false},
          {"end", identity.sender ? "sender" : "receiver", false},
          {"blocks_before", std::to_string(identity.blocks_before), true},
          {"storage", identity.storage, false},
          {"tokens", std::to_string(identity.tokens), true},
          {"channels", std::to_string(identity.channels), true},
          {"data_fingerprint", std::to_string(identity.data_fingerprint), true},
          {"samples", std::to_string(samples), true},
          {"first_sample", std::to_string(identity.first_sample), true},
          {"sample_stride", std::to_string(identity.sample_stride), true},
          {"record_bytes", std::to_string(record_bytes), true},
          {"checksum", "XXH3 64 bits", false}};
}

std::vector<std::uint32_t> slots_of_new_file(std::uint64_t samples) {
  std::vector<std::uint32_t> slots(samples);
  std::iota(slots.begin(), slots.end(), 0u);
  return slots;
}

/// Creates the file `place`; messages name `path`.
void create_file(const std::string& place, const std::string& path, std::uint64_t id,
                 const CacheIdentity& identity, std::uint64_t samples, std::size_t record_bytes,
                 std::uint64_t rows) {
  try {
    hdf5::File file = hdf5::File::create(place, {.replace = false,
                                                 .shown_path = path,
                                                 .checksummed = true,
                                                 .alignment = kPage,
                                                 .attributes_first = true});
    file.write_attribute("file_id", id);
    const CacheOwner& owner = identity.owner;
    if (!owner.run_id.empty()) file.write_fixed_attribute(kRunId, owner.run_id);
    if (!owner.directory.empty()) file.write_fixed_attribute(kDirectory, owner.directory);
    if (!owner.checkpoints.empty()) file.write_fixed_attribute(kCheckpoints, owner.checkpoints);
    for (const Attribute& attribute : attributes_of(identity, samples, record_bytes)) {
      if (attribute.is_number)
        file.write_attribute(attribute.name, std::uint64_t{std::stoull(attribute.text)});
      else
        file.write_fixed_attribute(attribute.name, attribute.text);
    }
    file.create_dataset(
        "records", hdf5::ElementType::u8, {rows, record_bytes},
        {.chunk = {1, record_bytes}, .extendable = false, .allocate_early = true, .fill = false});
    const hdf5::DatasetOptions zeros = {.chunk = {}, .allocate_early = true};
    file.create_dataset("slots", hdf5::ElementType::u32, {samples}, zeros)
        .write(0, std::span<const std::uint32_t>(slots_of_new_file(samples)));
    file.create_dataset("visits", hdf5::ElementType::u32, {samples}, zeros);
    file.create_dataset("checksums", hdf5::ElementType::u64, {samples}, zeros);
    file.create_dataset(kNeeded, hdf5::ElementType::u32, {1}, zeros)
        .write(0, std::span<const std::uint32_t>(std::vector<std::uint32_t>{identity.is_needed}));
    file.close();
  } catch (...) {
    ::unlink(place.c_str());
    throw;
  }
}

/// Returns nothing if the file is not a valid activation cache.
std::optional<hdf5::File> open_cache(const std::string& path) {
  try {
    hdf5::File file = hdf5::File::open_read_only(path);
    if (file.find_plain_attribute("format") == kFormat) return file;
  } catch (const UserError&) {
  }
  return std::nullopt;
}

/// Returns true if the file is needed, or if that cannot be read.
bool is_needed(const hdf5::File& file) try {
  const hdf5::Dataset dataset = file.open_dataset(kNeeded);
  std::vector<std::uint32_t> needed = {1};
  if (dataset.shape() == std::vector<std::uint64_t>{1}) dataset.read<std::uint32_t>(0, needed);
  return needed[0] != 0;
} catch (const UserError&) {
  return true;
}

CacheOwner owner_of(const hdf5::File& file) {
  return {file.find_plain_attribute(kRunId).value_or(""),
          file.find_plain_attribute(kDirectory).value_or(""),
          file.find_plain_attribute(kCheckpoints).value_or("")};
}

/// Compares runs. An output directory alone is not enough: it may have been moved away and created
/// again.
bool is_own(const CacheOwner& found, const CacheOwner& mine) {
  if (found.run_id.empty()) return false;
  return found.run_id == mine.run_id ||
         (found.directory == mine.directory && mine.former_runs.contains(found.run_id));
}

void check_owner(const hdf5::File& file, const std::string& path, const CacheOwner& owner) {
  const CacheOwner found = owner_of(file);
  if (is_own(found, owner) || !is_needed(file)) return;
  const auto or_unknown = [](const std::string& text) { return text.empty() ? "(unknown)" : text; };
  throw UserError({.what = fmt::format("is the activation cache of another run, which is not "
                                       "finished and may resume with it: run {} in {}",
                                       or_unknown(found.run_id), or_unknown(found.directory)),
                   .file = path,
                   .remedy = "set another cache.directory, or remove the file if that run will "
                             "not be resumed",
                   .keys = {"cache.directory"}});
}

}  // namespace

void check_spill_file_owner(const std::string& path, const CacheOwner& owner) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
  if (const std::optional<hdf5::File> cache = open_cache(path)) check_owner(*cache, path, owner);
}

bool is_spill_file_of(const std::string& path, const CacheOwner& owner) {
  const std::optional<hdf5::File> cache = open_cache(path);
  return cache && is_own(owner_of(*cache), owner);
}

std::optional<CacheOwner> run_that_needs(const std::string& path) {
  const std::optional<hdf5::File> cache = open_cache(path);
  if (!cache || !is_needed(*cache)) return std::nullopt;
  return owner_of(*cache);
}

void check_spill_file_datasets(const std::string& path) {
  const hdf5::File file = hdf5::File::open_read_only(path);
  for (const char* const name : kDatasets) file.open_dataset(name);
}

void let_replace_spill_file(const std::string& path) {
  const std::optional<std::uint64_t> offset =
      hdf5::File::open_read_only(path).open_dataset(kNeeded).file_offset();
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_CLOEXEC));
  const std::uint32_t no = 0;
  if (!offset || !file.is_open() ||
      ::pwrite(file.get(), &no, sizeof no, static_cast<off_t>(*offset)) != sizeof no ||
      ::fdatasync(file.get()) != 0)
    throw_system_error("cannot be released for other runs", path, errno);
}

std::uint64_t record_checksum(const std::uint8_t* bytes, std::size_t size) {
  return XXH3_64bits(bytes, size);
}

SpillFile::SpillFile(const std::string& path, const CacheIdentity& identity, std::uint64_t samples,
                     std::size_t record_bytes, SpillStart start, std::uint64_t spare,
                     std::uint64_t reserved)
    : path_(path),
      samples_(samples),
      record_bytes_(record_bytes),
      rows_(samples + spare),
      reserved_(std::min(spare, reserved)) {
  DELTAPIPE_ASSERT(record_bytes <= std::numeric_limits<std::uint32_t>::max(),
                   "HDF5 chunks are smaller than 4 GiB");
  DELTAPIPE_ASSERT(rows_ < RecordPlaces::kNone, "too many records");
  if (start == SpillStart::create) {
    create(identity);
  } else {
    open_descriptor(path_);
    const std::uint64_t rows = rows_;
    open_existing(identity);
    if (rows_ < rows) grow(identity, rows);
    // An earlier start may have had no checkpoints.
    if (identity.is_needed) set_needed(true);
  }
  read_tables();
  find_free_slots();
}

std::uint64_t SpillFile::bytes_needed(std::uint64_t samples, std::size_t record_bytes,
                                      std::uint64_t reserved) {
  return samples * (2 * sizeof(std::uint32_t) + sizeof(std::uint64_t)) +
         (samples + reserved) * record_bytes + kOverheadBytes;
}

void SpillFile::throw_foreign(const std::string& what, const std::string& value) const {
  throw UserError({.what = "not this run's activation cache: " + what,
                   .file = path_,
                   .value = value,
                   .remedy = "restore this run's file, or resume without its records with "
                             "checkpoint.mode = \"resync\""});
}

SpillFile::~SpillFile() {
  if (remove_at_end_) ::unlink(path_.c_str());
}

/// Identifies a damaged file that HDF5 can no longer read.
bool SpillFile::begins_as_cache_of(const CacheOwner& owner) const {
  std::string head(kOverheadBytes, '\0');
  const ssize_t count = ::pread(file_.get(), head.data(), head.size(), 0);
  if (count <= 0) return false;
  head.resize(static_cast<std::size_t>(count));
  // Matches a whole attribute: HDF5 stores a zero before and after its text.
  const auto says = [&](const std::string& text) {
    return !text.empty() && head.find('\0' + text + '\0') != std::string::npos;
  };
  const auto says_former = [&] {
    return says(owner.directory) &&
           std::any_of(owner.former_runs.begin(), owner.former_runs.end(), says);
  };
  return head.starts_with("\x89HDF\r\n\x1a\n") && says(kFormat) &&
         (says(owner.run_id) || says_former());
}

/// Removes the file at `path_`. Allowed only for a cache that no process uses and no other run
/// needs, or for an empty file.
void SpillFile::remove_former(const CacheOwner& owner) {
  struct stat status {};
  if (::lstat(path_.c_str(), &status) != 0) return;
  bool is_cache = S_ISREG(status.st_mode);
  if (is_cache && status.st_size > 0) {
    open_descriptor(path_);
    const std::optional<hdf5::File> cache = open_cache(path_);
    if (cache) check_owner(*cache, path_, owner);
    is_cache = cache || begins_as_cache_of(owner);
  }
  if (!is_cache)
    throw UserError({.what = "a file that is not a valid activation cache is in the way",
                     .file = path_,
                     .remedy = "move or remove it, or set another cache.directory"});
  if (::unlink(path_.c_str()) != 0)
    throw UserError({.what = "cannot be replaced: " + system_message(errno),
                     .file = path_,
                     .remedy = "set another cache.directory"});
  file_ = FileDescriptor();
}

/// Removes the former file first: there may not be room for two.
void SpillFile::create(const CacheIdentity& identity) {
  remove_former(identity.owner);
  std::random_device random;
  id_ = std::uint64_t{random()} << 32 | random();
  make(identity, [] {});
}

/// Creates a new file, which gets its name after `fill` has written its contents.
void SpillFile::make(const CacheIdentity& identity, const std::function<void()>& fill) {
  check_disk_space(directory_of(path_), bytes_needed(samples_, record_bytes_, reserved_), path_);
  const std::string place = temporary_name_in(directory_of(path_));
  create_file(place, path_, id_, identity, samples_, record_bytes_, rows_);
  try {
    open_descriptor(place);
    locate_datasets(place);
    reserve_space();
    fill();
    if (::rename(place.c_str(), path_.c_str()) != 0)
      throw_system_error("the activation cache cannot be created", path_, errno);
    sync_directory(directory_of(path_));
  } catch (...) {
    ::unlink(place.c_str());
    throw;
  }
}

/// Copies the file to one with more rows; rows keep their numbers.
void SpillFile::grow(const CacheIdentity& identity, std::uint64_t rows) {
  const std::uint64_t former_rows = std::exchange(rows_, rows);
  const std::uint64_t records = records_offset_, slots = slots_offset_, visits = visits_offset_,
                      checksums = checksums_offset_;
  FileDescriptor former = std::exchange(file_, FileDescriptor());
  std::vector<std::uint8_t> bytes;
  const auto copy = [&](std::uint64_t from, std::uint64_t to, std::uint64_t size) {
    bytes.resize(size);
    std::swap(file_, former);
    read_bytes(bytes.data(), size, from);
    std::swap(file_, former);
    write_bytes(bytes.data(), size, to);
  };
  make(identity, [&] {
    for (std::uint64_t row = 0; row < former_rows; ++row)
      copy(records + row * record_bytes_, records_offset_ + row * record_bytes_, record_bytes_);
    copy(slots, slots_offset_, samples_ * sizeof(std::uint32_t));
    copy(visits, visits_offset_, samples_ * sizeof(std::uint32_t));
    copy(checksums, checksums_offset_, samples_ * sizeof(std::uint64_t));
    sync();
  });
}

/// Opens the file exclusively for this process. HDF5 does not check this lock, so that others may
/// read the file.
void SpillFile::open_descriptor(const std::string& place) {
  FileDescriptor file(::open(place.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
  if (!file.is_open())
    throw UserError({.what = "the activation cache cannot be opened: " + system_message(errno),
                     .file = path_,
                     .remedy = "check cache.directory and the file's permissions"});
#ifdef F_OFD_SETLK
  struct flock region {};
  region.l_type = F_WRLCK;
  region.l_whence = SEEK_SET;
  region.l_start = std::numeric_limits<off_t>::max() - 1;
  region.l_len = 1;
  if (::fcntl(file.get(), F_OFD_SETLK, &region) != 0 && (errno == EAGAIN || errno == EACCES))
    throw UserError({.what = "another process uses this activation cache",
                     .file = path_,
                     .remedy = "end that run or set another cache.directory"});
#endif
  file_ = std::move(file);
}

void SpillFile::read_identity(const CacheIdentity& expected) {
  const hdf5::File file = hdf5::File::open_read_only(path_);
  for (const Attribute& attribute : attributes_of(expected, samples_, record_bytes_)) {
    const std::string found = file.find_plain_attribute(attribute.name).value_or("none");
    if (found != attribute.text && std::string_view(attribute.name) == kVersion)
      throw UserError({.what = "is the activation cache of another version of the program",
                       .file = path_,
                       .value = fmt::format("format_version {}, not {}", found, attribute.text),
                       .remedy = "resume with that version, or with checkpoint.mode = \"resync\", "
                                 "which replaces the file"});
    if (found != attribute.text)
      throw_foreign(fmt::format("{} is not {}", attribute.name, attribute.text), found);
  }
  const std::string id = file.find_plain_attribute("file_id").value_or("none");
  if (std::from_chars(id.data(), id.data() + id.size(), id_).ec != std::errc())
    throw_foreign("it has no file_id", id);
  const std::string run_id = file.find_plain_attribute(kRunId).value_or("");
  if (run_id != expected.owner.run_id)
    throw_foreign("run_id is not " + expected.owner.run_id, run_id);
}

void SpillFile::open_existing(const CacheIdentity& identity) try {
  read_identity(identity);
  locate_datasets(path_);
} catch (const UserError& error) {
  // HDF5 gives a remedy for files of other kinds, or none.
  if (error.mistake().remedy.find("checkpoint.mode") != std::string::npos) throw;
  throw UserError({.what = "the activation cache is damaged: " + error.mistake().what,
                   .file = path_,
                   .value = error.mistake().value,
                   .remedy = kDamagedRemedy});
}

void SpillFile::locate_datasets(const std::string& place) {
  const hdf5::File file = hdf5::File::open_read_only(place);
  const hdf5::Dataset records = file.open_dataset("records");
  const hdf5::Dataset slots = file.open_dataset("slots");
  const hdf5::Dataset visits = file.open_dataset("visits");
  const hdf5::Dataset checksums = file.open_dataset("checksums");
  const hdf5::Dataset needed = file.open_dataset(kNeeded);
  const auto is = [](const hdf5::Dataset& dataset, hdf5::ElementType type,
                     const std::vector<std::uint64_t>& shape) {
    return dataset.element_type() == type && dataset.shape() == shape;
  };
  rows_ = records.rows();
  if (!is(records, hdf5::ElementType::u8, {rows_, record_bytes_}) || rows_ < samples_ ||
      rows_ >= RecordPlaces::kNone || !is(slots, hdf5::ElementType::u32, {samples_}) ||
      !is(visits, hdf5::ElementType::u32, {samples_}) ||
      !is(checksums, hdf5::ElementType::u64, {samples_}) ||
      !is(needed, hdf5::ElementType::u32, {1}))
    throw_foreign("its datasets have other shapes or types", "");

  const auto records_at = records.chunk_file_offset(0, record_bytes_);
  const auto slots_at = slots.file_offset();
  const auto visits_at = visits.file_offset();
  const auto checksums_at = checksums.file_offset();
  const auto needed_at = needed.file_offset();
  const auto follows = [&](std::uint64_t row) {
    return records.chunk_file_offset(row, record_bytes_) == *records_at + row * record_bytes_;
  };
  if (!records_at || !slots_at || !visits_at || !checksums_at || !needed_at ||
      !follows(rows_ / 2) || !follows(rows_ - 1))
    throw_foreign("its records are not stored one after another (was it repacked?)", "");
  records_offset_ = *records_at;
  slots_offset_ = *slots_at;
  visits_offset_ = *visits_at;
  checksums_offset_ = *checksums_at;
  needed_offset_ = *needed_at;

  struct stat status {};
  const std::uint64_t end = std::max({records_offset_ + rows_ * record_bytes_,
                                      slots_offset_ + samples_ * sizeof(std::uint32_t),
                                      visits_offset_ + samples_ * sizeof(std::uint32_t),
                                      checksums_offset_ + samples_ * sizeof(std::uint64_t),
                                      needed_offset_ + sizeof(std::uint32_t)});
  if (::fstat(file_.get(), &status) != 0 || static_cast<std::uint64_t>(status.st_size) < end)
    throw_foreign("the file is truncated", fmt::format("{} bytes, not {}", status.st_size, end));
}

/// Reserves space so that the disk cannot become full later, except for rows that are only needed
/// when checkpoints fail.
void SpillFile::reserve_space() {
  struct stat status {};
  if (::fstat(file_.get(), &status) != 0) return;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  reserve(0, std::min(size, records_offset_ + (samples_ + reserved_) * record_bytes_));
  reserve(std::min(size, records_offset_ + rows_ * record_bytes_), size);
}

/// Does nothing on file systems that cannot reserve space.
void SpillFile::reserve(std::uint64_t begin, std::uint64_t end) {
#ifdef __linux__
  if (begin >= end) return;
  int result = 0;
  do {
    result =
        ::fallocate(file_.get(), 0, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || !is_no_space(errno)) return;
  throw_no_space(path_, end, errno);
#else
  (void)begin;
  (void)end;
#endif
}

void SpillFile::read_tables() {
  checksums_.resize(samples_);
  read_bytes(checksums_.data(), samples_ * sizeof(std::uint64_t), checksums_offset_);
  slots_.resize(samples_);
  read_bytes(slots_.data(), samples_ * sizeof(std::uint32_t), slots_offset_);
  // After a crash of the machine two samples may have the same row; the second one's record is
  // damaged.
  std::vector<bool> taken(rows_);
  for (std::uint32_t& slot : slots_)
    if (slot >= rows_ || taken[slot])
      slot = RecordPlaces::kNone;
    else
      taken[slot] = true;
}

/// Checks that every row is used at most once.
void SpillFile::check_places(const RecordPlaces& places) const {
  std::vector<bool> taken(rows_);
  for (const std::uint32_t slot : places.slots) {
    if (slot == RecordPlaces::kNone) continue;
    if (slot >= rows_ || taken[slot])
      throw_foreign("two samples have one record, or one outside of the file",
                    std::to_string(slot));
    taken[slot] = true;
  }
}

/// Finds the rows that neither samples nor generations use.
void SpillFile::find_free_slots() {
  std::vector<bool> taken(rows_);
  for (const std::uint32_t slot : slots_)
    if (slot != RecordPlaces::kNone) taken[slot] = true;
  free_slots_.clear();
  for (std::uint64_t row = rows_; row-- > 0;)
    if (!taken[row] && (holders_.empty() || holders_[row] == 0))
      free_slots_.push_back(static_cast<std::uint32_t>(row));
}

RecordPlaces SpillFile::hold(std::uint64_t generation) {
  if (!std::exchange(marked_needed_, true)) set_needed(true);
  const std::lock_guard lock(mutex_);
  holders_.resize(rows_);
  std::vector<std::uint32_t>& held = generations_[generation];
  DELTAPIPE_ASSERT(held.empty(), fmt::format("generation {} twice", generation));
  held = slots_;
  for (const std::uint32_t slot : held)
    if (slot != RecordPlaces::kNone) ++holders_[slot];
  return {slots_, checksums_};
}

void SpillFile::let_go(std::uint64_t generation) {
  const std::lock_guard lock(mutex_);
  const auto found = generations_.find(generation);
  if (found == generations_.end()) return;
  for (std::uint64_t sample = 0; sample < samples_; ++sample) {
    const std::uint32_t slot = found->second[sample];
    if (slot == RecordPlaces::kNone || --holders_[slot] > 0 || slots_[sample] == slot) continue;
    free_slots_.push_back(slot);
  }
  generations_.erase(found);
}

void SpillFile::go_back(const RecordPlaces& places, const std::vector<std::uint32_t>& visits,
                        std::uint64_t generation) {
  check_places(places);
  slots_ = places.slots;
  checksums_ = places.checksums;
  generations_.clear();
  holders_.clear();
  hold(generation);
  find_free_slots();
  write_bytes(slots_.data(), samples_ * sizeof(std::uint32_t), slots_offset_);
  write_bytes(checksums_.data(), samples_ * sizeof(std::uint64_t), checksums_offset_);
  write_bytes(visits.data(), samples_ * sizeof(std::uint32_t), visits_offset_);
}

/// Returns the sample's own row, unless it does not have one or a generation holds it.
std::uint32_t SpillFile::slot_to_write(std::uint64_t sample) {
  const std::lock_guard lock(mutex_);
  const std::uint32_t slot = slots_[sample];
  if (slot != RecordPlaces::kNone && (holders_.empty() || holders_[slot] == 0)) return slot;
  if (free_slots_.empty())
    throw UserError({.what = "the activation cache has no spare record left: too many checkpoints "
                             "could not be written",
                     .file = path_,
                     .remedy = "find out why, and start the run again from the last one"});
  const std::uint32_t fresh = free_slots_.back();
  free_slots_.pop_back();
  slots_[sample] = fresh;
  return fresh;
}

std::vector<std::uint32_t> SpillFile::read_visits() {
  std::vector<std::uint32_t> visits(samples_);
  read_bytes(visits.data(), samples_ * sizeof(std::uint32_t), visits_offset_);
  return visits;
}

void SpillFile::write_bytes(const void* bytes, std::size_t size, std::uint64_t offset) {
  const char* from = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t written = ::pwrite(file_.get(), from, size, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && is_no_space(errno))
      throw_no_space(path_, bytes_needed(samples_, record_bytes_, reserved_), errno);
    if (written <= 0)
      throw UserError({.what = "the activation cache cannot be written: " + system_message(errno),
                       .file = path_,
                       .remedy = "check the disk or set another cache.directory"});
    from += written;
    size -= static_cast<std::size_t>(written);
    offset += static_cast<std::uint64_t>(written);
  }
}

void SpillFile::read_bytes(void* bytes, std::size_t size, std::uint64_t offset) {
  if (try_read_bytes(bytes, size, offset)) return;
  throw UserError({.what = "the activation cache cannot be read: " + system_message(EIO),
                   .file = path_,
                   .remedy = kDamagedRemedy});
}

/// Returns false if the disk cannot read the range (EIO).
bool SpillFile::try_read_bytes(void* bytes, std::size_t size, std::uint64_t offset) {
  char* to = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t count = ::pread(file_.get(), to, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EIO) return false;
    if (count <= 0)
      throw UserError({.what = "the activation cache cannot be read: " +
                               (count == 0 ? "the file was truncated" : system_message(errno)),
                       .file = path_,
                       .remedy = kDamagedRemedy});
    to += count;
    size -= static_cast<std::size_t>(count);
    offset += static_cast<std::uint64_t>(count);
  }
  return true;
}

void SpillFile::write_record(std::uint64_t sample, const std::uint8_t* bytes,
                             std::uint32_t visits) {
  const std::uint64_t checksum = record_checksum(bytes, record_bytes_);
  const std::uint32_t former = slots_[sample], slot = slot_to_write(sample);
  write_bytes(bytes, record_bytes_, records_offset_ + slot * record_bytes_);
  write_bytes(&checksum, sizeof checksum, checksums_offset_ + sample * sizeof checksum);
  write_bytes(&visits, sizeof visits, visits_offset_ + sample * sizeof visits);
  if (slot != former) write_bytes(&slot, sizeof slot, slots_offset_ + sample * sizeof slot);
  checksums_[sample] = checksum;
}

bool SpillFile::try_read_record(std::uint64_t sample, std::uint8_t* bytes) {
  if (slots_[sample] == RecordPlaces::kNone) return false;
  return try_read_bytes(bytes, record_bytes_, records_offset_ + slots_[sample] * record_bytes_) &&
         record_checksum(bytes, record_bytes_) == checksums_[sample];
}

void SpillFile::read_record(std::uint64_t sample, std::uint8_t* bytes) {
  if (try_read_record(sample, bytes)) return;
  throw UserError(
      {.what = fmt::format("the record of sample {} is damaged: its checksum is {}, not {}", sample,
                           hex_digits(record_checksum(bytes, record_bytes_)),
                           hex_digits(checksums_[sample])),
       .file = path_,
       .remedy = "the disk returned other bytes than were written: check it, or set "
                 "another cache.directory, and start the run again"});
}

void SpillFile::forget_record(std::uint64_t sample) {
  const std::uint32_t none = 0;
  write_bytes(&none, sizeof none, visits_offset_ + sample * sizeof none);
}

void SpillFile::set_needed(bool needed) {
  const std::uint32_t value = needed ? 1 : 0;
  write_bytes(&value, sizeof value, needed_offset_);
}

void SpillFile::let_replace() {
  marked_needed_ = false;
  set_needed(false);
  sync();
}

void SpillFile::sync() {
  if (::fdatasync(file_.get()) == 0) return;
  if (is_no_space(errno))
    throw_no_space(path_, bytes_needed(samples_, record_bytes_, reserved_), errno);
  throw UserError(
      {.what = "the activation cache cannot be flushed to the disk: " + system_message(errno),
       .file = path_,
       .remedy = "check the disk or set another cache.directory"});
}

}  // namespace deltapipe
