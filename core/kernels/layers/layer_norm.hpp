// SPDX-License-Identifier: BSD-3-Clause
// Layer normalisation over the channels: y = (x - mean) * rstd * weight + bias (arXiv 1607.06450).
#pragma once

#include <cmath>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/kernels/layers/column_sums.hpp"

namespace deltapipe {

/// Computes y_NC from x_NC, rounded to bf16 if Output is Bf16. mean_N and rstd_N are kept for the
/// backward pass. The variance is biased.
template <class Real, class Output>
void layer_norm_forward(const ExecSpace& exec, const MatrixRef<const Real>& x_NC,
                        const VectorRef<const Real>& weight_C, const VectorRef<const Real>& bias_C,
                        Real epsilon, const MatrixRef<Output>& y_NC, const VectorRef<Real>& mean_N,
                        const VectorRef<Real>& rstd_N) {
  const int channels = x_NC.extent_int(1);
  for_rows(
      "deltapipe::LayerNorm::forward", row_policy(exec, x_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        const Real* const x = &x_NC(n, 0);
        const Real* const weight = weight_C.data();
        const Real* const bias = bias_C.data();
        Output* const y = &y_NC(n, 0);
        const Real mean = row_sum<Real>(team, channels, [&](int c) { return x[c]; }) / channels;
        const Real variance =
            row_sum<Real>(team, channels, [&](int c) { return (x[c] - mean) * (x[c] - mean); }) /
            channels;
        const Real rstd = Real(1) / std::sqrt(variance + epsilon);
        row_for(team, channels, [&](int c) {
          y[c] = rounded_to<Output>((x[c] - mean) * rstd * weight[c] + bias[c]);
        });
        mean_N(n) = mean;
        rstd_N(n) = rstd;
      });
}

/// Gradient of x: added to dx_NC, which already has the residual stream's gradient, or with `add`
/// false written to it; dx_NC may then be dy_NC. Computes y_NC again for the weight gradient of the
/// next layer.
template <class Real, class Output, bool add = true>
void layer_norm_backward(const ExecSpace& exec, const MatrixRef<const Real>& dy_NC,
                         const MatrixRef<const Real>& x_NC, const VectorRef<const Real>& weight_C,
                         const VectorRef<const Real>& bias_C, const VectorRef<const Real>& mean_N,
                         const VectorRef<const Real>& rstd_N, const MatrixRef<Real>& dx_NC,
                         const MatrixRef<Output>& y_NC) {
  const int channels = x_NC.extent_int(1);
  for_rows(
      "deltapipe::LayerNorm::backward", row_policy(exec, x_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        const Real* const x = &x_NC(n, 0);
        const Real* const dy = &dy_NC(n, 0);
        const Real* const weight = weight_C.data();
        const Real* const bias = bias_C.data();
        Real* const dx = &dx_NC(n, 0);
        Output* const y = &y_NC(n, 0);
        const Real mean = mean_N(n);
        const Real rstd = rstd_N(n);
        const Real mean_d =
            row_sum<Real>(team, channels, [&](int c) { return dy[c] * weight[c]; }) / channels;
        const Real mean_dx =
            row_sum<Real>(team, channels,
                          [&](int c) { return dy[c] * weight[c] * ((x[c] - mean) * rstd); }) /
            channels;
        row_for(team, channels, [&](int c) {
          const Real normal = (x[c] - mean) * rstd;
          const Real gradient = (dy[c] * weight[c] - mean_d - normal * mean_dx) * rstd;
          if constexpr (add)
            dx[c] += gradient;
          else
            dx[c] = gradient;
          y[c] = rounded_to<Output>(normal * weight[c] + bias[c]);
        });
      });
}

/// Computes dweight_C and dbias_C over all rows and adds them to the former values if `accumulate`
/// is set. A frozen one has no elements and is skipped. Sums are those of sum_columns().
template <class Real>
void layer_norm_parameter_gradient(const ExecSpace& exec, const MatrixRef<const Real>& dy_NC,
                                   const MatrixRef<const Real>& x_NC,
                                   const VectorRef<const Real>& mean_N,
                                   const VectorRef<const Real>& rstd_N, bool accumulate,
                                   const VectorRef<Real>& dweight_C, const VectorRef<Real>& dbias_C,
                                   const VectorRef<Real>& tree_workspace = {}) {
  const bool wants_weight = dweight_C.extent(0) > 0, wants_bias = dbias_C.extent(0) > 0;
  if (!wants_weight && !wants_bias) return;
  const int rows = x_NC.extent_int(0);
  const int channels = x_NC.extent_int(1);
  sum_columns<SumPair<Real>>(
      "deltapipe::LayerNorm::parameterGradient", exec, rows, channels, tree_workspace,
      DELTAPIPE_LAMBDA(int n, int c) {
        const Real dy = dy_NC(n, c);
        return SumPair<Real>{dy * ((x_NC(n, c) - mean_N(n)) * rstd_N(n)), dy};
      },
      DELTAPIPE_LAMBDA(int c, const SumPair<Real>& sum) {
        if (wants_weight) dweight_C(c) = accumulate ? dweight_C(c) + sum.first : sum.first;
        if (wants_bias) dbias_C(c) = accumulate ? dbias_C(c) + sum.second : sum.second;
      });
}

}  // namespace deltapipe
