// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/bf16_gemm.hpp"

#include <algorithm>
#include <cstdint>

#include "core/base/error.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/base/parallel/row.hpp"
#include "core/kernels/gemm/onednn_gemm.hpp"

namespace deltapipe {

namespace {

/// Elements of both operands that are widened at a time (16 MiB), and the limit on a piece's rows
/// or columns of c: sums then have at least 32 terms between two passes over c.
constexpr int kWidened = 4 << 20;
constexpr int kWidest = 1 << 16;

/// y = the part of x that begins at row `row` and column `column`.
void widen(const ExecSpace& exec, const MatrixRef<const Bf16>& x, int row, int column,
           const MatrixRef<float>& y) {
  for_elements(
      "deltapipe::Bf16Gemm::widen", exec, y.extent_int(0), y.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) { y(n, c) = float_of_bfloat(x(row + n, column + c)); });
}

/// Returns rows [row, row + rows) and columns [column, column + columns) of op(x), widened.
MatrixRef<const float> widened(const ExecSpace& exec, Transpose op, const MatrixRef<const Bf16>& x,
                               int row, int rows, int column, int columns, float* memory) {
  const bool turned = op == Transpose::yes;
  const MatrixRef<float> y(memory, turned ? columns : rows, turned ? rows : columns);
  widen(exec, x, turned ? column : row, turned ? row : column, y);
  return y;
}

}  // namespace

bool has_fast_bf16_gemm() {
#if defined(KOKKOS_ENABLE_CUDA)
  return cublas::has_bf16_and_tf32();
#else
  return kHostExecution && onednn::has_bf16_instructions();
#endif
}

std::string fast_bf16_gemm_obstacle() {
  if (has_fast_bf16_gemm()) return "";
  if constexpr (kHostExecution) return onednn::obstacle();
  return "the GPU has no instructions for bf16 (compute capability 8.0 and above)";
}

std::string bf16_configuration() {
  if (!has_fast_bf16_gemm()) return "emulated bf16";
#if defined(KOKKOS_ENABLE_CUDA)
  return "cuBLAS";
#else
  return onednn::version();
#endif
}

void round_to_bf16(const ExecSpace& exec, const MatrixRef<const float>& x,
                   const MatrixRef<Bf16>& y) {
  const auto has_gaps = [&](const auto& matrix) { return matrix.stride(0) != matrix.extent(1); };
  if (!has_gaps(x) && !has_gaps(y)) {
    const float* const from = x.data();
    Bf16* const to = y.data();
    for_tiles(
        "deltapipe::Bf16Gemm::round", exec, static_cast<std::int64_t>(x.size()),
        DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
          for (std::int64_t i = first; i < end; ++i) to[i] = bfloat_of(from[i]);
        });
    return;
  }
  for_elements(
      "deltapipe::Bf16Gemm::roundRows", exec, x.extent_int(0), x.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) { y(n, c) = bfloat_of(x(n, c)); });
}

Bf16Gemm::Bf16Gemm(const ViewAllocator& memory, bool emulated) {
#if defined(KOKKOS_ENABLE_CUDA)
  if (!emulated && !memory.only_counts()) cublas_ = std::make_shared<const cublas::Gemm>();
#endif
  if (emulated)
    widened_ = memory.uninitialized<Vector<float>>(MemoryUse::workspace,
                                                   "deltapipe::Bf16Gemm::widened", kWidened);
}

void Bf16Gemm::operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                          const MatrixRef<const Bf16>& a, const MatrixRef<const Bf16>& b,
                          float beta, const MatrixRef<float>& c) const {
  const int M = c.extent_int(0), N = c.extent_int(1);
  const int K = a.extent_int(op_a == Transpose::yes ? 0 : 1);
  DELTAPIPE_ASSERT(a.extent_int(op_a == Transpose::yes ? 1 : 0) == M &&
                       b.extent_int(op_b == Transpose::yes ? 0 : 1) == N &&
                       b.extent_int(op_b == Transpose::yes ? 1 : 0) == K,
                   "operands do not fit");
  if (widened_.extent(0) == 0) {
#if defined(KOKKOS_ENABLE_CUDA)
    (*cublas_)(exec, op_a, op_b, a, b, beta, c);
#else
    as_kernel("deltapipe::Bf16Gemm::product", exec,
              [&] { onednn::gemm_bf16(op_a, op_b, a, b, beta, c); });
#endif
    return;
  }
  DELTAPIPE_ASSERT(!HostTeam::is_inside(), "emulated products of several threads");
  for (int row = 0; row < M; row += kWidest) {
    for (int column = 0; column < N; column += kWidest) {
      const int rows = std::min(kWidest, M - row);
      const int columns = std::min(kWidest, N - column);
      const int depth = std::min(K, kWidened / (rows + columns));
      const MatrixRef<float> part =
          strided_matrix(c.data() + row * c.stride(0) + column, rows, columns, c.stride(0));
      for (int term = 0; term < K; term += depth) {
        const int terms = std::min(depth, K - term);
        float* const memory = widened_.data();
        gemm(exec, op_a, op_b, 1.0f, widened(exec, op_a, a, row, rows, term, terms, memory),
             widened(exec, op_b, b, term, terms, column, columns,
                     memory + static_cast<std::size_t>(rows) * terms),
             term == 0 ? beta : 1.0f, part);
      }
    }
  }
}

void Bf16Gemm::batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                       const MatrixGrid<const Bf16>& a, const MatrixGrid<const Bf16>& b, float beta,
                       const MatrixGrid<float>& c, int outer, int inner) const {
  const auto for_each = [&](const auto& product) {
    for (int i = 0; i < outer; ++i)
      for (int j = 0; j < inner; ++j)
        product(a.at(i, j, inner), b.at(i, j, inner), c.at(i, j, inner));
  };
#if defined(KOKKOS_ENABLE_CUDA)
  if (cublas_) return cublas_->batched(exec, op_a, op_b, a, b, beta, c, outer, inner);
#else
  if (widened_.extent(0) == 0 && outer * inner > 1) {
    as_kernel("deltapipe::Bf16Gemm::products", exec, [&] {
      for_each([&](const auto& a_i, const auto& b_i, const auto& c_i) {
        onednn::gemm_bf16(op_a, op_b, a_i, b_i, beta, c_i);
      });
    });
    return;
  }
#endif
  for_each([&](const auto& a_i, const auto& b_i, const auto& c_i) {
    (*this)(exec, op_a, op_b, a_i, b_i, beta, c_i);
  });
}

}  // namespace deltapipe
