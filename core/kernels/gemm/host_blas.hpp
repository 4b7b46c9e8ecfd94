// SPDX-License-Identifier: BSD-3-Clause
// Products on processors, shared by the threads of a HostTeam: each thread multiplies a separate
// part with a BLAS of one thread.
#pragma once

#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe::host_blas {

/// Rows [row, row + rows) and columns [column, column + columns) of a product.
struct Slab {
  int row, rows, column, columns;
};

/// Division of a product of M x N sums with K terms among a HostTeam: a grid of nearly square
/// slabs, so that little of the operands is packed twice.
class Slabs {
 public:
  Slabs(int M, int N, int K);
  int count() const { return down_ * across_; }
  /// Returns a slab, which may be empty.
  Slab operator[](int i) const;

 private:
  int M_, N_;
  int down_ = 1, across_ = 1;
};

/// c = alpha * op(a) * op(b) + beta * c; rows may have gaps.
template <class Real>
void gemm(Transpose op_a, Transpose op_b, Real alpha, const MatrixRef<const Real>& a,
          const MatrixRef<const Real>& b, Real beta, const MatrixRef<Real>& c);

/// y = op(a) x + beta * y; rows of a may have gaps.
template <class Real>
void gemv(Transpose op, const MatrixRef<const Real>& a, const VectorRef<const Real>& x, Real beta,
          const VectorRef<Real>& y);

}  // namespace deltapipe::host_blas
