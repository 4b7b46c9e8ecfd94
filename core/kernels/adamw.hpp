// SPDX-License-Identifier: BSD-3-Clause
// AdamW (arXiv 1711.05101) over a flat range of parameters in one pass.
#pragma once

#include <cmath>

#include "core/base/number_formats.hpp"
#include "core/base/row.hpp"

namespace deltapipe {

/// What one update needs; corrections are 1 - beta^step of the step being made.
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

template <class Real, bool kRounds>
void adamw_pass(const ExecSpace& exec, const AdamWStep& step, const VectorRef<const Real>& gradient,
                const VectorRef<Real>& parameter, const VectorRef<Real>& moment1,
                const VectorRef<Real>& moment2, const VectorRef<Bf16>& rounded) {
  const Real beta1 = Real(step.beta1);
  const Real beta2 = Real(step.beta2);
  const Real rest1 = Real(1 - step.beta1);
  const Real rest2 = Real(1 - step.beta2);
  const Real factor = Real(step.gradient_factor);
  const Real keep = Real(1 - step.learning_rate * step.weight_decay);
  const Real size = Real(step.learning_rate / step.correction1);
  const Real root = Real(1 / std::sqrt(step.correction2));
  const Real epsilon = Real(step.epsilon);
  Real* const p = parameter.data();
  Real* const m = moment1.data();
  Real* const v = moment2.data();
  const Real* const g_in = gradient.data();
  Bf16* const r = rounded.data();
  // Tiles keep the loop that the host vectorises free of index arithmetic.
  constexpr std::int64_t kTile = kHostExecution ? 4096 : 1;
  const std::int64_t count = static_cast<std::int64_t>(parameter.extent(0));
  for_range(
      "deltapipe::AdamW::update", exec, (count + kTile - 1) / kTile,
      KOKKOS_LAMBDA(std::int64_t tile) {
        (void)r;  // nvcc takes no first capture in an `if constexpr`
        const auto update = [&](std::int64_t i) {
          const Real g = g_in[i] * factor;
          const Real first = beta1 * m[i] + rest1 * g;
          const Real second = beta2 * v[i] + rest2 * g * g;
          m[i] = first;
          v[i] = second;
          p[i] = keep * p[i] - size * first / (std::sqrt(second) * root + epsilon);
          if constexpr (kRounds) r[i] = bfloat_of(static_cast<float>(p[i]));
        };
        const std::int64_t end = (tile + 1) * kTile < count ? (tile + 1) * kTile : count;
        std::int64_t i = tile * kTile;
        if constexpr (kHostExecution) {
          // By itself a processor stops reading ahead at the end of each page of the four streams.
          constexpr int kAhead = 512;
          constexpr int kLine = 64 / static_cast<int>(sizeof(Real));
          for (; i + kLine <= end; i += kLine) {
            prefetch(g_in + i, kAhead);
            prefetch(p + i, kAhead);
            prefetch(m + i, kAhead);
            prefetch(v + i, kAhead);
            DELTAPIPE_INDEPENDENT_ITERATIONS
            for (int l = 0; l < kLine; ++l) update(i + l);
          }
        }
        for (; i < end; ++i) update(i);
      });
}

/// `rounded`: the new parameters in bf16; none where it has no elements.
template <class Real>
void adamw_update(const ExecSpace& exec, const AdamWStep& step,
                  const VectorRef<const Real>& gradient, const VectorRef<Real>& parameter,
                  const VectorRef<Real>& moment1, const VectorRef<Real>& moment2,
                  const VectorRef<Bf16>& rounded = {}) {
  const auto pass = rounded.extent(0) > 0 ? adamw_pass<Real, true> : adamw_pass<Real, false>;
  pass(exec, step, gradient, parameter, moment1, moment2, rounded);
}

}  // namespace deltapipe
