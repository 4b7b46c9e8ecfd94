// SPDX-License-Identifier: BSD-3-Clause
// Batch normalisation over the rows of each channel (arXiv 1502.03167), and the functions that
// follow it in residual networks: y = relu(norm(x)) and y = relu(norm(x) + shortcut).
// norm(x) = (x - mean) * rstd * weight + bias. NaN remains NaN.
#pragma once

#include <cmath>

#include "core/base/parallel/row.hpp"
#include "core/kernels/layers/column_sums.hpp"

namespace deltapipe {

/// The normalization of a matrix' columns; each View is [C]. A default one is the identity.
template <class Real>
struct ColumnNorm {
  VectorRef<const Real> mean, rstd, weight, bias;

  KOKKOS_FORCEINLINE_FUNCTION bool is_identity() const { return mean.data() == nullptr; }
  KOKKOS_FORCEINLINE_FUNCTION Real normal(Real x, int c) const {
    return (x - mean.data()[c]) * rstd.data()[c];
  }
  KOKKOS_FORCEINLINE_FUNCTION Real operator()(Real x, int c) const {
    return normal(x, c) * weight.data()[c] + bias.data()[c];
  }
};

/// Computes each column's mean, biased variance and 1 / sqrt(variance + epsilon). Sums are in fp64.
template <class Real>
void batch_statistics(const ExecSpace& exec, const MatrixRef<const Real>& x_NC, double epsilon,
                      const VectorRef<Real>& mean_C, const VectorRef<Real>& variance_C,
                      const VectorRef<Real>& rstd_C, const VectorRef<double>& tree_workspace) {
  const int rows = x_NC.extent_int(0);
  sum_columns<SumPair<double>>(
      "deltapipe::BatchNorm::statistics", exec, rows, x_NC.extent_int(1), tree_workspace,
      DELTAPIPE_LAMBDA(int n, int c) {
        const double x = x_NC(n, c);
        return SumPair<double>{x, x * x};
      },
      DELTAPIPE_LAMBDA(int c, const SumPair<double>& sum) {
        const double mean = sum.first / rows;
        const double square = sum.second / rows - mean * mean;
        const double variance = square < 0 ? 0 : square;
        mean_C(c) = static_cast<Real>(mean);
        variance_C(c) = static_cast<Real>(variance);
        rstd_C(c) = static_cast<Real>(1 / std::sqrt(variance + epsilon));
      });
}

/// Moves running statistics by `momentum` towards those of a batch of `rows` rows, whose variance
/// becomes unbiased, as in torch.nn.BatchNorm2d. One row has no variance: nothing moves.
template <class Real>
void update_running_statistics(const ExecSpace& exec, int rows, double momentum,
                               const VectorRef<const Real>& mean_C,
                               const VectorRef<const Real>& variance_C,
                               const VectorRef<Real>& running_mean_C,
                               const VectorRef<Real>& running_variance_C) {
  if (rows < 2) return;
  const Real share = static_cast<Real>(momentum), kept = static_cast<Real>(1 - momentum);
  const Real unbiased = static_cast<Real>(rows / (rows - 1.0));
  for_range(
      "deltapipe::BatchNorm::running", exec, mean_C.extent_int(0), DELTAPIPE_LAMBDA(int c) {
        running_mean_C(c) = kept * running_mean_C(c) + share * mean_C(c);
        running_variance_C(c) = kept * running_variance_C(c) + share * unbiased * variance_C(c);
      });
}

/// Sets a norm's mean and rstd to the running statistics.
template <class Real>
void use_running_statistics(const ExecSpace& exec, double epsilon,
                            const VectorRef<const Real>& running_mean_C,
                            const VectorRef<const Real>& running_variance_C,
                            const VectorRef<Real>& mean_C, const VectorRef<Real>& rstd_C) {
  for_range(
      "deltapipe::BatchNorm::useRunning", exec, mean_C.extent_int(0), DELTAPIPE_LAMBDA(int c) {
        mean_C(c) = running_mean_C(c);
        rstd_C(c) =
            static_cast<Real>(1 / std::sqrt(static_cast<double>(running_variance_C(c)) + epsilon));
      });
}

/// y_NC = relu(norm(x_NC)). x and y may be the same memory.
template <class Real>
void norm_relu(const ExecSpace& exec, const MatrixRef<const Real>& x_NC,
               const ColumnNorm<Real>& norm, const MatrixRef<Real>& y_NC) {
  for_elements(
      "deltapipe::BatchNorm::relu", exec, x_NC.extent_int(0), x_NC.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) {
        const Real value = norm(x_NC(n, c), c);
        y_NC(n, c) = value <= 0 ? Real(0) : value;
      });
}

/// Replaces dL/dy in g_NC by dL/d(norm(x)).
template <class Real>
void norm_relu_backward(const ExecSpace& exec, const MatrixRef<const Real>& x_NC,
                        const ColumnNorm<Real>& norm, const MatrixRef<Real>& g_NC) {
  for_elements(
      "deltapipe::BatchNorm::reluBackward", exec, x_NC.extent_int(0), x_NC.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) {
        const Real value = norm(x_NC(n, c), c);
        g_NC(n, c) = value <= 0 ? Real(0) : g_NC(n, c);
      });
}

namespace batch_norm_kernels {

/// Returns the sum before the last relu of a residual block.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real residual_sum(Real x, const ColumnNorm<Real>& norm, Real shortcut,
                                              const ColumnNorm<Real>& shortcut_norm, int c) {
  return norm(x, c) + (shortcut_norm.is_identity() ? shortcut : shortcut_norm(shortcut, c));
}

}  // namespace batch_norm_kernels

/// y_NC = relu(norm(x_NC) + shortcut_norm(shortcut_NC)).
template <class Real>
void residual_relu(const ExecSpace& exec, const MatrixRef<const Real>& x_NC,
                   const ColumnNorm<Real>& norm, const MatrixRef<const Real>& shortcut_NC,
                   const ColumnNorm<Real>& shortcut_norm, const MatrixRef<Real>& y_NC) {
  for_elements(
      "deltapipe::Residual::relu", exec, x_NC.extent_int(0), x_NC.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) {
        const Real sum =
            batch_norm_kernels::residual_sum(x_NC(n, c), norm, shortcut_NC(n, c), shortcut_norm, c);
        y_NC(n, c) = sum <= 0 ? Real(0) : sum;
      });
}

/// Replaces dL/dy in g_NC by the gradient of the sum before the relu.
template <class Real>
void residual_relu_backward(const ExecSpace& exec, const MatrixRef<const Real>& x_NC,
                            const ColumnNorm<Real>& norm, const MatrixRef<const Real>& shortcut_NC,
                            const ColumnNorm<Real>& shortcut_norm, const MatrixRef<Real>& g_NC) {
  for_elements(
      "deltapipe::Residual::reluBackward", exec, x_NC.extent_int(0), x_NC.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) {
        const Real sum =
            batch_norm_kernels::residual_sum(x_NC(n, c), norm, shortcut_NC(n, c), shortcut_norm, c);
        g_NC(n, c) = sum <= 0 ? Real(0) : g_NC(n, c);
      });
}

/// The backward pass of norm(x) over the batch: dx_NC, which may be dy_NC, from dy_NC. Adds the
/// gradients of weight and bias to dweight_C and dbias_C if `accumulate` is set, else writes them;
/// frozen ones are empty. `sums` has 2C elements.
template <class Real>
void batch_norm_backward(const ExecSpace& exec, const MatrixRef<const Real>& dy_NC,
                         const MatrixRef<const Real>& x_NC, const ColumnNorm<Real>& norm,
                         bool accumulate, const VectorRef<Real>& dweight_C,
                         const VectorRef<Real>& dbias_C, const MatrixRef<Real>& dx_NC,
                         const VectorRef<Real>& sums, const VectorRef<double>& tree_workspace) {
  const int rows = x_NC.extent_int(0), channels = x_NC.extent_int(1);
  const bool has_weight = dweight_C.extent(0) > 0, has_bias = dbias_C.extent(0) > 0;
  sum_columns<SumPair<double>>(
      "deltapipe::BatchNorm::gradientSums", exec, rows, channels, tree_workspace,
      DELTAPIPE_LAMBDA(int n, int c) {
        const double dy = dy_NC(n, c);
        return SumPair<double>{dy * static_cast<double>(norm.normal(x_NC(n, c), c)), dy};
      },
      DELTAPIPE_LAMBDA(int c, const SumPair<double>& sum) {
        const Real dweight = static_cast<Real>(sum.first), dbias = static_cast<Real>(sum.second);
        if (has_weight) dweight_C(c) = accumulate ? dweight_C(c) + dweight : dweight;
        if (has_bias) dbias_C(c) = accumulate ? dbias_C(c) + dbias : dbias;
        sums(c) = static_cast<Real>(sum.first / rows);
        sums(channels + c) = static_cast<Real>(sum.second / rows);
      });
  for_elements(
      "deltapipe::BatchNorm::backward", exec, rows, channels, DELTAPIPE_LAMBDA(int n, int c) {
        const Real mean_dx = sums(c), mean_d = sums(channels + c);
        const Real gradient = dy_NC(n, c) - mean_d - norm.normal(x_NC(n, c), c) * mean_dx;
        dx_NC(n, c) = gradient * norm.weight.data()[c] * norm.rstd.data()[c];
      });
}

}  // namespace deltapipe
