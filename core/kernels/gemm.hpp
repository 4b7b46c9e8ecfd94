// SPDX-License-Identifier: BSD-3-Clause
// Dense matrix products through Kokkos Kernels, which hands them to the vendor's BLAS.
#pragma once

#include "core/base/views.hpp"

namespace deltapipe {

enum class Transpose { no, yes };

/// c = alpha * op(a) * op(b) + beta * c. With beta = 0 the content of c does not matter.
/// Rows may be further apart than they are long (subviews of wider matrices).
void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, float alpha,
          const MatrixRef<const float>& a, const MatrixRef<const float>& b, float beta,
          const MatrixRef<float>& c);
void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, double alpha,
          const MatrixRef<const double>& a, const MatrixRef<const double>& b, double beta,
          const MatrixRef<double>& c);

/// `count` products of one shape; the i-th operands lie i * stride_x elements behind the first.
template <class Real>
void gemm_batched(const ExecSpace& exec, Transpose op_a, Transpose op_b, Real alpha,
                  const MatrixRef<const Real>& a, std::size_t stride_a,
                  const MatrixRef<const Real>& b, std::size_t stride_b, Real beta,
                  const MatrixRef<Real>& c, std::size_t stride_c, int count) {
  for (int i = 0; i < count; ++i)
    gemm(exec, op_a, op_b, alpha,
         strided_matrix(a.data() + i * stride_a, a.extent_int(0), a.extent_int(1), a.stride(0)),
         strided_matrix(b.data() + i * stride_b, b.extent_int(0), b.extent_int(1), b.stride(0)),
         beta,
         strided_matrix(c.data() + i * stride_c, c.extent_int(0), c.extent_int(1), c.stride(0)));
}

}  // namespace deltapipe
