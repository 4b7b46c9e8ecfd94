// SPDX-License-Identifier: BSD-3-Clause
// Outer optimizer of a stage whose replicas take local steps.
#pragma once

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"
#include "core/stage/parameters.hpp"

namespace deltapipe {

/// Retains the parameters of the last outer step (anchors) and a momentum. The sums of changes
/// travel in the memory of gradients, which are not used between two steps. Source:
/// arXiv 2311.08105.
template <class Real>
class OuterOptimizer {
 public:
  /// The anchors are the parameters' present values.
  OuterOptimizer(const ExecSpace& exec, double learning_rate, double momentum,
                 ParameterArena<Real>& parameters);
  /// Returns the memory that it uses.
  static MemoryLedger memory(std::size_t gradient_size);

  /// Writes anchor - value of each trained parameter to its gradient.
  void write_changes(const ExecSpace& exec);
  /// Performs an outer step from the gradients, which are the sums of all replicas' changes. The
  /// parameters then are the new anchors.
  void update(const ExecSpace& exec, int replicas);

  /// Returns NAME.anchor and NAME.velocity of every trained parameter.
  StatePart state(const ExecSpace& exec) const;

 private:
  double learning_rate_, momentum_;
  ParameterArena<Real>& parameters_;
  Vector<Real> anchors_, velocities_;  ///< placed as gradients
};

}  // namespace deltapipe
