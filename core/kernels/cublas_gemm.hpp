// SPDX-License-Identifier: BSD-3-Clause
// Products of bf16 matrices by cuBLAS.
#pragma once

#include <memory>

#include "core/base/precision.hpp"
#include "core/kernels/gemm.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

namespace deltapipe::cublas {

/// The default GPU has tensor cores for bf16 (compute capability 8.0).
bool has_bf16_instructions();

class Gemm {
 public:
  /// UserError when cuBLAS cannot be set up.
  Gemm();
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  /// c = op(a) * op(b) + beta * c, sums of K terms in fp32; queued on `exec`. Operands are in
  /// device memory; rows may have gaps.
  void operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b, int K,
                  const MatrixRef<const Bf16>& a, const MatrixRef<const Bf16>& b, float beta,
                  const MatrixRef<float>& c) const;

 private:
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

}  // namespace deltapipe::cublas

#endif
