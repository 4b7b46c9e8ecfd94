// SPDX-License-Identifier: BSD-3-Clause
// Work for a checkpoint on a thread of its own, and the files that it writes.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/output/run_file.hpp"
#include "core/base/observe/trace.hpp"
#include "core/base/state/state_in_memory.hpp"

namespace deltapipe {

class CheckpointJob {
 public:
  /// Starts `work`. An exception that it throws becomes `error`.
  explicit CheckpointJob(std::function<void(CheckpointJob&)> work);
  /// Gives up and waits for the thread.
  ~CheckpointJob();
  CheckpointJob(const CheckpointJob&) = delete;
  CheckpointJob& operator=(const CheckpointJob&) = delete;

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  /// Nobody waits for the work any more.
  void give_up() { given_up_.store(true); }
  const std::atomic<bool>& given_up() const { return given_up_; }
  /// While it does, nobody else can use the HDF5 library.
  std::atomic<bool> uses_library{false};

  // To be read when it is done.
  CheckpointFile rank_file, run_file;
  std::string error;  ///< empty: none
  double seconds = 0;

 private:
  TimePoint begin_;
  std::atomic<bool> done_{false}, given_up_{false};
  std::thread thread_;
};

/// Several ranks may make it.
void make_unfinished(const std::string& path);
/// Writes a rank's state, until it is given up.
void write_rank(const std::string& path, const StateContent& content,
                const std::atomic<bool>& given_up);
CheckpointFile write_run_file(const std::string& directory, const RunFileSnapshot& history);

}  // namespace deltapipe
