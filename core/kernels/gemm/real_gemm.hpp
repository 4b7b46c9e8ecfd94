// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices of fp32 or fp64; on NVIDIA GPUs optionally in TF32.
#pragma once

#include <memory>
#include <string>

#include "core/base/numeric/precision.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/kernels/gemm/cublas_gemm.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe {

/// Returns the reason why this machine has no products in TF32, as a clause; empty if it has them.
std::string tf32_obstacle();

/// Products by a separate cuBLAS handle on NVIDIA GPUs, elsewhere by gemm() and gemm_batched().
class RealGemm {
 public:
  /// Uses gemm() everywhere; products of a grid that is not evenly spaced run one at a time.
  RealGemm() = default;
  /// `products`: fp32, or tf32 if tf32_obstacle() is empty.
  explicit RealGemm(const ViewAllocator& memory,
                    ProductPrecision products = ProductPrecision::fp32);

  /// c = op(a) * op(b) + beta * c, like gemm().
  template <class Real>
  void operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixRef<const Real>& a, const MatrixRef<const Real>& b, Real beta,
                  const MatrixRef<Real>& c) const {
#if defined(KOKKOS_ENABLE_CUDA)
    if (cublas_) return (*cublas_)(exec, op_a, op_b, a, b, beta, c);
#endif
    gemm(exec, op_a, op_b, Real(1), a, b, beta, c);
  }

  /// The same for each of outer x inner products of one shape.
  template <class Real>
  void batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
               const MatrixGrid<const Real>& a, const MatrixGrid<const Real>& b, Real beta,
               const MatrixGrid<Real>& c, int outer, int inner) const {
#if defined(KOKKOS_ENABLE_CUDA)
    if (cublas_) return cublas_->batched(exec, op_a, op_b, a, b, beta, c, outer, inner);
#endif
    gemm_batched(exec, op_a, op_b, a, b, beta, c, outer, inner);
  }

#if defined(KOKKOS_ENABLE_CUDA)
 private:
  std::shared_ptr<const cublas::Gemm> cublas_;
#endif
};

}  // namespace deltapipe
