// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/written_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <vector>

#include "core/files/system_error.hpp"

namespace deltapipe {

namespace {

constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;

}  // namespace

WrittenFile::OpenFile::OpenFile(const std::string& path)
    : descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (!descriptor.is_open() || ::fstat(descriptor.get(), &status) != 0)
    throw_system_error("cannot be read", path, errno);
}

void WrittenFile::copy_to(AtomicFile& file) const {
  std::vector<std::byte> buffer(std::min<std::uint64_t>(bytes(), kCopyBytes));
  std::optional<OpenFile> again;
  for (std::uint64_t offset = 0; offset < bytes();) {
    const FileDescriptor& source = again ? again->descriptor : file_.descriptor;
    const ssize_t read =
        ::pread(source.get(), buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && errno == ESTALE && !again) {
      reopen(again);
      continue;
    }
    if (read <= 0) throw_system_error("cannot be read", path_, read < 0 ? errno : EIO);
    file.append(std::span(buffer).first(static_cast<std::size_t>(read)));
    offset += static_cast<std::uint64_t>(read);
  }
}

/// A network file system may forget an open file, as when its server was started again: by its
/// name it is found, unless that belongs to another file by now.
void WrittenFile::reopen(std::optional<OpenFile>& again) const {
  again.emplace(path_);
  const struct stat &found = again->status, &expected = file_.status;
  if (found.st_ino != expected.st_ino || found.st_size != expected.st_size ||
      found.st_mtim.tv_sec != expected.st_mtim.tv_sec ||
      found.st_mtim.tv_nsec != expected.st_mtim.tv_nsec)
    throw_system_error("cannot be read", path_, ESTALE);
}

WrittenFilePtr write_file(const std::string& path, AtomicFile& begun, const ChangeOfFile& change) {
  hdf5::File file = hdf5::File::open_unshared(begun.temporary_path(), path);
  change(file);
  file.close();
  begun.commit();
  return std::make_shared<const WrittenFile>(path);
}

/// The disk space is taken first: a full disk shows before the copy is made, and HDF5 1.10 loses
/// track of a file whose write fails.
WrittenFilePtr write_changed_copy(const WrittenFile& base, const std::string& path,
                                  std::uint64_t room, const ChangeOfFile& change) {
  AtomicFile file(path);
  file.reserve(base.bytes() + room);
  base.copy_to(file);
  return write_file(path, file, change);
}

}  // namespace deltapipe
