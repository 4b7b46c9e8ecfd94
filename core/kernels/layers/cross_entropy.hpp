// SPDX-License-Identifier: BSD-3-Clause
// Softmax cross entropy of a block of rows and its gradient, in one pass over the logits.
#pragma once

#include <cmath>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/kernels/layers/math.hpp"

namespace deltapipe {

/// loss_N(n) = -log softmax(logits)(target) and, with `wants_gradient`, dlogits_NV = scale *
/// dloss/dlogits, rounded to bf16 if Gradient is Bf16. logits_NV and dlogits_NV may be the same
/// memory; logits_NV is overwritten in any case. Targets below 0 are padding: loss and gradient are
/// 0.
template <class Real, class Gradient>
void cross_entropy(const ExecSpace& exec, const VectorRef<const std::int32_t>& target_N, Real scale,
                   bool wants_gradient, const MatrixRef<Real>& logits_NV,
                   const MatrixRef<Gradient>& dlogits_NV, const VectorRef<Real>& loss_N) {
  const int vocabulary = logits_NV.extent_int(1);
  for_rows(
      "deltapipe::CrossEntropy::lossAndGradient", row_policy(exec, logits_NV.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        Real* const z = &logits_NV(n, 0);
        Gradient* const dz = wants_gradient ? &dlogits_NV(n, 0) : nullptr;
        const int target = target_N(n);
        if (target < 0 || target >= vocabulary) {
          if (wants_gradient) row_for(team, vocabulary, [&](int v) { dz[v] = Gradient(0); });
          loss_N(n) = target < 0 ? Real(0) : static_cast<Real>(NAN);
          return;
        }
        const Real target_logit = z[target];
        const Real top = row_max<Real>(team, vocabulary, z[0], [&](int v) { return z[v]; });
        team.team_barrier();
        const Real sum = row_sum<Real>(team, vocabulary, [&](int v) {
          const Real e = vector_exp(z[v] - top);
          z[v] = e;
          return e;
        });
        if (wants_gradient) {
          const Real factor = scale / sum;
          const Real target_gradient = z[target] * factor - scale;
          team.team_barrier();
          row_for(team, vocabulary, [=](int v) { dz[v] = rounded_to<Gradient>(z[v] * factor); });
          team.team_barrier();
          row_once(team, [&]() { dz[target] = rounded_to<Gradient>(target_gradient); });
        }
        loss_N(n) = std::log(sum) + top - target_logit;
      });
}

/// Returns how many classes come before the target in the order of their logits, of equal ones the
/// first; NaN if a logit is not finite or the target is no class.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real classes_before(const RowMember& team, const Real* z, int classes,
                                                int target) {
  if (target < 0 || target >= classes) return static_cast<Real>(NAN);
  const Real of_target = z[target];
  return row_sum<Real>(team, classes, [&](int v) {
    const bool comes_first = z[v] > of_target || (z[v] == of_target && v < target);
    return (comes_first ? Real(1) : Real(0)) + 0 * z[v];  // NaN unless finite
  });
}

/// miss_N(n) = 0 if greedy decoding, which chooses the first of the likeliest tokens, finds the
/// target, and 1 if not. NaN if a logit is not finite, and 0 for targets below 0.
template <class Real>
void greedy_misses(const ExecSpace& exec, const VectorRef<const std::int32_t>& target_N,
                   const MatrixRef<Real>& logits_NV, const VectorRef<Real>& miss_N) {
  const int vocabulary = logits_NV.extent_int(1);
  for_rows(
      "deltapipe::CrossEntropy::greedyMisses", row_policy(exec, logits_NV.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        const Real* const z = &logits_NV(n, 0);
        const int target = target_N(n);
        if (target < 0) {
          miss_N(n) = 0;
          return;
        }
        const Real likelier = classes_before(team, z, vocabulary, target);
        miss_N(n) = likelier > 0 ? Real(1) : likelier;
      });
}

/// p_BV = softmax(logits_BV).
template <class Real>
void probabilities(const ExecSpace& exec, const MatrixRef<const Real>& logits_BV,
                   const MatrixRef<Real>& p_BV) {
  const int classes = logits_BV.extent_int(1);
  for_rows(
      "deltapipe::Classification::probabilities", row_policy(exec, logits_BV.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const Real* const z = &logits_BV(team.league_rank(), 0);
        Real* const p = &p_BV(team.league_rank(), 0);
        const Real top = row_max<Real>(team, classes, z[0], [&](int v) { return z[v]; });
        const Real sum =
            row_sum<Real>(team, classes, [&](int v) { return vector_exp(z[v] - top); });
        row_for(team, classes, [=](int v) { p[v] = vector_exp(z[v] - top) / sum; });
      });
}

/// class_B = the first of the likeliest classes; likelier_B = classes_before() the label.
template <class Real>
void predictions(const ExecSpace& exec, const VectorRef<const std::int32_t>& label_B,
                 const MatrixRef<const Real>& logits_BV, const VectorRef<Real>& class_B,
                 const VectorRef<Real>& likelier_B) {
  const int classes = logits_BV.extent_int(1);
  for_rows(
      "deltapipe::Classification::predictions", row_policy(exec, logits_BV.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int b = team.league_rank();
        const Real* const z = &logits_BV(b, 0);
        likelier_B(b) = classes_before(team, z, classes, label_B(b));
        row_once(team, [&]() {
          int likeliest = 0;
          for (int v = 1; v < classes; ++v)
            if (z[v] > z[likeliest]) likeliest = v;
          class_B(b) = static_cast<Real>(likeliest);
        });
      });
}

}  // namespace deltapipe
