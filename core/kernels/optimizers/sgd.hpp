// SPDX-License-Identifier: BSD-3-Clause
// Stochastic gradient descent with momentum and coupled weight decay, as torch.optim.SGD.
#pragma once

#include "core/base/parallel/row.hpp"
#include "core/kernels/halves.hpp"

namespace deltapipe {

/// Parameters of one update.
struct SgdStep {
  double learning_rate;
  double momentum;
  double weight_decay;
  double gradient_factor;  ///< clipping: gradients are multiplied by it
};

/// v := momentum v + g + weight_decay p, p := p - learning_rate v; v, which begins as 0, is
/// `moment`. `parameter`: MutableValues or MutableHalves.
template <class Real, class Parameter>
void sgd_pass(const ExecSpace& exec, const SgdStep& step, const VectorRef<const Real>& gradient,
              const Parameter& parameter, const VectorRef<Real>& moment) {
  const Real rate = Real(step.learning_rate);
  const Real momentum = Real(step.momentum);
  const Real decay = Real(step.weight_decay);
  const Real factor = Real(step.gradient_factor);
  Real* const v = moment.data();
  const Real* const g = gradient.data();
  for_tiles(
      "deltapipe::Sgd::update", exec, static_cast<std::int64_t>(gradient.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) {
          const Real p = parameter.get(i);
          const Real velocity = momentum * v[i] + (factor * g[i] + decay * p);
          v[i] = velocity;
          parameter.set(i, p - rate * velocity);
        }
      });
}

}  // namespace deltapipe
