// SPDX-License-Identifier: BSD-3-Clause
// Products whose sums remain in a processor's registers, one tile of rows and columns at a time. A
// sum adds its terms one after another in every tile. Each term is rounded once if the compiler may
// use fused multiply-adds. With the same terms, a sum therefore has the same bits in every row and
// column.
#pragma once

#if defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#include <cmath>
#include <cstddef>
#include <type_traits>

namespace deltapipe::tiles {

#if defined(__AVX512F__) && defined(__FMA__)
inline constexpr int kVectorBytes = 64, kTileVectors = 4;  // 24 of 32 registers are sums
#elif defined(__AVX__)
inline constexpr int kVectorBytes = 32, kTileVectors = 2;  // 12 of 16 registers are sums
#elif defined(__aarch64__)
inline constexpr int kVectorBytes = 16, kTileVectors = 4;
#else
inline constexpr int kVectorBytes = 16, kTileVectors = 2;
#endif
inline constexpr int kLeastVectorBytes = 16;

inline constexpr int kTileRows = 6;
template <class Real>
inline constexpr int kTileColumns = kTileVectors* kVectorBytes / static_cast<int>(sizeof(Real));

inline constexpr int kLineBytes = 64;

template <class Real, int kBytes>
struct VectorOf {
  using Type [[gnu::vector_size(kBytes)]] = Real;
  /// The same vector in memory, without alignment.
  using InMemory [[gnu::vector_size(kBytes), gnu::aligned(alignof(Real)), gnu::may_alias]] = Real;
};

/// Returns sum + a b, rounded once if the processor can. The operation is explicit, because GCC
/// does not fuse additions to a single sum when it tunes for some processors (--param
/// avoid-fma-max-bits).
template <class Real>
Real add_product(Real sum, Real a, Real b) {
#if defined(__FMA__) || defined(__aarch64__)
  return std::fma(a, b, sum);
#else
  return sum + a * b;
#endif
}

#if defined(__FMA__)
inline __m128 add_products(__m128 sum, __m128 a, __m128 b) {
  return _mm_fmadd_ps(a, b, sum);
}
inline __m128d add_products(__m128d sum, __m128d a, __m128d b) {
  return _mm_fmadd_pd(a, b, sum);
}
inline __m256 add_products(__m256 sum, __m256 a, __m256 b) {
  return _mm256_fmadd_ps(a, b, sum);
}
inline __m256d add_products(__m256d sum, __m256d a, __m256d b) {
  return _mm256_fmadd_pd(a, b, sum);
}
#if defined(__AVX512F__)
inline __m512 add_products(__m512 sum, __m512 a, __m512 b) {
  return _mm512_fmadd_ps(a, b, sum);
}
inline __m512d add_products(__m512d sum, __m512d a, __m512d b) {
  return _mm512_fmadd_pd(a, b, sum);
}
#endif
#elif defined(__aarch64__)
inline float32x4_t add_products(float32x4_t sum, float32x4_t a, float32x4_t b) {
  return vfmaq_f32(sum, a, b);
}
inline float64x2_t add_products(float64x2_t sum, float64x2_t a, float64x2_t b) {
  return vfmaq_f64(sum, a, b);
}
#else
template <class Vector>
Vector add_products(Vector sum, Vector a, Vector b) {
  return sum + a * b;
}
#endif

/// c = a b or, with `accumulate`, c + a b: element (r, d) of a is at a[r * a_row + d * a_depth],
/// (d, n) of b at b[d * b_row + n].
template <class Real>
struct Product {
  int depth;
  const Real* a;
  std::size_t a_row, a_depth;
  const Real* b;
  std::size_t b_row;
  bool accumulate;
  Real* c;
  std::size_t c_row;
};

/// Computes kRows rows and kVectors vectors of kBytes, beginning at `column`.
template <int kRows, int kVectors, int kBytes, class Real>
void multiply_tile(const Product<Real>& of, int column) {
  using Vector = typename VectorOf<Real, kBytes>::Type;
  using InMemory = typename VectorOf<Real, kBytes>::InMemory;
  static_assert(sizeof(InMemory) == kBytes && alignof(InMemory) == alignof(Real));
  constexpr int kLanes = kBytes / static_cast<int>(sizeof(Real));
  Real* const c = of.c + column;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVectors * kBytes; v += kLineBytes)
      __builtin_prefetch(c + r * of.c_row + v / sizeof(Real), 1);
  Vector sum[kRows][kVectors] = {};
  const Real* a = of.a;
  const Real* b = of.b + column;
  const auto add = [&] {
    Vector x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = *reinterpret_cast<const InMemory*>(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = a[r * of.a_row] - Vector{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] = add_products(sum[r][v], factor, x[v]);
    }
    a += of.a_depth;
    b += of.b_row;
  };
  for (int d = 0; d < of.depth; ++d) add();
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      InMemory* const place = reinterpret_cast<InMemory*>(c + r * of.c_row + v * kLanes);
      *place = of.accumulate ? (Vector)*place + sum[r][v] : sum[r][v];
    }
}

/// Computes columns [column, columns) in vectors of kBytes, and the rest in smaller ones.
template <int kRows, int kBytes, class Real>
void multiply_rest(const Product<Real>& of, int column, int columns) {
  if constexpr (kBytes >= kLeastVectorBytes) {
    constexpr int kLanes = kBytes / static_cast<int>(sizeof(Real));
    for (; column + kLanes <= columns; column += kLanes)
      multiply_tile<kRows, 1, kBytes>(of, column);
    multiply_rest<kRows, kBytes / 2>(of, column, columns);
  } else {
    for (; column < columns; ++column)
      for (int r = 0; r < kRows; ++r) {
        Real& c = of.c[r * of.c_row + column];
        Real sum = 0;
        for (int d = 0; d < of.depth; ++d)
          sum = add_product(sum, of.a[r * of.a_row + d * of.a_depth], of.b[d * of.b_row + column]);
        c = of.accumulate ? c + sum : sum;
      }
  }
}

/// Computes at most kTileColumns columns.
template <int kRows, class Real>
void multiply_rows(const Product<Real>& of, int columns) {
  constexpr int kHalf = kTileColumns<Real> / 2;
  if (columns == kTileColumns<Real>) return multiply_tile<kRows, kTileVectors, kVectorBytes>(of, 0);
  int column = 0;
  if (columns >= kHalf) {
    multiply_tile<kRows, kTileVectors / 2, kVectorBytes>(of, 0);
    column = kHalf;
  }
  multiply_rest<kRows, kVectorBytes>(of, column, columns);
}

/// Computes `rows` rows, up to kRows, of at most kTileColumns columns.
template <class Real, int kRows = kTileRows>
void multiply(const Product<Real>& of, int rows, int columns) {
  if constexpr (kRows > 1)
    if (rows < kRows) return multiply<Real, kRows - 1>(of, rows, columns);
  multiply_rows<kRows>(of, columns);
}

}  // namespace deltapipe::tiles
