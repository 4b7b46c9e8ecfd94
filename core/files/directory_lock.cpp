// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/directory_lock.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <ctime>
#include <random>
#include <string_view>
#include <thread>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace {

constexpr const char* kLockFile = "/.deltapipe.lock";

enum class Attempt { locked, held_by_another, unsupported };

Attempt lock(int descriptor) {
#ifdef F_OFD_SETLK
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  int result = 0;
  do {
    result = ::fcntl(descriptor, F_OFD_SETLK, &whole);
  } while (result != 0 && errno == EINTR);
#else
  const int result = ::flock(descriptor, LOCK_EX | LOCK_NB);
#endif
  if (result == 0) return Attempt::locked;
  if (errno == EAGAIN || errno == EACCES || errno == EWOULDBLOCK) return Attempt::held_by_another;
  return Attempt::unsupported;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  if (::gmtime_r(&now, &parts) == nullptr) return "?";
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

/// The lines of a lock file: run id, then the holder, in words.
struct Owner {
  std::string run_id;
  std::string description;
};

Owner read_owner(int descriptor) {
  std::array<char, 512> text{};
  const ssize_t size = ::pread(descriptor, text.data(), text.size(), 0);
  const std::string content(text.data(), size > 0 ? static_cast<std::size_t>(size) : 0);
  Owner owner;
  const std::size_t first = content.find('\n');
  owner.run_id = content.substr(0, first);
  if (first == std::string::npos) return owner;
  for (const char c : content.substr(first + 1, content.find('\n', first + 1) - first - 1))
    owner.description += c >= ' ' && c <= '~' ? c : '?';
  return owner;
}

/// Returns true if `path` still names the open file: its former holder may have removed it.
bool is_still_named(int descriptor, const std::string& path) {
  struct stat open_file {};
  struct stat named_file {};
  return ::fstat(descriptor, &open_file) == 0 && ::lstat(path.c_str(), &named_file) == 0 &&
         open_file.st_dev == named_file.st_dev && open_file.st_ino == named_file.st_ino;
}

}  // namespace

std::string random_digits(std::size_t count) {
  std::random_device random;
  std::string digits;
  for (std::size_t i = 0; i < count; ++i) digits += "0123456789abcdef"[random() % 16];
  return digits;
}

std::string new_run_id() {
  return random_digits(32);
}

bool is_locked(const std::string& directory) {
  const FileDescriptor file(
      ::open((directory + kLockFile).c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!file.is_open()) return errno != ENOENT && errno != ENOTDIR;
  return lock(file.get()) == Attempt::held_by_another;
}

DirectoryLock::DirectoryLock(const std::string& directory, const std::string& run_id,
                             const Patience& patience)
    : directory_(directory), path_(directory + kLockFile) {
  for (int looks = 0;;) {
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    FileDescriptor file(::open(path_.c_str(), flags, 0666));
    if (!file.is_open()) throw_system_error("the lock file cannot be opened", path_, errno);
    struct stat status {};
    if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
      throw UserError({.what = "is not a lock file of deltapipe",
                       .file = path_,
                       .remedy = "remove it or choose another directory"});
    const Attempt attempt = lock(file.get());
    const int error = errno;
    if (attempt == Attempt::locked && is_still_named(file.get(), path_)) {
      // The lock covers only this machine: the run already holds it on another one.
      const std::string former = read_owner(file.get()).run_id;
      if (former == run_id) return;
      found_former_ = !former.empty();
      file_ = std::move(file);
      write_owner(run_id);
      return;
    }
    const Owner owner = read_owner(file.get());
    (void)file.close();
    if (attempt == Attempt::locked) continue;
    if (attempt == Attempt::unsupported) {
      (void)::unlink(path_.c_str());
      warning_ = fmt::format(
          "directories on this file system cannot be locked ({}): make sure that no other run "
          "writes into {}",
          system_message(error), directory_);
      return;
    }
    if (owner.run_id == run_id) return;
    // A new holder may not have written its name yet.
    if (looks++ == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    if (patience && patience(owner.description)) continue;
    throw UserError({.what = "another run writes into this directory" +
                             (owner.description.empty() ? "" : ": " + owner.description),
                     .file = directory_,
                     .remedy = "wait for its end, or choose another directory"});
  }
}

void DirectoryLock::write_owner(const std::string& run_id) {
  text_ =
      fmt::format("{}\nprocess {} on {} since {}\n", run_id, ::getpid(), host_name(), utc_now());
  const bool is_written =
      ::ftruncate(file_.get(), 0) == 0 &&
      ::pwrite(file_.get(), text_.data(), text_.size(), 0) == static_cast<ssize_t>(text_.size()) &&
      ::fsync(file_.get()) == 0;
  if (is_written) return;
  const int error = errno;
  release();
  throw_system_error("the lock file cannot be written", path_, error);
}

bool DirectoryLock::names_this_process() const {
  // Reopened, because network file systems then read the server's copy.
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::array<char, 512> text{};
  const ssize_t size = ::pread(file.get(), text.data(), text.size(), 0);
  // If two processes write at the same time, the end of a longer text may remain after the last
  // one.
  return size > 0 &&
         std::string_view(text.data(), static_cast<std::size_t>(size)).starts_with(text_);
}

void DirectoryLock::confirm() {
  if (file_.is_open() && !names_this_process()) (void)file_.close();
}

DirectoryLock::~DirectoryLock() {
  release();
}

void DirectoryLock::release() noexcept {
  if (!file_.is_open()) return;
  if (!(found_former_ && leaves_former_)) (void)::unlink(path_.c_str());
  (void)file_.close();
}

}  // namespace deltapipe
