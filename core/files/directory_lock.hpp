// SPDX-License-Identifier: BSD-3-Clause
// Lock that allows only one run at a time to write into a directory.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "core/files/descriptor.hpp"

namespace deltapipe {

/// Returns a random number of that many hexadecimal digits.
std::string random_digits(std::size_t count);
/// Returns a 128-bit random number in hexadecimal, which identifies the processes of one run.
std::string new_run_id();

/// Returns true if a process holds the DirectoryLock of `directory`, or if this is unknown.
bool is_locked(const std::string& directory);

/// Holds DIRECTORY/.deltapipe.lock, which names its holder: host, process, start of the run. It is
/// a lock of the kernel (open file description) and ends with the process in any case: the lock
/// file of a killed process blocks nobody. On network file systems it covers as much as their POSIX
/// locks do. NFS shares these between its clients unless mounted with nolock or local_lock, Lustre
/// with the option flock. Elsewhere, runs on two machines do not see each other.
class DirectoryLock {
 public:
  /// Called after each attempt that finds another run's lock: waits, and returns true to try again.
  /// `holder` is the holder of the lock, in words; empty before it has written its name.
  using Patience = std::function<bool(const std::string& holder)>;

  /// Takes the lock. UserError if another run holds it and `patience` returns false. Processes of
  /// one run have the same id and share the lock of the first.
  DirectoryLock(const std::string& directory, const std::string& run_id,
                const Patience& patience = {});
  /// Removes the lock file if this object holds it, except for a killed run's file that
  /// leave_former() retains.
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  /// All processes of the run must call this after all have their locks. A file system may grant
  /// the same lock to several machines (Lustre with localflock, NFS with local_lock). The one that
  /// wrote its name last then keeps the lock, and the others share it.
  void confirm();
  /// True retains the lock file of a killed process, which tells others that it was killed. For a
  /// run that may leave the directory unchanged.
  void leave_former(bool leave) { leaves_former_ = leave; }
  /// Returns false if another process of this run holds the lock, or locks do not work here.
  bool is_holder() const { return file_.is_open(); }
  /// Returns a sentence that says that the file system has no locks; empty if it has.
  const std::string& warning() const { return warning_; }

 private:
  void write_owner(const std::string& run_id);
  bool names_this_process() const;
  void release() noexcept;
  std::string directory_;
  std::string path_;
  std::string warning_;
  std::string text_;  ///< text of the lock file, as written by this process
  FileDescriptor file_;
  bool found_former_ = false;  ///< true if a killed process had left its file
  bool leaves_former_ = false;
};

}  // namespace deltapipe
