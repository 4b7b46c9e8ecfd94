// SPDX-License-Identifier: BSD-3-Clause
// Owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <utility>

namespace deltapipe {

/// Closes its file descriptor, if it has one, and ignores failures.
class FileDescriptor {
 public:
  explicit FileDescriptor(int fd = -1) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() { close(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  /// Returns false and sets errno if the system reports a failure; the descriptor is released in
  /// both cases.
  bool close() { return !is_open() || ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

}  // namespace deltapipe
