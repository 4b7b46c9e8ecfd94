// SPDX-License-Identifier: BSD-3-Clause
// Attention of a sample's newest tokens over all of its tokens so far. Keys and values are kept, so
// that earlier tokens are not computed again.
#pragma once

#include <algorithm>

#include "core/kernels/attention/attention.hpp"

namespace deltapipe {

/// Copies the keys and values of qkv_N3C to rows [first, first + N) of the kept ones. A row of
/// kept_T2C is [k heads | v heads].
template <class Real>
void keep_keys_and_values(const ExecSpace& exec, const MatrixRef<const Real>& qkv_N3C, int first,
                          const MatrixRef<Real>& kept_T2C) {
  const int queries = kept_T2C.extent_int(1) / 2;
  for_elements(
      "deltapipe::CachedAttention::keep", exec, qkv_N3C.extent_int(0), kept_T2C.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int c) { kept_T2C(first + n, c) = qkv_N3C(n, queries + c); });
}

/// Returns the dot product of two rows, in the order of row_sum().
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION Real dot_of_rows(const Real* a, const Real* b, int n) {
  Real lane[kRowLanes] = {};
  const int whole = n - n % kRowLanes;
  for (int i = 0; i < whole; i += kRowLanes) {
    DELTAPIPE_INDEPENDENT_ITERATIONS
    for (int l = 0; l < kRowLanes; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (int i = whole; i < n; ++i) lane[i - whole] += a[i] * b[i];
  for (int width = kRowLanes / 2; width > 0; width /= 2)
    for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
  return lane[0];
}

/// s[j] = q k_j for all keys, whose rows are `stride` elements apart; the whole team sees s.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION void score_keys(const RowMember& team, const Real* q, const Real* k,
                                            std::size_t stride, int width, int keys, Real* s) {
  if constexpr (kHostExecution) {
    for (int j = 0; j < keys; ++j) s[j] = dot_of_rows(q, k + j * stride, width);
  } else {
    row_for_synced(team, keys, [=](int j) { s[j] = dot_of_rows(q, k + j * stride, width); });
  }
}

/// out[c] = factor * sum over j of weight[j] v_j[c]
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION void weigh_values(const RowMember& team, const Real* weight,
                                              Real factor, const Real* v, std::size_t stride,
                                              int width, int keys, Real* out) {
  if constexpr (kHostExecution) {
    row_for(team, width, [=](int c) { out[c] = 0; });
    for (int j = 0; j < keys; ++j) {
      const Real p = weight[j] * factor;
      const Real* const value = v + j * stride;
      row_for(team, width, [=](int c) { out[c] += p * value[c]; });
    }
  } else {
    team.team_barrier();
    row_for(team, width, [=](int c) {
      Real sum = 0;
      for (int j = 0; j < keys; ++j) sum += weight[j] * v[j * stride + c];
      out[c] = sum * factor;
    });
  }
}

/// Computes out_C of the single query in q_C over the first `keys` tokens. `scores` has
/// heads * keys elements.
template <class Real>
void attend_to_kept(const ExecSpace& exec, int heads, int keys, const VectorRef<const Real>& q_C,
                    const MatrixRef<const Real>& kept_T2C, const VectorRef<Real>& scores,
                    const VectorRef<Real>& out_C) {
  const int channels = q_C.extent_int(0);
  const int width = channels / heads;
  const std::size_t stride = 2 * static_cast<std::size_t>(channels);
  const Real scale = Real(1) / std::sqrt(Real(width));
  for_rows(
      "deltapipe::CachedAttention::attend", row_policy(exec, heads),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int head = team.league_rank();
        const Real* const q = q_C.data() + head * width;
        const Real* const k = kept_T2C.data() + head * width;
        Real* const s = scores.data() + static_cast<std::size_t>(head) * keys;
        score_keys(team, q, k, stride, width, keys, s);
        const Real top = row_max<Real>(team, keys, s[0], [&](int j) { return s[j]; });
        const Real sum = row_sum<Real>(team, keys, [&](int j) {
          const Real e = vector_exp((s[j] - top) * scale);
          s[j] = e;
          return e;
        });
        weigh_values(team, s, Real(1) / sum, k + channels, stride, width, keys,
                     out_C.data() + head * width);
      });
}

/// Returns blocks of queries; their products are those of gemm() or of a HeadProducts on processors
/// as well.
inline AttentionGrouping cached_attention_grouping(const AttentionShape& shape) {
  return kHostExecution ? AttentionGrouping::of_host(shape, false) : attention_grouping(shape);
}

/// out_NC = softmax(q k^T / sqrt(D)) v for the N queries of qkv_N3C, which are a sample's tokens
/// from `first` on. Keys and values are the kept ones of tokens [0, first + N), including these.
/// shape.tokens is T, the rows of kept_T2C. `workspace` has cached_attention_workspace(shape)
/// elements, log_sum_HT has heads * T; neither is used afterwards.
template <class Real>
void cached_attention_forward(const ExecSpace& exec, const AttentionShape& shape, int first,
                              const MatrixRef<const Real>& qkv_N3C,
                              const MatrixRef<const Real>& kept_T2C,
                              const VectorRef<Real>& workspace, const MatrixRef<Real>& out_NC,
                              const VectorRef<Real>& log_sum_HT,
                              const HeadProducts<Real, Real>& product = {}) {
  const int count = qkv_N3C.extent_int(0);
  const int width = shape.head_width;
  const int channels = shape.channels();
  if (count == 1)
    return attend_to_kept<Real>(exec, shape.heads, first + 1,
                                VectorRef<const Real>(qkv_N3C.data(), channels), kept_T2C,
                                workspace, VectorRef<Real>(out_NC.data(), channels));
  const std::size_t row = 2 * static_cast<std::size_t>(channels);
  const Real scale = Real(1) / std::sqrt(Real(width));
  Dropout none;
  none.tokens = shape.tokens;
  const AttentionGrouping grouping = cached_attention_grouping(shape);
  for (int head = 0; head < shape.heads; head += grouping.heads)
    for (int end = first + count; end > first; end -= grouping.rows) {
      const int rows = std::min(grouping.rows, end - first);
      const int heads = std::min(grouping.heads, shape.heads - head);
      const AttentionBlock at{0, 1, head, heads, end - rows, rows};
      const std::size_t n = static_cast<std::size_t>(at.first - first);
      const auto of_heads = [&]<class T>(T* data, int matrix_rows, std::size_t stride) {
        return MatrixGrid<T>{strided_matrix(data + head * width, matrix_rows, width, stride), 0,
                             static_cast<std::size_t>(width)};
      };
      const auto q = of_heads(qkv_N3C.data() + n * 3 * channels, rows, row / 2 * 3);
      const auto k = of_heads(kept_T2C.data(), at.keys(), row);
      const auto v = of_heads(kept_T2C.data() + channels, at.keys(), row);
      const auto out = of_heads(out_NC.data() + n * channels, rows, row / 2);
      const MatrixRef<Real> head_scores(workspace.data(), rows, at.keys());
      const MatrixRef<Real> scores(workspace.data(), at.all_rows(), at.keys());
      product(exec, at, Transpose::no, Transpose::yes, q, k, Real(0),
              MatrixGrid<Real>{head_scores, 0, at.elements()});
      attention_softmax<Real>(exec, at, scale, none, {}, shape.heads, scores, scores, log_sum_HT);
      product(exec, at, Transpose::no, Transpose::no,
              MatrixGrid<const Real>{head_scores, 0, at.elements()}, v, Real(0), out);
    }
}

/// Returns the elements of the workspace.
inline std::size_t cached_attention_workspace(const AttentionShape& shape) {
  const std::size_t one_query = static_cast<std::size_t>(shape.heads) * shape.tokens;
  const std::size_t blocks = attention_workspace(shape, cached_attention_grouping(shape));
  return one_query < blocks ? blocks : one_query;
}

}  // namespace deltapipe
