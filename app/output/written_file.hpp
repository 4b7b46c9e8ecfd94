// SPDX-License-Identifier: BSD-3-Clause
// Replaces a file by a copy with changes, so that the one on disk is always complete.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/files/descriptor.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

/// A file in its place. Nobody changes it, and it can be read also after its name was removed or
/// belongs to a newer one.
class WrittenFile {
 public:
  explicit WrittenFile(std::string path) : path_(std::move(path)), file_(path_) {}

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(file_.status.st_size); }
  void copy_to(AtomicFile& file) const;

 private:
  struct OpenFile {
    explicit OpenFile(const std::string& path);

    FileDescriptor descriptor;
    struct stat status {};
  };

  void reopen(std::optional<OpenFile>& again) const;

  std::string path_;
  OpenFile file_;
};
using WrittenFilePtr = std::shared_ptr<const WrittenFile>;
using ChangeOfFile = std::function<void(hdf5::File&)>;

/// Puts a file in the place of `path`: `begun` has the bytes of an earlier state, `change` adds to
/// them.
WrittenFilePtr write_file(const std::string& path, AtomicFile& begun, const ChangeOfFile& change);

/// Does the same with a copy of `base`, which `change` makes larger by at most `room` bytes.
WrittenFilePtr write_changed_copy(const WrittenFile& base, const std::string& path,
                                  std::uint64_t room, const ChangeOfFile& change);

}  // namespace deltapipe
