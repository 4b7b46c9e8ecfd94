// SPDX-License-Identifier: BSD-3-Clause
// The library around oneDNN, which is loaded at the first call.
#pragma once

#include <string>

#include "core/kernels/gemm/onednn_module.hpp"

namespace deltapipe::onednn {

/// Functions of the loaded library; all are null if there is a problem.
struct Module {
  decltype(&deltapipe_onednn_version) version = nullptr;
  decltype(&deltapipe_onednn_has_bf16) has_bf16 = nullptr;
  decltype(&deltapipe_onednn_multiply) multiply = nullptr;
  decltype(&deltapipe_onednn_convolve) convolve = nullptr;
  // Null: oneDNN was built without OpenMP.
  int (*most_threads)() = nullptr;
  void (*set_threads)(int) = nullptr;
  std::string problem;  ///< reason why it could not be loaded

  bool is_there() const {
    return version != nullptr && has_bf16 != nullptr && multiply != nullptr && convolve != nullptr;
  }
};

const Module& module();

/// Sets oneDNN's threads, which are those of the calling thread's OpenMP, to one during its
/// lifetime, because a HostTeam divides the work.
class OneThread {
 public:
  OneThread();
  ~OneThread();
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

}  // namespace deltapipe::onednn
