// SPDX-License-Identifier: BSD-3-Clause
// Outer steps of replicas that take several steps of their own between two exchanges: SGD with
// Nesterov momentum over the mean of their changes (DiLoCo, arXiv 2311.08105, algorithm 1).
#pragma once

#include "core/base/parallel/row.hpp"
#include "core/kernels/halves.hpp"

namespace deltapipe {

/// Parameters of an outer step.
struct NesterovStep {
  double learning_rate;
  double momentum;
  double change_factor;  ///< changes are multiplied by it: 1 / replicas for their sum
};

/// anchor := p. `parameter`: MutableValues or MutableHalves.
template <class Real, class Parameter>
void anchor_pass(const ExecSpace& exec, const Parameter& parameter, const VectorRef<Real>& anchor) {
  Real* const a = anchor.data();
  for_tiles(
      "deltapipe::Nesterov::anchor", exec, static_cast<std::int64_t>(anchor.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) a[i] = parameter.get(i);
      });
}

/// change := anchor - p. `parameter`: MutableValues or MutableHalves.
template <class Real, class Parameter>
void change_pass(const ExecSpace& exec, const Parameter& parameter,
                 const VectorRef<const Real>& anchor, const VectorRef<Real>& change) {
  const Real* const a = anchor.data();
  Real* const c = change.data();
  for_tiles(
      "deltapipe::Nesterov::change", exec, static_cast<std::int64_t>(anchor.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) c[i] = a[i] - parameter.get(i);
      });
}

/// d := factor change, v := momentum v + d, anchor := anchor - learning_rate (d + momentum v) as
/// torch.optim.SGD with nesterov, and p := anchor. `velocity` begins as 0.
template <class Real, class Parameter>
void nesterov_pass(const ExecSpace& exec, const NesterovStep& step,
                   const VectorRef<const Real>& change, const VectorRef<Real>& anchor,
                   const VectorRef<Real>& velocity, const Parameter& parameter) {
  const Real rate = Real(step.learning_rate);
  const Real momentum = Real(step.momentum);
  const Real factor = Real(step.change_factor);
  const Real* const c = change.data();
  Real* const a = anchor.data();
  Real* const v = velocity.data();
  for_tiles(
      "deltapipe::Nesterov::update", exec, static_cast<std::int64_t>(anchor.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) {
          const Real d = factor * c[i];
          v[i] = momentum * v[i] + d;
          a[i] -= rate * (d + momentum * v[i]);
          parameter.set(i, a[i]);
        }
      });
}

}  // namespace deltapipe
