// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices by cuBLAS, one at a time or many of one shape.
#pragma once

#include <memory>

#include "core/base/numeric/precision.hpp"
#include "core/kernels/gemm/gemm.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

namespace deltapipe::cublas {

/// Returns true if the default GPU has tensor cores for bf16 and TF32 (compute capability 8.0).
bool has_bf16_and_tf32();

/// Products with a separate handle. Operands are in device memory; rows may have gaps. Sums have
/// the type of the result; operands of bf16 are multiplied exactly. Products are queued on the
/// instance that is passed, and Kokkos' tools see each call as a kernel.
class Gemm {
 public:
  /// `products` is the precision for operands of fp32. tf32 uses tensor cores, which round them to
  /// 10 bits of mantissa. UserError if cuBLAS cannot be set up.
  explicit Gemm(ProductPrecision products = ProductPrecision::fp32);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// c = op(a) * op(b) + beta * c. Factor is Bf16, with a Real of float, or Real.
  template <class Factor, class Real>
  void operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixRef<const Factor>& a, const MatrixRef<const Factor>& b, Real beta,
                  const MatrixRef<Real>& c) const;

  /// The same for each of outer x inner products, in one call. The addresses of grids that are not
  /// evenly spaced must have been written.
  template <class Factor, class Real>
  void batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
               const MatrixGrid<const Factor>& a, const MatrixGrid<const Factor>& b, Real beta,
               const MatrixGrid<Real>& c, int outer, int inner) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace deltapipe::cublas

#endif
