// SPDX-License-Identifier: BSD-3-Clause
// An operation that was submitted to a ProgressThread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

class Operation {
 public:
  explicit Operation(OperationPlan its_plan) : plan(std::move(its_plan)) {}

  OperationPlan plan;
  std::uint64_t number = 0;
  OperationTimes times;         // guarded by ProgressThread::mutex_
  std::exception_ptr error;     // guarded by ProgressThread::mutex_
  bool done = false;            // guarded by ProgressThread::mutex_
  bool cancelled = false;       // progress thread only
  std::size_t outstanding = 0;  // progress thread only
  Ticket self;                  // progress thread only; keeps an operation alive forever
};

}  // namespace deltapipe
