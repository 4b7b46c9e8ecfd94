// SPDX-License-Identifier: BSD-3-Clause
// The spill files of a run under way, and those that earlier starts of it left.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/cache/settings.hpp"

namespace deltapipe {

class RunSpillFiles {
 public:
  /// `caches`: all of this rank; they outlive this.
  RunSpillFiles(const Settings& settings, CacheOwner owner, std::vector<ActivationCache*> caches,
                const ProcessGrid& grid, ProgressThread& progress);

  /// Collective. True if any rank has spill files.
  bool exist() const;
  /// Writes the records of this rank to its files.
  void flush() const;
  /// Collective. Removes those of earlier starts: of other layouts, and of starts without a
  /// checkpoint.
  void remove_former() const;
  /// Collective, at the end of a finished run: removes all but, with cache.keep, this start's,
  /// which any run may then replace.
  void finish() const;

 private:
  std::set<std::string> ids() const;

  const Settings& settings_;
  CacheOwner owner_;
  std::vector<ActivationCache*> caches_;
  const ProcessGrid& grid_;
  ProgressThread& progress_;
};

}  // namespace deltapipe
