// SPDX-License-Identifier: BSD-3-Clause
// The directories that a training run writes into.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/files/directory_lock.hpp"

namespace deltapipe {

/// True if a training writes this rank's memories of samples to files of `[cache]`.
bool writes_caches(const Settings& settings);

/// Makes the output directory and, for runs that spill, the ranks' cache directories, and those of
/// checkpoints where some are written or found, locks them against other runs while it lives, and
/// removes what killed runs left half-written in them. The ranks of a killed run notice only after
/// seconds that their launcher has ended: their lock is waited for.
class ClaimedDirectories {
 public:
  /// Collective. UserError: a directory cannot be made, or another run writes into it.
  ClaimedDirectories(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);

  /// Collective. That of spill files, if it is there, also for a run that makes none.
  void claim_caches(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);

  /// The run begins or is finished. Until then a start that is refused leaves the lock of a killed
  /// run, by which scripts know that it was killed.
  void take_over();

  /// True on one of the ranks that share a directory for checkpoints; that rank maintains it.
  bool keeps_checkpoints() const { return keeps_checkpoints_; }

 private:
  DirectoryLock& claim(const std::string& directory, bool speak);
  void claim_checkpoints(const Settings& settings, const ProcessGrid& grid,
                         ProgressThread& progress);
  DirectoryLock* claim_together(const std::string& directory, const ProcessGrid& grid,
                                ProgressThread& progress, bool wanted);
  ProgressThread& progress_;
  std::string run_id_;  ///< of this start
  bool has_caches_ = false;
  bool keeps_checkpoints_ = false;
  bool is_taken_over_ = false;
  std::vector<std::unique_ptr<DirectoryLock>> locks_;
};

}  // namespace deltapipe
