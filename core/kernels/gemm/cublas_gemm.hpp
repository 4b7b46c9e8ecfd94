// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices by cuBLAS, one or many of a shape at a time.
#pragma once

#include <memory>

#include "core/base/numeric/precision.hpp"
#include "core/kernels/gemm/gemm.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

namespace deltapipe::cublas {

/// The default GPU has tensor cores for bf16 and TF32 (compute capability 8.0).
bool has_bf16_and_tf32();

/// Products with a handle of their own. Operands are in device memory; rows may have gaps. Sums are
/// of the results' type; operands of bf16 are multiplied exactly. Products are queued on the
/// instance that they are given, and Kokkos' tools see each call as a kernel.
class Gemm {
 public:
  /// `products`: of operands of fp32; tf32: by tensor cores, which round them to 10 bits of
  /// mantissa. UserError when cuBLAS cannot be set up.
  explicit Gemm(ProductPrecision products = ProductPrecision::fp32);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// c = op(a) * op(b) + beta * c. Factor is Bf16, with a Real of float, or Real.
  template <class Factor, class Real>
  void operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixRef<const Factor>& a, const MatrixRef<const Factor>& b, Real beta,
                  const MatrixRef<Real>& c) const;

  /// The same for each of outer x inner products, in one call. Grids that are not evenly spaced
  /// must have all their addresses written.
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
