// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/host_blas.hpp"

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "core/base/parallel/host_team.hpp"

// A BLAS stores matrices by columns: it multiplies the transposed matrices, in reverse order.
extern "C" {
void sgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k,
            const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
            const float* beta, float* c, const int* ldc);
void dgemm_(const char* op_a, const char* op_b, const int* m, const int* n, const int* k,
            const double* alpha, const double* a, const int* lda, const double* b, const int* ldb,
            const double* beta, double* c, const int* ldc);
void sgemv_(const char* op, const int* m, const int* n, const float* alpha, const float* a,
            const int* lda, const float* x, const int* incx, const float* beta, float* y,
            const int* incy);
void dgemv_(const char* op, const int* m, const int* n, const double* alpha, const double* a,
            const int* lda, const double* x, const int* incx, const double* beta, double* y,
            const int* incy);
}

namespace deltapipe::host_blas {

namespace {

/// Multiplications that justify waking a thread (about 20 us).
constexpr std::int64_t kLeastProduct = std::int64_t{1} << 21;
/// Elements of a matrix that justify waking a thread if each is used once.
constexpr std::int64_t kLeastElements = std::int64_t{1} << 17;
/// Slabs begin at multiples of it: a cache line, and the unit of BLAS' innermost kernels.
constexpr int kUnit = 16;

/// Returns the start of part `i` if `extent` is divided into `parts`.
int bound(int extent, int parts, int i) {
  if (i == parts) return extent;
  const int units = (extent + kUnit - 1) / kUnit;
  return std::min(extent, static_cast<int>(std::int64_t{units} * i / parts) * kUnit);
}

/// Returns the size of the largest part.
std::int64_t largest_part(int extent, int parts) {
  const int units = (extent + kUnit - 1) / kUnit;
  return std::int64_t{(units + parts - 1) / parts} * kUnit;
}

template <class T>
int row_stride(const MatrixRef<T>& matrix) {
  return std::max(1, static_cast<int>(matrix.stride(0)));
}

template <class Real>
void multiply(Transpose op_a, Transpose op_b, int M, int N, int K, Real alpha, const Real* a,
              int lda, const Real* b, int ldb, Real beta, Real* c, int ldc) {
  if constexpr (std::is_same_v<Real, float>)
    sgemm_(blas_letter(op_b), blas_letter(op_a), &N, &M, &K, &alpha, b, &ldb, a, &lda, &beta, c,
           &ldc);
  else
    dgemm_(blas_letter(op_b), blas_letter(op_a), &N, &M, &K, &alpha, b, &ldb, a, &lda, &beta, c,
           &ldc);
}

template <class Real>
void multiply_vector(Transpose op, int rows, int columns, const Real* a, int lda, const Real* x,
                     Real beta, Real* y) {
  const int one = 1;
  const Real alpha = 1;
  const char* const turned = op == Transpose::yes ? "N" : "T";
  if constexpr (std::is_same_v<Real, float>)
    sgemv_(turned, &columns, &rows, &alpha, a, &lda, x, &one, &beta, y, &one);
  else
    dgemv_(turned, &columns, &rows, &alpha, a, &lda, x, &one, &beta, y, &one);
}

}  // namespace

Slabs::Slabs(int M, int N, int K) : M_(M), N_(N) {
  if (HostTeam::is_inside()) return;
  const std::int64_t work = std::int64_t{M} * N * std::max(1, K);
  const int parts =
      static_cast<int>(std::min<std::int64_t>(HostTeam::instance().size(), work / kLeastProduct));
  std::int64_t least = largest_part(M, 1) + largest_part(N, 1);
  for (int down = 1; down <= parts; ++down) {
    if (parts % down != 0) continue;
    const int across = parts / down;
    const std::int64_t packed = largest_part(M, down) + largest_part(N, across);
    if (packed >= least) continue;
    least = packed;
    down_ = down;
    across_ = across;
  }
}

Slab Slabs::operator[](int i) const {
  const int down = i / across_, across = i % across_;
  const int row = bound(M_, down_, down), column = bound(N_, across_, across);
  return {row, bound(M_, down_, down + 1) - row, column, bound(N_, across_, across + 1) - column};
}

template <class Real>
void gemm(Transpose op_a, Transpose op_b, Real alpha, const MatrixRef<const Real>& a,
          const MatrixRef<const Real>& b, Real beta, const MatrixRef<Real>& c) {
  const int K = a.extent_int(op_a == Transpose::yes ? 0 : 1);
  const int lda = row_stride(a), ldb = row_stride(b), ldc = row_stride(c);
  const Slabs slabs(c.extent_int(0), c.extent_int(1), K);
  HostTeam::instance().run(slabs.count(), [&](int i) {
    const Slab slab = slabs[i];
    if (slab.rows == 0 || slab.columns == 0) return;
    const std::size_t row = slab.row, column = slab.column;
    multiply(op_a, op_b, slab.rows, slab.columns, K, alpha,
             a.data() + (op_a == Transpose::yes ? row : row * lda), lda,
             b.data() + (op_b == Transpose::yes ? column * ldb : column), ldb, beta,
             c.data() + row * ldc + column, ldc);
  });
}

template <class Real>
void gemv(Transpose op, const MatrixRef<const Real>& a, const VectorRef<const Real>& x, Real beta,
          const VectorRef<Real>& y) {
  const int rows = a.extent_int(0), columns = a.extent_int(1), lda = row_stride(a);
  const int terms = op == Transpose::yes ? rows : columns;
  const int least = static_cast<int>(
      std::min<std::int64_t>(1 << 30, kLeastElements / std::max(1, terms) + kUnit));
  HostTeam::instance().share(y.extent_int(0), least, [&](int first, int end) {
    if (op == Transpose::yes)
      multiply_vector(op, rows, end - first, a.data() + first, lda, x.data(), beta,
                      y.data() + first);
    else
      multiply_vector(op, end - first, columns, a.data() + static_cast<std::size_t>(first) * lda,
                      lda, x.data(), beta, y.data() + first);
  });
}

template void gemm(Transpose, Transpose, float, const MatrixRef<const float>&,
                   const MatrixRef<const float>&, float, const MatrixRef<float>&);
template void gemm(Transpose, Transpose, double, const MatrixRef<const double>&,
                   const MatrixRef<const double>&, double, const MatrixRef<double>&);
template void gemv(Transpose, const MatrixRef<const float>&, const VectorRef<const float>&, float,
                   const VectorRef<float>&);
template void gemv(Transpose, const MatrixRef<const double>&, const VectorRef<const double>&,
                   double, const VectorRef<double>&);

}  // namespace deltapipe::host_blas
