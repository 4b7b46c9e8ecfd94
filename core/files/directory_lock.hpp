// SPDX-License-Identifier: BSD-3-Clause
// One run at a time writes into a directory.
#pragma once

#include <functional>
#include <string>

namespace deltapipe {

/// A 128-bit random number in hexadecimal: what the processes of one run know each other by.
std::string new_run_id();

/// True when somebody holds the DirectoryLock of `directory`, or nobody can say.
bool is_locked(const std::string& directory);

/// Holds DIRECTORY/.deltapipe.lock, which tells who holds it: host, process, start of the run. The
/// lock is one of the kernel's (open file description): it ends with the process, however that
/// ends, and a lock file that a killed process left blocks nobody. On network file systems it
/// reaches as far as they carry POSIX locks: NFS does between its clients unless mounted with
/// nolock or local_lock, Lustre with the option flock; elsewhere, runs on two machines do not see
/// each other.
class DirectoryLock {
 public:
  /// Decides, after each look that finds another run's lock, if the next look is worth it; waits
  /// meanwhile. `holder`: who holds the lock, in words; empty before it has written its name.
  using Patience = std::function<bool(const std::string& holder)>;

  /// UserError when another run holds the directory and `patience` has ended. Processes of one run,
  /// which have the same id, share the lock of the first.
  DirectoryLock(const std::string& directory, const std::string& run_id,
                const Patience& patience = {});
  /// Removes the lock file when this object holds it, unless it is to leave a killed run's.
  ~DirectoryLock();
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  /// To be called by all processes of the run after all have their locks. Where the file system
  /// grants the same lock to several machines (Lustre with localflock, NFS with local_lock), the
  /// one that wrote its name last keeps it, and the others share it.
  void confirm();
  /// True: the file of a process that was killed stays, by which others know that it was. For a run
  /// that may turn out to leave the directory as it found it.
  void leave_former(bool leave) { leaves_former_ = leave; }
  /// False: another process of this run holds the lock, or locks do not work here.
  bool is_holder() const { return descriptor_ >= 0; }
  /// Empty unless the file system has no locks: then a sentence that says so.
  const std::string& warning() const { return warning_; }

 private:
  void write_owner(const std::string& run_id);
  bool names_this_process() const;
  void release() noexcept;
  std::string directory_;
  std::string path_;
  std::string warning_;
  std::string text_;  ///< of the lock file, as this process wrote it
  int descriptor_ = -1;
  bool found_former_ = false;  ///< a killed process had left its file
  bool leaves_former_ = false;
};

}  // namespace deltapipe
