// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/attention/causal_products.hpp"

#include <algorithm>

#include "core/kernels/gemm/register_tiles.hpp"

namespace deltapipe::causal {

using tiles::kTileColumns, tiles::kTileRows, tiles::multiply;

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
      // Prefetches, because rows are too far apart for the processor to predict the next one.
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
      const int first = std::max(0, key - queries.first);  // first row that sees one of these keys
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
