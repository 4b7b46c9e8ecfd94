// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices of fp32 or fp64, on NVIDIA GPUs in TF32 if wanted.
#pragma once

#include <memory>
#include <string>

#include "core/base/numeric/precision.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/kernels/gemm/cublas_gemm.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe {

/// Why this machine has no products in TF32, as a clause; empty where it has.
std::string tf32_obstacle();

/// On NVIDIA GPUs by a cuBLAS handle of its own, elsewhere as gemm() and gemm_batched().
class RealGemm {
 public:
  /// As gemm() everywhere; products of a grid that is not evenly spaced are then one by one.
  RealGemm() = default;
  /// `products`: fp32, or tf32 where tf32_obstacle() is empty.
  explicit RealGemm(const ViewAllocator& memory,
                    ProductPrecision products = ProductPrecision::fp32);

  /// c = op(a) * op(b) + beta * c, as gemm().
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
