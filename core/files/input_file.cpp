// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/input_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/base/error.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace {

constexpr std::size_t block_bytes = std::size_t{4} << 20;

const char* kind_of(mode_t mode) {
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "not a regular file";
}

void check_regular(const std::string& path, mode_t mode) {
  if (S_ISDIR(mode)) throw_system_error("cannot be read", path, EISDIR);
  if (S_ISREG(mode)) return;
  throw UserError({.what = std::string("cannot be read: this is ") + kind_of(mode),
                   .file = path,
                   .remedy = "name a regular file"});
}

}  // namespace

ReadOnlyFile::ReadOnlyFile(const std::string& path) : path_(path) {
  if (path.find('\0') != std::string::npos) {
    throw UserError({.what = "cannot be read: a path cannot contain NUL", .file = path});
  }
  struct stat status {};
  // Checked before opening, because opening alone already affects a device or a pipe. Checked again
  // afterwards, because another file may have replaced it.
  if (::stat(path.c_str(), &status) != 0) throw_system_error("cannot be read", path, errno);
  check_regular(path, status.st_mode);
  file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file_.is_open() || ::fstat(file_.get(), &status) != 0)
    throw_system_error("cannot be read", path, errno);
  check_regular(path, status.st_mode);
  size_ = static_cast<std::uint64_t>(status.st_size);
}

void ReadOnlyFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  DELTAPIPE_ASSERT(file_.is_open(), path_);
  while (!bytes.empty()) {
    const ssize_t got =
        ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_system_error("reading failed", path_, errno);
    if (got == 0) {
      throw UserError({.what = fmt::format("ends before byte {}", offset + bytes.size()),
                       .file = path_,
                       .remedy = "the file was cut off; copy or download it again"});
    }
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

void ReadOnlyFile::for_each_block(const std::function<void(std::string_view)>& take) const {
  std::string block;
  for (std::uint64_t offset = 0; offset < size_; offset += block.size()) {
    block.resize(static_cast<std::size_t>(std::min<std::uint64_t>(block_bytes, size_ - offset)));
    read_at(offset, std::as_writable_bytes(std::span(block)));
    take(block);
  }
}

std::string read_text_file(const std::string& path, std::uint64_t max_bytes) {
  const ReadOnlyFile file(path);
  if (file.size() > max_bytes) {
    throw UserError(
        {.what = fmt::format("is larger than the {} bytes that such a file may have", max_bytes),
         .file = path,
         .value = fmt::format("{} bytes", file.size()),
         .remedy = "check that this is the right file"});
  }
  std::string text(static_cast<std::size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace deltapipe
