// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/claimed_directories.hpp"

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
constexpr std::chrono::milliseconds kReleaseLook{100};

void say_that_it_waits(const std::string& directory, const std::string& holder) {
  std::fprintf(stderr,
               "deltapipe: %s is in use by %s: waiting up to %.0f s for the end of a run that was "
               "killed\n",
               directory.c_str(), holder.c_str(), kReleaseSeconds);
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
  has_caches_ =
      claim_together(cache_directory(settings), grid, progress, writes_caches(settings)) != nullptr;
}

void ClaimedDirectories::claim_caches(const Settings& settings, const ProcessGrid& grid,
                                      ProgressThread& progress) {
  std::error_code error;
  const bool wanted =
      !has_caches_ && std::filesystem::is_directory(cache_directory(settings), error);
  if (claim_together(cache_directory(settings), grid, progress, wanted)) has_caches_ = true;
}

/// All ranks at once, so that the time does not grow with their number. Of those that share a
/// directory the fastest holds its lock, and none writes there before the leftovers are gone.
/// Returns nullptr where it is not wanted.
DirectoryLock* ClaimedDirectories::claim_together(const std::string& directory,
                                                  const ProcessGrid& grid, ProgressThread& progress,
                                                  bool wanted) {
  DirectoryLock* const lock = wanted ? &claim(directory, grid.rank() == 0) : nullptr;
  barrier(progress, grid.world());
  if (lock != nullptr) lock->confirm();
  return lock;
}

void ClaimedDirectories::take_over() {
  is_taken_over_ = true;
  for (const auto& lock : locks_) lock->leave_former(false);
}

void ClaimedDirectories::claim_checkpoints(const Settings& settings, const ProcessGrid& grid,
                                           ProgressThread& progress) {
  const std::string directory = checkpoint_directory(settings);
  std::error_code error;
  const bool is_there = std::filesystem::is_directory(directory, error);
  const std::uint64_t wanted = writes_checkpoints(settings) || is_there ? 1 : 0;
  if (all_reduce(progress, grid.world(), wanted, Reduction::max) == 0) return;
  const DirectoryLock& lock = *claim_together(directory, grid, progress, true);
  // Without locks the disk is treated as shared by all ranks. The output directory's lock is
  // the first rank's already.
  const bool is_output =
      grid.rank() == 0 && std::filesystem::equivalent(directory, settings.output.directory, error);
  keeps_checkpoints_ = lock.warning().empty() ? lock.is_holder() || is_output : grid.rank() == 0;
}

DirectoryLock& ClaimedDirectories::claim(const std::string& directory, bool speak) {
  make_directory(directory);
  const TimePoint begin = Clock::now();
  bool said = !speak;
  locks_.push_back(
      std::make_unique<DirectoryLock>(directory, run_id_, [&](const std::string& holder) {
        if (seconds_between(begin, Clock::now()) > kReleaseSeconds) return false;
        // Without a name it may be another rank of this run, which has only just come.
        if (!holder.empty() && !std::exchange(said, true)) say_that_it_waits(directory, holder);
        progress_.check();
        std::this_thread::sleep_for(kReleaseLook);
        return true;
      }));
  DirectoryLock& lock = *locks_.back();
  lock.leave_former(!is_taken_over_);
  if (lock.is_holder()) remove_leftovers(directory);
  if (speak && !lock.warning().empty())
    std::fprintf(stderr, "deltapipe: warning: %s\n", lock.warning().c_str());
  return lock;
}

}  // namespace deltapipe
