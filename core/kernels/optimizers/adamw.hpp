// SPDX-License-Identifier: BSD-3-Clause
// AdamW (arXiv 1711.05101) over a flat range of parameters in one pass.
#pragma once

#include <cmath>

#include "core/base/parallel/row.hpp"
#include "core/kernels/halves.hpp"

namespace deltapipe {

/// Parameters of one update; corrections are 1 - beta^step for this step.
struct AdamWStep {
  double learning_rate;
  double beta1, beta2, epsilon, weight_decay;
  double correction1, correction2;
  double gradient_factor;  ///< clipping: gradients are multiplied by it

  /// `step` counts from 1.
  static AdamWStep at(std::uint64_t step, double learning_rate, double beta1, double beta2,
                      double epsilon, double weight_decay, double gradient_factor) {
    return {learning_rate,
            beta1,
            beta2,
            epsilon,
            weight_decay,
            1 - std::pow(beta1, static_cast<double>(step)),
            1 - std::pow(beta2, static_cast<double>(step)),
            gradient_factor};
  }
};

/// `parameter`: MutableValues or MutableHalves.
template <class Real, class Parameter>
void adamw_pass(const ExecSpace& exec, const AdamWStep& step, const VectorRef<const Real>& gradient,
                const Parameter& parameter, const VectorRef<Real>& moment1,
                const VectorRef<Real>& moment2) {
  const Real beta1 = Real(step.beta1);
  const Real beta2 = Real(step.beta2);
  const Real rest1 = Real(1 - step.beta1);
  const Real rest2 = Real(1 - step.beta2);
  const Real factor = Real(step.gradient_factor);
  const Real keep = Real(1 - step.learning_rate * step.weight_decay);
  const Real size = Real(step.learning_rate / step.correction1);
  const Real root = Real(1 / std::sqrt(step.correction2));
  const Real epsilon = Real(step.epsilon);
  Real* const m = moment1.data();
  Real* const v = moment2.data();
  const Real* const g_in = gradient.data();
  for_tiles(
      "deltapipe::AdamW::update", exec, static_cast<std::int64_t>(gradient.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        const auto update = [&](std::int64_t i) {
          const Real g = g_in[i] * factor;
          const Real mean = beta1 * m[i] + rest1 * g;
          const Real square = beta2 * v[i] + rest2 * g * g;
          m[i] = mean;
          v[i] = square;
          parameter.set(
              i, keep * parameter.get(i) - size * mean / (std::sqrt(square) * root + epsilon));
        };
        std::int64_t i = first;
        if constexpr (kHostExecution) {
          // A processor's own prefetching stops at the end of each page of the streams.
          constexpr int kAhead = 512;
          constexpr int kLine = 64 / static_cast<int>(sizeof(Real));
          for (; i + kLine <= end; i += kLine) {
            prefetch(g_in + i, kAhead);
            parameter.prefetch_after(i, kAhead);
            prefetch(m + i, kAhead);
            prefetch(v + i, kAhead);
            DELTAPIPE_INDEPENDENT_ITERATIONS
            for (int l = 0; l < kLine; ++l) update(i + l);
          }
        }
        for (; i < end; ++i) update(i);
      });
}

/// moment1 := beta1 * moment1 / replicas + (1 - beta1) * gradient_factor * gradient. The sum over
/// replicas is the first moment of AdamW for the sum of their gradients.
template <class Real>
void adamw_moment_share(const ExecSpace& exec, const AdamWStep& step, int replicas,
                        const VectorRef<const Real>& gradient, const VectorRef<Real>& moment1) {
  const Real kept = Real(step.beta1 / replicas);
  const Real added = Real((1 - step.beta1) * step.gradient_factor);
  Real* const m = moment1.data();
  const Real* const g = gradient.data();
  for_tiles(
      "deltapipe::AdamW::momentShare", exec, static_cast<std::int64_t>(gradient.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) m[i] = kept * m[i] + added * g[i];
      });
}

/// Updates parameters from moments, which stay. An element without a second moment had no gradient
/// so far and does not move: what compression puts into its first moment would be divided by
/// epsilon.
template <class Real, class Parameter>
void adamw_moment_pass(const ExecSpace& exec, const AdamWStep& step, const Parameter& parameter,
                       const VectorRef<const Real>& moment1, const VectorRef<const Real>& moment2) {
  const Real keep = Real(1 - step.learning_rate * step.weight_decay);
  const Real size = Real(step.learning_rate / step.correction1);
  const Real root = Real(1 / std::sqrt(step.correction2));
  const Real epsilon = Real(step.epsilon);
  const Real* const m = moment1.data();
  const Real* const v = moment2.data();
  for_tiles(
      "deltapipe::AdamW::momentUpdate", exec, static_cast<std::int64_t>(moment1.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) {
          const Real change =
              v[i] == Real(0) ? Real(0) : size * m[i] / (std::sqrt(v[i]) * root + epsilon);
          parameter.set(i, keep * parameter.get(i) - change);
        }
      });
}

}  // namespace deltapipe
