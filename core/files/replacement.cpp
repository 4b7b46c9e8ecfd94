// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/replacement.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/files/directory_lock.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPartial = ".deltapipe-partial-";
/// Followed by 16 hexadecimals, '-' and the name of the directory that was moved aside.
constexpr std::string_view kAside = ".deltapipe-aside-";
constexpr std::size_t kDigits = 16;
constexpr int kAttempts = 100;

/// Finds the part of `name` after `prefix` and its digits; returns false if the name does not have
/// this pattern.
bool is_named(std::string_view name, std::string_view prefix, std::string_view& rest) {
  if (!name.starts_with(prefix) || name.size() < prefix.size() + kDigits) return false;
  const std::string_view digits = name.substr(prefix.size(), kDigits);
  rest = name.substr(prefix.size() + kDigits);
  return digits.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string name_of(const std::string& path) {
  return fs::path(path).filename().string();
}

bool exists(const std::string& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// Exchanges two names; returns false if this kernel or file system cannot.
bool exchange_names(const std::string& a, const std::string& b) {
#if defined(__linux__) && defined(RENAME_EXCHANGE)
  if (::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0) return true;
  if (errno != EINVAL && errno != ENOSYS && errno != EOPNOTSUPP)
    throw_system_error("cannot be replaced", b, errno);
#else
  (void)a;
  (void)b;
#endif
  return false;
}

void rename_or_throw(const std::string& from, const std::string& to, const std::string& target) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw_system_error("cannot be replaced", target, errno);
}

/// Renames the old directory to `aside`, and then `fresh` to its name.
void swap_by_renames(const std::string& fresh, const std::string& target,
                     const std::string& aside) {
  rename_or_throw(target, aside, target);
  if (::rename(fresh.c_str(), target.c_str()) == 0) return;
  const int error = errno;
  (void)::rename(aside.c_str(), target.c_str());
  throw_system_error("cannot be replaced", target, error);
}

bool is_expendable(const std::string& target, const AtomicDirectory::Expendable& expendable) {
  struct stat status {};
  if (::lstat(target.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return false;
  std::error_code error;
  for (fs::directory_iterator entry(target, error), end; !error && entry != end;
       entry.increment(error)) {
    std::string_view rest;
    const std::string name = entry->path().filename().string();
    if (!is_named(name, kPartial, rest) && !expendable(name)) return false;
  }
  return !error;
}

/// Returns true for errors of file systems that cannot sync directories.
bool cannot_sync(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP || error == EBADF ||
         error == EROFS;
}

/// Returns the first free name of TARGET.SUFFIX, TARGET.SUFFIX-2, ...
std::string free_name(const std::string& target, const std::string& suffix) {
  std::string name = target + suffix;
  for (int i = 2; exists(name); ++i) name = fmt::format("{}{}-{}", target, suffix, i);
  return name;
}

}  // namespace

std::string directory_of(const std::string& path) {
  const fs::path parent = fs::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void sync_directory(const std::string& directory) {
  const FileDescriptor file(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!file.is_open()) return;  // a directory may be writable without being readable
  if (::fsync(file.get()) != 0 && !cannot_sync(errno))
    throw_system_error("cannot be flushed to the disk", directory, errno);
}

void make_directory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> parents;  // parents of directories that are created now
  for (fs::path at = path; !at.empty() && !fs::exists(at, error); at = at.parent_path())
    parents.push_back(directory_of(at.string()));
  fs::create_directories(path, error);
  if (error) throw_system_error("cannot create the directory", path, error.value());
  for (const std::string& parent : parents) sync_directory(parent);
}

void expect_possible_directory(const std::string& path) {
  const auto refuse = [&](int reason) {
    throw_system_error("cannot create the directory", path, reason);
  };
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  for (;;) {
    const fs::file_status status = fs::status(at, error);
    if (status.type() == fs::file_type::directory) break;
    if (status.type() != fs::file_type::not_found)
      refuse(status.type() == fs::file_type::none ? error.value() : ENOTDIR);
    if (!at.has_relative_path()) return;
    at = at.parent_path();
  }
  if (::access(at.c_str(), W_OK | X_OK) != 0) refuse(errno);
}

std::string temporary_name_in(const std::string& directory) {
  return (fs::path(directory) / (std::string(kPartial) + random_digits(kDigits))).string();
}

void remove_leftovers(const std::string& directory) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  for (const std::string& name : names) {
    const fs::path path = fs::path(directory) / name;
    std::string_view rest;
    if (is_named(name, kPartial, rest) && rest.empty() && !is_locked(path.string()))
      fs::remove_all(path, error);
    if (!is_named(name, kAside, rest) || rest.size() < 2) continue;
    const fs::path target = fs::path(directory) / std::string(rest.substr(1));
    if (exists(target.string()))
      fs::remove_all(path, error);
    else
      fs::rename(path, target, error);
  }
}

void write_file_atomically(const std::string& path, std::span<const std::byte> content) {
  AtomicFile file(path);
  file.append(content);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view content) {
  write_file_atomically(path, std::as_bytes(std::span(content)));
}

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) throw_system_error("cannot be written", path_, EISDIR);
    if (!S_ISREG(status.st_mode) && !S_ISLNK(status.st_mode)) {
      throw UserError({.what = "cannot be written: not a regular file",
                       .file = path_,
                       .remedy = "choose another place"});
    }
  }
  for (int attempt = 0; !file_.is_open(); ++attempt) {
    temporary_ = temporary_name_in(directory_of(path));
    // Opened for reading as well: without fallocate, the C library reads the existing content.
    file_ = FileDescriptor(
        ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file_.is_open() && (errno != EEXIST || attempt == kAttempts))
      throw_system_error("cannot be written", path_, errno);
  }
}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::discard() noexcept {
  if (!file_.is_open()) return;
  (void)file_.close();
  (void)::unlink(temporary_.c_str());
}

void AtomicFile::fail(const std::string& action, int error) {
  discard();
  throw_system_error(action, path_, error);
}

void AtomicFile::reserve(std::uint64_t bytes) {
  DELTAPIPE_ASSERT(file_.is_open(), path_);
  if (bytes == 0) return;
  const int error = ::posix_fallocate(file_.get(), 0, static_cast<off_t>(bytes));
  // A file system without preallocation is not an error: a full disk is then found while writing.
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    fail(fmt::format("cannot allocate {} bytes of disk space", bytes), error);
  }
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_at(end_, bytes);
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  DELTAPIPE_ASSERT(file_.is_open(), path_);
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("writing failed", errno);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  end_ = std::max(end_, offset);
}

void AtomicFile::commit() {
  DELTAPIPE_ASSERT(file_.is_open(), path_);
  if (::fsync(file_.get()) != 0) fail("writing failed", errno);
  if (!file_.close() || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    (void)::unlink(temporary_.c_str());
    throw_system_error("writing failed", path_, error);
  }
  sync_directory(directory_of(path_));
}

AtomicDirectory::AtomicDirectory(const std::string& target, Expendable expendable,
                                 DirectorySwap swap)
    : target_(target), expendable_(std::move(expendable)), swap_(swap) {
  for (int attempt = 0;; ++attempt) {
    temporary_ = temporary_name_in(directory_of(target));
    if (::mkdir(temporary_.c_str(), 0777) == 0) return;
    if (errno == EEXIST && attempt < kAttempts) continue;
    const int error = errno;
    temporary_.clear();
    throw_system_error("cannot be created", target, error);
  }
}

AtomicDirectory::~AtomicDirectory() {
  if (temporary_.empty()) return;
  std::error_code ignored;
  fs::remove_all(temporary_, ignored);
}

std::string AtomicDirectory::commit() {
  DELTAPIPE_ASSERT(!temporary_.empty(), target_);
  sync_directory(temporary_);
  std::string former;
  try {
    former = exists(target_) ? swap_with_target() : move_to_target();
  } catch (const UserError& error) {
    if (is_in_place_) throw;
    const std::string name = free_name(target_, ".new");
    if (::rename(temporary_.c_str(), name.c_str()) != 0) throw;
    temporary_.clear();
    throw UserError({.what = error.what(), .remedy = "the new one is in " + name});
  }
  temporary_.clear();
  return former;
}

std::string AtomicDirectory::move_to_target() {
  rename_or_throw(temporary_, target_, target_);
  temporary_.clear();
  sync_place();
  return "";
}

void AtomicDirectory::sync_place() {
  is_in_place_ = true;
  try {
    sync_directory(directory_of(target_));
  } catch (const UserError& error) {
    throw UserError({.what = error.what(),
                     .remedy = target_ + " is complete, but may not survive a loss of power"});
  }
}

std::string AtomicDirectory::swap_with_target() {
  const bool keep = !is_expendable(target_, expendable_);
  const std::string former = keep ? free_name(target_, ".former") : "";
  // A directory that is retained has a permanent name at every moment.
  if (keep && swap_ == DirectorySwap::exchange) {
    rename_or_throw(temporary_, former, target_);
    temporary_ = former;
  }
  if (swap_ == DirectorySwap::two_renames || !exchange_names(temporary_, target_)) {
    const std::string aside = fmt::format("{}/{}{}-{}", directory_of(target_), kAside,
                                          random_digits(kDigits), name_of(target_));
    swap_by_renames(temporary_, target_, aside);
    temporary_ = keep ? "" : aside;
    if (keep) rename_or_throw(aside, former, target_);
  }
  try {
    sync_place();
  } catch (const UserError&) {
    // A crash may bring back the old names: the old directory is not removed.
    if (!keep) (void)::rename(temporary_.c_str(), free_name(target_, ".former").c_str());
    temporary_.clear();
    throw;
  }
  std::error_code ignored;
  if (!keep) fs::remove_all(temporary_, ignored);
  return former;
}

}  // namespace deltapipe
