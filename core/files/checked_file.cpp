#include "core/files/checked_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/error.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace {

/// Where a link points to, so that replacing the file keeps the link.
std::string resolve_link(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_symlink(path, ignored)) return path;
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(path, ignored);
  return ignored ? path : resolved.string();
}

/// The name of a new or renamed file survives a crash only when its directory is synced too.
void sync_directory_of(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  const int descriptor =
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  // Some network file systems refuse this; the data itself has been synced by then.
  (void)::fsync(descriptor);
  (void)::close(descriptor);
}

}  // namespace

void write_file_atomically(const std::string& path, std::span<const std::byte> content) {
  AtomicFile file(path);
  file.append(content);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view content) {
  write_file_atomically(path, std::as_bytes(std::span(content)));
}

void make_directory(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) throw_system_error("cannot make the directory", path, error.value());
}

AtomicFile::AtomicFile(const std::string& path)
    : path_(path), target_(resolve_link(path)), temporary_(target_ + ".partial") {
  struct stat status {};
  if (::stat(target_.c_str(), &status) == 0) {
    if (S_ISDIR(status.st_mode)) throw_system_error("cannot be written", path_, EISDIR);
    if (!S_ISREG(status.st_mode)) {
      throw UserError({.what = "cannot be written: not a regular file",
                       .file = path_,
                       .remedy = "choose another place"});
    }
  }
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor_ < 0) throw_system_error("cannot be written", path_, errno);
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      temporary_(std::move(other.temporary_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      end_(other.end_) {}

AtomicFile::~AtomicFile() {
  discard();
}

void AtomicFile::discard() noexcept {
  if (descriptor_ < 0) return;
  (void)::close(std::exchange(descriptor_, -1));
  (void)::unlink(temporary_.c_str());
}

void AtomicFile::fail(const std::string& action, int error) {
  discard();
  throw_system_error(action, path_, error);
}

void AtomicFile::reserve(std::uint64_t bytes) {
  DELTAPIPE_ASSERT(descriptor_ >= 0, path_);
  if (bytes == 0) return;
  const int error = ::posix_fallocate(descriptor_, 0, static_cast<off_t>(bytes));
  // A file system without preallocation is no mistake: a full disk then shows while writing.
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL) {
    fail("cannot take " + std::to_string(bytes) + " bytes of disk space", error);
  }
}

void AtomicFile::append(std::span<const std::byte> bytes) {
  write_at(end_, bytes);
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  DELTAPIPE_ASSERT(descriptor_ >= 0, path_);
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("writing failed", errno);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  end_ = std::max(end_, offset);
}

void AtomicFile::commit() {
  DELTAPIPE_ASSERT(descriptor_ >= 0, path_);
  if (::fsync(descriptor_) != 0) fail("writing failed", errno);
  // After close() the descriptor is gone also when it reports an error.
  if (::close(std::exchange(descriptor_, -1)) != 0 ||
      ::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    (void)::unlink(temporary_.c_str());
    throw_system_error("writing failed", path_, error);
  }
  sync_directory_of(target_);
}

}  // namespace deltapipe
