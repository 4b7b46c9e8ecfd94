// SPDX-License-Identifier: BSD-3-Clause
#include "app/claimed_directories.hpp"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <thread>

#include "comm/transport/collectives.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

namespace {

/// The same on all ranks, as a rank's budget need not be.
bool has_memories(const Settings& settings) {
  return settings.pipeline.stages > 1 &&
         (has_memory(settings.forward) || has_memory(settings.backward));
}

/// Ranks that a killed launcher leaves were seen to end within 4 s.
constexpr double kReleaseSeconds = 6;
constexpr std::chrono::milliseconds kLook{100};

void say_that_it_waits(const std::string& directory, const std::string& holder) {
  std::fprintf(stderr,
               "deltapipe: %s is in use%s%s: waiting up to %.0f s for the end of a run that was "
               "killed\n",
               directory.c_str(), holder.empty() ? "" : " by ", holder.c_str(), kReleaseSeconds);
}

}  // namespace

bool writes_caches(const Settings& settings) {
  return has_memories(settings) && settings.cache.budget_bytes > 0;
}

ClaimedDirectories::ClaimedDirectories(const Settings& settings, const ProcessGrid& grid,
                                       ProgressThread& progress)
    : progress_(progress), run_id_(new_run_id()) {
  broadcast(progress, grid.world(), run_id_, 0);
  if (grid.rank() == 0) claim(settings.output.directory, true);
  barrier(progress, grid.world());
  claim_checkpoints(settings, grid, progress);
  if (!has_memories(settings)) return;
  claim_in_turns(settings, grid, progress, writes_caches(settings));
}

void ClaimedDirectories::claim_caches(const Settings& settings, const ProcessGrid& grid,
                                      ProgressThread& progress) {
  std::error_code error;
  claim_in_turns(settings, grid, progress,
                 !has_caches_ && std::filesystem::is_directory(cache_directory(settings), error));
}

/// Of the ranks that share a directory the first holds its lock, and none writes there before the
/// leftovers are gone.
void ClaimedDirectories::claim_in_turns(const Settings& settings, const ProcessGrid& grid,
                                        ProgressThread& progress, bool wanted) {
  for (int rank = 0; rank < progress.size(); ++rank) {
    if (grid.rank() == rank && wanted) {
      claim(cache_directory(settings), rank == 0);
      has_caches_ = true;
    }
    barrier(progress, grid.world());
  }
}

void ClaimedDirectories::claim_checkpoints(const Settings& settings, const ProcessGrid& grid,
                                           ProgressThread& progress) {
  const std::string directory = checkpoint_directory(settings);
  std::error_code error;
  const bool is_there = std::filesystem::is_directory(directory, error);
  const std::uint64_t wanted = writes_checkpoints(settings) || is_there ? 1 : 0;
  if (all_reduce(progress, grid.world(), wanted, Reduction::max) == 0) return;
  for (int rank = 0; rank < progress.size(); ++rank) {
    if (grid.rank() == rank) {
      const DirectoryLock& lock = claim(directory, rank == 0);
      // Without locks the disk is taken for one that all ranks share. The output directory's lock
      // is the first rank's already.
      const bool is_output =
          rank == 0 && std::filesystem::equivalent(directory, settings.output.directory, error);
      keeps_checkpoints_ = lock.warning().empty() ? lock.is_holder() || is_output : rank == 0;
    }
    barrier(progress, grid.world());
  }
}

const DirectoryLock& ClaimedDirectories::claim(const std::string& directory, bool speak) {
  make_directory(directory);
  const TimePoint begin = Clock::now();
  bool said = false;
  locks_.push_back(
      std::make_unique<DirectoryLock>(directory, run_id_, [&](const std::string& holder) {
        if (seconds_between(begin, Clock::now()) > kReleaseSeconds) return false;
        if (!std::exchange(said, true)) say_that_it_waits(directory, holder);
        progress_.check();
        std::this_thread::sleep_for(kLook);
        return true;
      }));
  const DirectoryLock& lock = *locks_.back();
  if (lock.is_holder()) remove_leftovers(directory);
  if (speak && !lock.warning().empty())
    std::fprintf(stderr, "deltapipe: warning: %s\n", lock.warning().c_str());
  return lock;
}

}  // namespace deltapipe
