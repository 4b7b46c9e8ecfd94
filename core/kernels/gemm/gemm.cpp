// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/gemm.hpp"

#include <KokkosBlas2_gemv.hpp>
#include <KokkosBlas3_gemm.hpp>
#include <algorithm>
#include <string>

#include "core/base/error.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/kernels/gemm/host_blas.hpp"

namespace deltapipe {

namespace {

/// Returns the column of a one-column matrix.
template <class T>
auto column_of(const MatrixRef<T>& matrix) {
  return Kokkos::View<T*, Kokkos::LayoutStride, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>(
      matrix.data(), Kokkos::LayoutStride(matrix.extent(0), matrix.stride(0)));
}

template <class Real>
void gemm_of(const ExecSpace& exec, Transpose op_a, Transpose op_b, Real alpha,
             const MatrixRef<const Real>& a, const MatrixRef<const Real>& b, Real beta,
             const MatrixRef<Real>& c) {
  if constexpr (kTeamExecution) {
    as_kernel("deltapipe::Gemm::product", exec,
              [&] { host_blas::gemm(op_a, op_b, alpha, a, b, beta, c); });
    return;
  }
  const char* letter_a = blas_letter(op_a);
  const char* letter_b = blas_letter(op_b);
  // Kokkos Kernels 4 treats an untransposed single column as contiguous, whatever its stride.
  const bool one_column = op_a == Transpose::no && op_b == Transpose::no && c.extent(1) == 1;
  if (one_column && (b.stride(0) > 1 || c.stride(0) > 1)) {
    if constexpr (requires {
                    KokkosBlas::gemv(exec, "N", alpha, a, column_of(b), beta, column_of(c));
                  })
      KokkosBlas::gemv(exec, "N", alpha, a, column_of(b), beta, column_of(c));
    else
      KokkosBlas::gemv("N", alpha, a, column_of(b), beta, column_of(c));
  } else if constexpr (requires {
                         KokkosBlas::gemm(exec, letter_a, letter_b, alpha, a, b, beta, c);
                       }) {
    KokkosBlas::gemm(exec, letter_a, letter_b, alpha, a, b, beta, c);
  } else {
    // Kokkos Kernels 3 accepts no instance; its only backend here runs in order.
    KokkosBlas::gemm(letter_a, letter_b, alpha, a, b, beta, c);
  }
}

template <class Real>
void gemm_batched_of(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                     const MatrixGrid<const Real>& a, const MatrixGrid<const Real>& b, Real beta,
                     const MatrixGrid<Real>& c, int outer, int inner) {
  const auto for_each = [&](const auto& product) {
    for (int i = 0; i < outer; ++i)
      for (int j = 0; j < inner; ++j)
        product(a.at(i, j, inner), b.at(i, j, inner), c.at(i, j, inner));
  };
  if (kTeamExecution && outer * inner > 1) {
    as_kernel("deltapipe::Gemm::products", exec, [&] {
      for_each([&](const auto& a_i, const auto& b_i, const auto& c_i) {
        host_blas::gemm<Real>(op_a, op_b, Real(1), a_i, b_i, beta, c_i);
      });
    });
    return;
  }
  for_each([&](const auto& a_i, const auto& b_i, const auto& c_i) {
    gemm(exec, op_a, op_b, Real(1), a_i, b_i, beta, c_i);
  });
}

}  // namespace

void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, float alpha,
          const MatrixRef<const float>& a, const MatrixRef<const float>& b, float beta,
          const MatrixRef<float>& c) {
  gemm_of<float>(exec, op_a, op_b, alpha, a, b, beta, c);
}

void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, double alpha,
          const MatrixRef<const double>& a, const MatrixRef<const double>& b, double beta,
          const MatrixRef<double>& c) {
  gemm_of<double>(exec, op_a, op_b, alpha, a, b, beta, c);
}

void gemm_batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixGrid<const float>& a, const MatrixGrid<const float>& b, float beta,
                  const MatrixGrid<float>& c, int outer, int inner) {
  gemm_batched_of<float>(exec, op_a, op_b, a, b, beta, c, outer, inner);
}

void gemm_batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixGrid<const double>& a, const MatrixGrid<const double>& b, double beta,
                  const MatrixGrid<double>& c, int outer, int inner) {
  gemm_batched_of<double>(exec, op_a, op_b, a, b, beta, c, outer, inner);
}

}  // namespace deltapipe
