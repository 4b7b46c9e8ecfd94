// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/causal_products.hpp"

#include <algorithm>

namespace deltapipe::causal {

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kTileVectors = 4;  // of 32 registers 24 are sums
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kTileVectors = 2;  // of 16 registers 12 are sums
#elif defined(__aarch64__)
constexpr int kVectorBytes = 16, kTileVectors = 4;
#else
constexpr int kVectorBytes = 16, kTileVectors = 2;
#endif
constexpr int kTileRows = 6;
constexpr int kLeastVectorBytes = 16;

template <class Real, int kBytes>
struct VectorOf {
  using Type [[gnu::vector_size(kBytes), gnu::aligned(alignof(Real)), gnu::may_alias]] = Real;
};

template <class Real>
constexpr int kTileColumns = kTileVectors* kVectorBytes / static_cast<int>(sizeof(Real));

/// c = a b or, with `accumulate`, c + a b: element (r, d) of a is at a[r * a_row + d * a_depth].
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

/// The rows and columns of a tile in registers, kVectors of kBytes in each row.
template <int kRows, int kVectors, int kBytes, class Real>
void multiply_tile(const Product<Real>& of, int column) {
  using Vector = typename VectorOf<Real, kBytes>::Type;
  static_assert(sizeof(Vector) == kBytes && alignof(Vector) == alignof(Real));
  constexpr int kLanes = kBytes / static_cast<int>(sizeof(Real));
  Vector sum[kRows][kVectors] = {};
  const Real* a = of.a;
  const Real* b = of.b + column;
  for (int d = 0; d < of.depth; ++d, a += of.a_depth, b += of.b_row) {
    Vector x[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) x[v] = *reinterpret_cast<const Vector*>(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vector factor = a[r * of.a_row] - Vector{};
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sum[r][v] += factor * x[v];
    }
  }
  Real* const c = of.c + column;
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      Vector* const place = reinterpret_cast<Vector*>(c + r * of.c_row + v * kLanes);
      *place = of.accumulate ? *place + sum[r][v] : sum[r][v];
    }
}

/// Columns [column, columns), in vectors of kBytes and, what these leave, in smaller ones.
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
          sum += of.a[r * of.a_row + d * of.a_depth] * of.b[d * of.b_row + column];
        c = of.accumulate ? c + sum : sum;
      }
  }
}

/// At most kTileColumns columns.
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

/// At most kTileRows x kTileColumns.
template <class Real>
void multiply(const Product<Real>& of, int rows, int columns) {
  switch (rows) {
    case 6:
      return multiply_rows<6>(of, columns);
    case 5:
      return multiply_rows<5>(of, columns);
    case 4:
      return multiply_rows<4>(of, columns);
    case 3:
      return multiply_rows<3>(of, columns);
    case 2:
      return multiply_rows<2>(of, columns);
    case 1:
      return multiply_rows<1>(of, columns);
    default:
      return;
  }
}
static_assert(kTileRows == 6);

}  // namespace

std::size_t packed_elements(int keys, int width) {
  constexpr int kTile = kTileColumns<float>;
  return static_cast<std::size_t>((keys + kTile - 1) / kTile) * kTile * width;
}

template <class Real>
void pack(int keys, int width, const Rows<const Real>& k_KD, Real* packed) {
  constexpr int kTile = kTileColumns<Real>, kAhead = 8, kLine = 64 / sizeof(Real);
  for (int first = 0; first < keys; first += kTile, packed += kTile * width) {
    const int count = std::min(kTile, keys - first);
    for (int j = 0; j < count; ++j) {
      const Real* const key = k_KD.at(first + j);
      // Rows are too far apart for the processor to see what comes next.
      const Real* const ahead = k_KD.at(std::min(first + j + kAhead, keys - 1));
      for (int d = 0; d < width; d += kLine) __builtin_prefetch(ahead + d);
      for (int d = 0; d < width; ++d) packed[d * kTile + j] = key[d];
    }
  }
}

template <class Real>
void scores(const Queries& queries, int width, const Rows<const Real>& x_QD, const Real* packed,
            const Rows<Real>& scores_QK) {
  constexpr int kTile = kTileColumns<Real>;
  const int keys = queries.first + queries.count;
  for (int key = 0; key < keys; key += kTile) {
    const Real* const tile = packed + static_cast<std::size_t>(key) * width;
    const int columns = std::min(kTile, keys - key);
    // The first row that sees one of these keys.
    const int unseen = std::max(0, key - queries.first) / kTileRows * kTileRows;
    for (int row = unseen; row < queries.count; row += kTileRows)
      multiply<Real>({width, x_QD.at(row), x_QD.stride, 1, tile, kTile, false,
                      scores_QK.at(row) + key, scores_QK.stride},
                     std::min(kTileRows, queries.count - row), columns);
  }
}

template <class Real>
void weigh(const Queries& queries, int width, const Rows<const Real>& p_QK,
           const Rows<const Real>& x_KD, const Rows<Real>& y_QD) {
  constexpr int kTile = kTileColumns<Real>;
  for (int column = 0; column < width; column += kTile)
    for (int row = 0; row < queries.count; row += kTileRows) {
      const int rows = std::min(kTileRows, queries.count - row);
      multiply<Real>({queries.first + row + rows, p_QK.at(row), p_QK.stride, 1, x_KD.data + column,
                      x_KD.stride, false, y_QD.at(row) + column, y_QD.stride},
                     rows, std::min(kTile, width - column));
    }
}

template <class Real>
void weigh_transposed(const Queries& queries, int width, const Rows<const Real>& p_QK,
                      const Rows<const Real>& x_QD, bool accumulate, const Rows<Real>& y_KD) {
  constexpr int kTile = kTileColumns<Real>;
  const int keys = queries.first + queries.count;
  for (int column = 0; column < width; column += kTile)
    for (int key = 0; key < keys; key += kTileRows) {
      const int first = std::max(0, key - queries.first);  // that sees one of these keys
      multiply<Real>(
          {queries.count - first, p_QK.at(first) + key, 1, p_QK.stride, x_QD.at(first) + column,
           x_QD.stride, accumulate, y_KD.at(key) + column, y_KD.stride},
          std::min(kTileRows, keys - key), std::min(kTile, width - column));
    }
}

template void pack<float>(int, int, const Rows<const float>&, float*);
template void scores<float>(const Queries&, int, const Rows<const float>&, const float*,
                            const Rows<float>&);
template void weigh<float>(const Queries&, int, const Rows<const float>&, const Rows<const float>&,
                           const Rows<float>&);
template void weigh_transposed<float>(const Queries&, int, const Rows<const float>&,
                                      const Rows<const float>&, bool, const Rows<float>&);
template void pack<double>(int, int, const Rows<const double>&, double*);
template void scores<double>(const Queries&, int, const Rows<const double>&, const double*,
                             const Rows<double>&);
template void weigh<double>(const Queries&, int, const Rows<const double>&,
                            const Rows<const double>&, const Rows<double>&);
template void weigh_transposed<double>(const Queries&, int, const Rows<const double>&,
                                       const Rows<const double>&, bool, const Rows<double>&);

}  // namespace deltapipe::causal
