// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/host_sgemm.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/register_tiles.hpp"

namespace deltapipe::tiles {

namespace {

constexpr int kColumns = kTileColumns<float>;
constexpr int kLine = kLineBytes / static_cast<int>(sizeof(float));
/// Terms at a time: a panel of B, kColumns of them, stays in the second-level cache.
constexpr int kMostDepth = 384;
/// Rows that are multiplied with an untransposed B where it is.
constexpr int kMostRowsInPlace = 2 * kTileRows;
/// Rows of a transposed A at a time: with a panel they stay in that cache as well.
constexpr int kMostRows = 336;
static_assert(kMostRows % kTileRows == 0);
/// Columns of B that stay packed while a transposed A passes by: in the third-level cache.
constexpr int kMostColumns = 768;
static_assert(kMostColumns % kColumns == 0);

/// The largest of equal parts of `extent`, a multiple of `unit`, that is at most `most`.
int even_part(int extent, int most, int unit) {
  const int parts = std::max(1, (extent + most - 1) / most);
  return std::max(unit, ((extent + parts - 1) / parts + unit - 1) / unit * unit);
}

/// Rows of memory that are fetched ahead a few lines at a time.
class Fetch {
 public:
  Fetch() = default;
  /// In about so many calls of fetch_some().
  Fetch(const float* data, std::size_t stride, int rows, int row_elements, int calls)
      : data_(data), stride_(stride), rows_(rows), elements_(row_elements) {
    const int lines = rows * ((row_elements + kLine - 1) / kLine);
    lines_a_call_ = (lines + calls - 1) / std::max(1, calls);
  }

  void fetch_some() {
    for (int i = 0; i < lines_a_call_ && row_ < rows_; ++i) {
      __builtin_prefetch(data_ + row_ * stride_ + column_, 0, 2);
      column_ += kLine;
      if (column_ < elements_) continue;
      column_ = 0;
      ++row_;
    }
  }

 private:
  const float* data_ = nullptr;
  std::size_t stride_ = 0;
  int rows_ = 0, elements_ = 0, lines_a_call_ = 0, row_ = 0, column_ = 0;
};

/// packed[d][n] = b[d][n]
void pack_rows(const float* b, std::size_t row_b, int depth, int columns, float* packed) {
  if (columns == kColumns)
    for (int d = 0; d < depth; ++d)
      std::memcpy(packed + d * kColumns, b + d * row_b, kColumns * sizeof(float));
  else
    for (int d = 0; d < depth; ++d)
      std::memcpy(packed + d * kColumns, b + d * row_b, columns * sizeof(float));
}

using Lanes = VectorOf<float, kVectorBytes>::Type;
using LanesInMemory = VectorOf<float, kVectorBytes>::InMemory;
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(float));

/// Elements of one half of a and b by turns: of the first one (0) or the second one (1).
template <int kHalf, int... kLane>
Lanes interleaved(Lanes a, Lanes b, std::integer_sequence<int, kLane...>) {
  return __builtin_shufflevector(
      a, b, (kHalf * kLanes / 2 + kLane / 2 + (kLane % 2 == 1 ? kLanes : 0))...);
}

/// A square, its rows so many elements apart. After log2(kLanes) rounds, each of which interleaves
/// rows with those half of the square further down, it is transposed.
void transpose_square(const float* from, std::size_t from_row, float* to, std::size_t to_row) {
  constexpr auto kAll = std::make_integer_sequence<int, kLanes>();
  Lanes row[kLanes], next[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    row[i] = *reinterpret_cast<const LanesInMemory*>(from + i * from_row);
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes / 2; ++i) {
      next[2 * i] = interleaved<0>(row[i], row[i + kLanes / 2], kAll);
      next[2 * i + 1] = interleaved<1>(row[i], row[i + kLanes / 2], kAll);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) row[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) *reinterpret_cast<LanesInMemory*>(to + i * to_row) = row[i];
}

/// packed[d][n] = b[n][d]
void pack_transposed(const float* b, std::size_t row_b, int depth, int columns, float* packed) {
  const int squares = depth / kLanes * kLanes;
  int n = 0;
  for (; n + kLanes <= columns; n += kLanes) {
    const float* const from = b + n * row_b;
    // Rows are too far apart for the processor to see what comes next.
    const float* const ahead = b + std::min(n + kLanes, columns - kLanes) * row_b;
    for (int d = 0; d < squares; d += kLanes) {
      for (int i = 0; i < kLanes; ++i) __builtin_prefetch(ahead + i * row_b + d);
      transpose_square(from + d, row_b, packed + d * kColumns + n, kColumns);
    }
    for (int d = squares; d < depth; ++d)
      for (int i = 0; i < kLanes; ++i) packed[d * kColumns + n + i] = from[i * row_b + d];
  }
  for (; n < columns; ++n)
    for (int d = 0; d < depth; ++d) packed[d * kColumns + n] = b[n * row_b + d];
}

/// Elements from one packed tile to the next one: an odd number of lines, so that tiles written
/// side by side are in different sets of a cache.
constexpr std::size_t tile_stride(int depth) {
  return static_cast<std::size_t>((depth * kTileRows + kLine - 1) / kLine | 1) * kLine;
}

/// Tiles of kTileRows rows: packed[tile][d][r] = a[d][tile * kTileRows + r].
void pack_tiles(const float* a, std::size_t row_a, int depth, int rows, float* packed) {
  constexpr int kAhead = 16;
  const std::size_t tile_elements = tile_stride(depth);
  for (int d = 0; d < depth; ++d) {
    const float* const from = a + d * row_a;
    const float* const ahead = a + std::min(d + kAhead, depth - 1) * row_a;
    for (int r = 0; r < rows; r += kLine) __builtin_prefetch(ahead + r);
    float* to = packed + d * kTileRows;
    int r = 0;
    for (; r + kTileRows <= rows; r += kTileRows, to += tile_elements)
      std::memcpy(to, from + r, kTileRows * sizeof(float));
    for (int i = 0; r + i < rows; ++i) to[i] = from[r + i];
  }
}

/// What a thread packs into.
struct Packed {
  float b[kMostDepth * kMostColumns];
  float a[tile_stride(kMostDepth) * (kMostRows / kTileRows)];
};

/// op(a) or op(b), by what is in memory.
struct Factor {
  bool is_transposed;
  const float* data;
  std::size_t stride;

  /// From that row and column of op() on.
  const float* at(int row, int column) const {
    return is_transposed ? data + column * stride + row : data + row * stride + column;
  }
};

/// Rows of op(a), all with the same terms.
struct RowBlock {
  const float* data;  ///< packed in tiles where they are of a transposed matrix
  std::size_t stride;
  bool is_packed;
  int rows, depth;

  /// The tile that begins with that row; its product is to be filled in.
  Product<float> tile(int row) const {
    Product<float> made = {};
    made.depth = depth;
    made.a = is_packed ? data + row / kTileRows * tile_stride(depth) : data + row * stride;
    made.a_row = is_packed ? 1 : stride;
    made.a_depth = is_packed ? kTileRows : 1;
    if (!is_packed && row + 2 * kTileRows <= rows) made.next_a = made.a + kTileRows * stride;
    return made;
  }
};

/// Columns of op(b) side by side.
struct Panel {
  const float* data;
  std::size_t stride;
  int columns;
};

/// Rows of op(a) times a panel.
void multiply_panel(const RowBlock& a, const Panel& b, float alpha, float beta, float* c,
                    std::size_t row_c, Fetch& ahead) {
  for (int row = 0; row < a.rows; row += kTileRows) {
    Product<float> tile = a.tile(row);
    tile.b = b.data;
    tile.b_row = b.stride;
    tile.c = c + row * row_c;
    tile.c_row = row_c;
    tile.alpha = alpha;
    tile.beta = beta;
    ahead.fetch_some();
    multiply(tile, std::min(kTileRows, a.rows - row), b.columns);
  }
}

/// The panel of op(b) that begins there.
void pack_panel(const Factor& b, int k, int depth, int n, int columns, float* panel) {
  if (b.is_transposed)
    pack_transposed(b.at(k, n), b.stride, depth, columns, panel);
  else
    pack_rows(b.at(k, n), b.stride, depth, columns, panel);
}

/// The same, to be fetched in so many steps.
Fetch fetch_panel(const Factor& b, int k, int depth, int n, int columns, int steps) {
  return {b.at(k, n), b.stride, b.is_transposed ? columns : depth,
          b.is_transposed ? depth : columns, steps};
}

void scale(int M, int N, float beta, float* c, std::size_t row_c) {
  for (int m = 0; m < M; ++m)
    for (int n = 0; n < N; ++n) c[m * row_c + n] = beta == 0 ? 0 : beta * c[m * row_c + n];
}

}  // namespace

std::size_t sgemm_memory_bytes() {
  return sizeof(Packed);
}

void sgemm(Transpose op_a, Transpose op_b, int M, int N, int K, float alpha, const float* a,
           std::size_t row_a, const float* b, std::size_t row_b, float beta, float* c,
           std::size_t row_c) {
  if (M <= 0 || N <= 0) return;
  if (K <= 0) return scale(M, N, beta, c, row_c);
  const Factor all_a = {op_a == Transpose::yes, a, row_a};
  const Factor all_b = {op_b == Transpose::yes, b, row_b};
  auto& packed = *reinterpret_cast<Packed*>(thread_scratch(sizeof(Packed), ThreadScratch::product));
  const int most_depth = even_part(K, kMostDepth, 8);
  const int most_rows = all_a.is_transposed ? even_part(M, kMostRows, kTileRows) : M;
  // Rows of an untransposed A are not divided: each panel is used up at once.
  const int most_columns = all_a.is_transposed ? kMostColumns : kColumns;

  // Few rows read a panel too seldom to pack it.
  const bool is_in_place = !all_b.is_transposed && M <= kMostRowsInPlace;

  const auto multiply_block = [&](int m, int rows, int first, int end, int k, int depth) {
    RowBlock block = {all_a.at(m, k), row_a, all_a.is_transposed, rows, depth};
    if (block.is_packed) {
      pack_tiles(block.data, row_a, depth, rows, packed.a);
      block.data = packed.a;
    }
    const int tiles = (rows + kTileRows - 1) / kTileRows;
    for (int n = first; n < end; n += kColumns) {
      const int columns = std::min(kColumns, end - n), next = n + columns;
      float* const packed_panel = packed.b + static_cast<std::size_t>(n - first) * depth;
      Panel panel = {packed_panel, kColumns, columns};
      Fetch ahead;
      if (is_in_place)
        panel = {all_b.at(k, n), row_b, columns};
      else if (m == 0)
        pack_panel(all_b, k, depth, n, columns, packed_panel);
      if (m == 0 && next < N)
        ahead = fetch_panel(all_b, k, depth, next, std::min(kColumns, N - next), tiles);
      else if (m > 0 && next < end)
        ahead = Fetch(packed_panel + kColumns * depth, kColumns, depth, kColumns, tiles);
      multiply_panel(block, panel, alpha, k == 0 ? beta : 1.0f, c + m * row_c + n, row_c, ahead);
    }
  };
  for (int k = 0; k < K; k += most_depth) {
    const int depth = std::min(most_depth, K - k);
    for (int n = 0; n < N; n += most_columns)
      for (int m = 0; m < M; m += most_rows)
        multiply_block(m, std::min(most_rows, M - m), n, std::min(N, n + most_columns), k, depth);
  }
}

}  // namespace deltapipe::tiles
