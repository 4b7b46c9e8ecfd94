// SPDX-License-Identifier: BSD-3-Clause
// The run file of a run under way, which is closed with the reason when the run fails.
#pragma once

#include <memory>
#include <string>

#include "app/output/run_file.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

class RunOutput {
 public:
  /// `file`: on rank 0; null on other ranks.
  RunOutput(std::unique_ptr<RunFile> file, ProgressThread& progress)
      : file_(std::move(file)), progress_(progress) {}

  /// Null except on rank 0.
  RunFile* file() const { return file_.get(); }

  /// Closes the file; the reason that ended the run is reported even if that fails.
  void close(RunStatus status, const std::string& reason);

  /// Returns work(). If that throws, closes the file first, with the reason. What must not hold up
  /// the closing, as a pipeline with spill files that go, has to outlive the work.
  template <class Work>
  auto closing_on_failure(const Work& work) {
    try {
      return work();
    } catch (...) {
      close_after_exception();
      throw;
    }
  }

 private:
  void close_after_exception();
  void close_interrupted(int signal);

  std::unique_ptr<RunFile> file_;
  ProgressThread& progress_;
};

}  // namespace deltapipe
