// SPDX-License-Identifier: BSD-3-Clause
// Check that replicas of a stage hold the same weights to the bit, by their hashes.
#pragma once

#include <cstdint>

#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/stage/parameters.hpp"

namespace deltapipe {

class ReplicaCheck {
 public:
  /// Checks the rank's `local`th stage.
  ReplicaCheck(const ParameterArena<float>& parameters, const ProcessGrid& grid,
               ProgressThread& progress, int local = 0);

  /// Hashes every parameter on the device and compares the hashes of all replicas of the stage,
  /// which call it together. Throws UserError that names the stage, the completed steps and the
  /// first parameter that differs. Does nothing with one replica.
  void compare(const ExecSpace& exec, std::uint64_t steps_done);

 private:
  const ParameterArena<float>& parameters_;
  const ProcessGrid& grid_;
  ProgressThread& progress_;
  int local_;
  Vector<std::uint64_t> hash_;  ///< one hash per range of a parameter's values
  MirrorVector<std::uint64_t> hash_host_;
  Vector<std::uint64_t> start_;  ///< offset of a parameter in its own memory: 0
};

}  // namespace deltapipe
