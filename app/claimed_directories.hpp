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

/// Makes the output directory and, for runs that spill, the ranks' cache directories, locks them
/// against other runs while it lives, and removes what killed runs left half-written in them.
class ClaimedDirectories {
 public:
  /// Collective. UserError: a directory cannot be made, or another run writes into it.
  ClaimedDirectories(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress);

 private:
  void claim(const std::string& directory, const std::string& run_id, bool speak);
  std::vector<std::unique_ptr<DirectoryLock>> locks_;
};

}  // namespace deltapipe
