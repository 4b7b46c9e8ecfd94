// SPDX-License-Identifier: BSD-3-Clause
// Matrix-vector products through Kokkos Kernels, and linear layers of few rows built on them: for
// one row, a matrix product would first pack the whole matrix.
#pragma once

#include "core/kernels/layers/linear.hpp"

namespace deltapipe {

/// y = op(a) x + beta * y. With beta = 0 the content of y does not matter. The rows of a must not
/// have gaps.
void gemv(const ExecSpace& exec, Transpose op, const MatrixRef<const float>& a,
          const VectorRef<const float>& x, float beta, const VectorRef<float>& y);
void gemv(const ExecSpace& exec, Transpose op, const MatrixRef<const double>& a,
          const VectorRef<const double>& x, double beta, const VectorRef<double>& y);

/// Returns the first row of a matrix.
template <class T>
VectorRef<T> first_row(const MatrixRef<T>& matrix) {
  return VectorRef<T>(matrix.data(), matrix.extent(1));
}

/// y_NO += x_NI W_IO
template <class Real>
void add_product(const ExecSpace& exec, const MatrixRef<const Real>& x_NI,
                 const MatrixRef<const Real>& w_IO, const MatrixRef<Real>& y_NO) {
  if (x_NI.extent(0) == 1)
    gemv(exec, Transpose::yes, w_IO, first_row(x_NI), Real(1), first_row(y_NO));
  else
    gemm(exec, Transpose::no, Transpose::no, Real(1), x_NI, w_IO, Real(1), y_NO);
}

/// y_NO = x_NI W_IO + b_O, like linear_forward().
template <class Real>
void few_rows_linear(const ExecSpace& exec, const MatrixRef<const Real>& x_NI,
                     const MatrixRef<const Real>& w_IO, const VectorRef<const Real>& b_O,
                     const MatrixRef<Real>& y_NO) {
  fill_rows<Real>(exec, b_O, y_NO);
  add_product<Real>(exec, x_NI, w_IO, y_NO);
}

/// out_NC = residual_NC + x_NI W_IC + b_C, like linear_residual_forward() without dropout.
template <class Real>
void few_rows_linear_residual(const ExecSpace& exec, const MatrixRef<const Real>& x_NI,
                              const MatrixRef<const Real>& w_IC, const VectorRef<const Real>& b_C,
                              const MatrixRef<const Real>& residual_NC,
                              const MatrixRef<Real>& out_NC) {
  add_bias<Real>(exec, residual_NC, b_C, out_NC);
  add_product<Real>(exec, x_NI, w_IC, out_NC);
}

}  // namespace deltapipe
