// SPDX-License-Identifier: BSD-3-Clause
// Products of matrices in bf16 with sums in fp32.
#pragma once

#include <memory>
#include <string>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/kernels/gemm/cublas_gemm.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe {

/// Returns true if these products are faster than those of fp32 here: with oneDNN, if it was built
/// in, on processors with AVX-512 BF16 or AMX; with cuBLAS on GPUs with tensor cores for bf16.
bool has_fast_bf16_gemm();
/// Returns the reason why they are not faster, as a clause; empty if they are.
std::string fast_bf16_gemm_obstacle();
/// Returns the library of these products: "oneDNN 2.6.3", "cuBLAS", "emulated bf16".
std::string bf16_configuration();

/// y = x, rounded to nearest, ties to even.
void round_to_bf16(const ExecSpace& exec, const MatrixRef<const float>& x,
                   const MatrixRef<Bf16>& y);

/// c = op(a) * op(b) + beta * c. With beta = 0 the content of c does not matter. Rows may have
/// gaps. Products are exact; sums are rounded to fp32 in an order that depends on the processor. An
/// emulated Bf16Gemm has its own memory, so that only one thread may use it at a time.
class Bf16Gemm {
 public:
  /// Empty; must not be called.
  Bf16Gemm() = default;
  /// `emulated`: widens operands to fp32 piece by piece, for machines without bf16 instructions.
  explicit Bf16Gemm(const ViewAllocator& memory, bool emulated = !has_fast_bf16_gemm());

  void operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixRef<const Bf16>& a, const MatrixRef<const Bf16>& b, float beta,
                  const MatrixRef<float>& c) const;

  /// The same for each of outer x inner products of one shape.
  void batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
               const MatrixGrid<const Bf16>& a, const MatrixGrid<const Bf16>& b, float beta,
               const MatrixGrid<float>& c, int outer, int inner) const;

 private:
  Vector<float> widened_;  ///< pieces of both operands; empty: not emulated
#if defined(KOKKOS_ENABLE_CUDA)
  std::shared_ptr<const cublas::Gemm> cublas_;
#endif
};

}  // namespace deltapipe
