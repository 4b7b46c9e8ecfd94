// SPDX-License-Identifier: BSD-3-Clause
// Causal multi-head self-attention. Probabilities exist only for a block of query rows of a few
// heads at a time; the backward pass makes them again from the logarithm of each row's softmax sum
// (arXiv 2205.14135).
#pragma once

#include <cmath>

#include "core/base/profiling_region.hpp"
#include "core/kernels/bf16_gemm.hpp"
#include "core/kernels/linear.hpp"

namespace deltapipe {

/// Shape of one micro-batch's attention: rows of qkv are [q heads | k heads | v heads].
struct AttentionShape {
  int samples = 0;     ///< B
  int tokens = 0;      ///< T
  int heads = 0;       ///< H
  int head_width = 0;  ///< D

  int channels() const { return heads * head_width; }
};

/// Query rows whose probabilities are in the workspace together. The products of a block run over
/// all its keys up to the last row's: with short sequences smaller blocks compute less that the
/// mask hides, with long ones larger products are faster.
inline int query_block(int tokens) {
  return kHostExecution && tokens <= 512 ? 64 : 128;
}

/// Heads whose probabilities are in the workspace together: enough rows for a device, little enough
/// memory for a core's cache.
inline int heads_in_a_pass(const AttentionShape& shape) {
  return kHostExecution ? 1 : shape.heads;
}

/// Elements of the probabilities of a pass.
inline std::size_t elements_in_a_pass(const AttentionShape& shape) {
  const int most = query_block(shape.tokens);
  const int block = shape.tokens < most ? shape.tokens : most;
  return static_cast<std::size_t>(heads_in_a_pass(shape)) * block * shape.tokens;
}

/// Passes at a time: the threads of a HostTeam each do one.
inline int concurrent_passes(const AttentionShape& shape) {
  if (!kTeamExecution) return 1;
  const int most = shape.samples * shape.heads;
  return most < HostTeam::instance().size() ? most : HostTeam::instance().size();
}

/// Elements of each of the two workspaces of the kernels below (the forward pass uses one).
inline std::size_t attention_workspace(const AttentionShape& shape) {
  return elements_in_a_pass(shape) * static_cast<std::size_t>(concurrent_passes(shape));
}

/// Where a block of probabilities stands: query rows [first, first + rows) against keys
/// [0, first + rows) of `heads` heads from `head` on.
struct AttentionBlock {
  int sample, head, heads, first, rows;

  KOKKOS_FORCEINLINE_FUNCTION int keys() const { return first + rows; }
};

/// Dropout factors of probabilities j = 4*block ... of query i.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION void attention_dropout_factors(const Dropout& dropout, int sample,
                                                           int head, int query, int block,
                                                           Real factor[4]) {
  const std::uint32_t blocks_a_row = static_cast<std::uint32_t>((dropout.tokens + 3) / 4);
  const std::uint32_t row = static_cast<std::uint32_t>(head * dropout.tokens + query);
  dropout_factors_at(dropout, sample, row * blocks_a_row + block, factor);
}

/// Probabilities of scores, which are lost, rounded to bf16 if Factor is Bf16; of one type both
/// may be the same memory. log_sum_BHT keeps log(sum(exp(scale * score))).
template <class Real, class Factor>
void attention_softmax(const ExecSpace& exec, const AttentionBlock& at, Real scale,
                       const Dropout& dropout, const MatrixRef<Real>& scores,
                       const MatrixRef<Factor>& probabilities, const VectorRef<Real>& log_sum_HT) {
  const int tokens = dropout.tokens;
  for_rows(
      "deltapipe::Attention::softmax", row_policy(exec, at.heads * at.rows),
      KOKKOS_LAMBDA(const RowMember& team) {
        const int head = at.head + team.league_rank() / at.rows;
        const int query = at.first + team.league_rank() % at.rows;
        const int visible = query + 1;
        Real* const s = &scores(team.league_rank(), 0);
        Factor* const p = &probabilities(team.league_rank(), 0);
        const Real top = row_max<Real>(team, visible, s[0], [&](int j) { return s[j]; });
        const Real sum = row_sum<Real>(team, visible, [&](int j) {
          const Real e = vector_exp((s[j] - top) * scale);
          s[j] = e;
          return e;
        });
        const Real inverse = Real(1) / sum;
        if (dropout.probability > 0) {
          row_for(team, (visible + 3) / 4, [&](int block) {
            Real factor[4];
            attention_dropout_factors(dropout, at.sample, head, query, block, factor);
            for (int i = 0, j = 4 * block; i < 4 && j < visible; ++i, ++j)
              p[j] = rounded_to<Factor>(s[j] * (inverse * factor[i]));
          });
        } else {
          row_for(team, visible, [=](int j) { p[j] = rounded_to<Factor>(s[j] * inverse); });
        }
        row_for(team, at.keys() - visible, [=](int j) { p[visible + j] = Factor(0); });
        log_sum_HT(head * tokens + query) = top * scale + std::log(sum);
      });
}

/// How many of a row's keys, of which `visible` count, a kernel computes with: on a host whole
/// vectors, since what is left over takes as long as they do.
KOKKOS_FORCEINLINE_FUNCTION int computed_keys(int visible, int keys) {
  if (!kHostExecution) return visible;
  constexpr int kLanes = 16;
  const int whole = (visible + kLanes - 1) / kLanes * kLanes;
  return whole < keys ? whole : keys;
}

/// From scores s and dL/dprobability dp: the probabilities after dropout (in place of the scores)
/// and dL/dscore (in place of dp):  ds = scale * p * (factor * dp - sum_d dO O).
template <class Real>
void attention_softmax_backward(const ExecSpace& exec, const AttentionBlock& at, int head_width,
                                Real scale, const Dropout& dropout,
                                const VectorRef<const Real>& log_sum_HT,
                                const MatrixRef<const Real>& out_TC,
                                const MatrixRef<const Real>& dout_TC, const MatrixRef<Real>& scores,
                                const MatrixRef<Real>& dprobabilities, const MatrixRef<Real>&,
                                const MatrixRef<Real>&) {
  const int tokens = dropout.tokens;
  for_rows(
      "deltapipe::Attention::softmaxBackward", row_policy(exec, at.heads * at.rows),
      KOKKOS_LAMBDA(const RowMember& team) {
        const int head = at.head + team.league_rank() / at.rows;
        const int query = at.first + team.league_rank() % at.rows;
        const int visible = query + 1;
        Real* const s = &scores(team.league_rank(), 0);
        Real* const d = &dprobabilities(team.league_rank(), 0);
        const Real* const out = &out_TC(query, head * head_width);
        const Real* const dout = &dout_TC(query, head * head_width);
        const Real log_sum = log_sum_HT(head * tokens + query);
        const Real mean = row_sum<Real>(team, head_width, [&](int i) { return out[i] * dout[i]; });
        if (dropout.probability > 0) {
          row_for(team, visible / 4 + 1, [&](int block) {
            Real factor[4];
            attention_dropout_factors(dropout, at.sample, head, query, block, factor);
            for (int i = 0, j = 4 * block; i < 4 && j < visible; ++i, ++j) {
              const Real p = vector_exp(s[j] * scale - log_sum);
              s[j] = p * factor[i];
              d[j] = scale * p * (factor[i] * d[j] - mean);
            }
          });
        } else {
          // Captured by value: what the other branch's calls can see does not stay in registers.
          row_for(team, computed_keys(visible, at.keys()), [=](int j) {
            const Real p = vector_exp(s[j] * scale - log_sum);
            s[j] = p;
            d[j] = scale * p * (d[j] - mean);
          });
        }
        row_for(team, at.keys() - visible, [=](int j) {
          s[visible + j] = 0;
          d[visible + j] = 0;
        });
      });
}

/// The same rounded to bf16; scores and dp are lost. Of rounded operands sum_d dO O is another one
/// than that of p * factor * dp over the keys, by which a part that all keys have in common would
/// not cancel: this is the latter.
template <class Real>
void attention_softmax_backward(const ExecSpace& exec, const AttentionBlock& at, int, Real scale,
                                const Dropout& dropout, const VectorRef<const Real>& log_sum_HT,
                                const MatrixRef<const Real>&, const MatrixRef<const Real>&,
                                const MatrixRef<Real>& scores,
                                const MatrixRef<Real>& dprobabilities,
                                const MatrixRef<Bf16>& probabilities,
                                const MatrixRef<Bf16>& dscores) {
  const int tokens = dropout.tokens;
  for_rows(
      "deltapipe::Attention::softmaxBackward", row_policy(exec, at.heads * at.rows),
      KOKKOS_LAMBDA(const RowMember& team) {
        const int head = at.head + team.league_rank() / at.rows;
        const int query = at.first + team.league_rank() % at.rows;
        const int visible = query + 1;
        const int computed = computed_keys(visible, at.keys());
        Real* const s = &scores(team.league_rank(), 0);
        Real* const dp = &dprobabilities(team.league_rank(), 0);
        Bf16* const after = &probabilities(team.league_rank(), 0);
        Bf16* const ds = &dscores(team.league_rank(), 0);
        const Real log_sum = log_sum_HT(head * tokens + query);
        row_for_synced(team, computed, [=](int j) {
          s[j] = vector_exp(s[j] * scale - log_sum);
          after[j] = rounded_to<Bf16>(s[j]);
        });
        if (dropout.probability > 0)
          row_for_synced(team, visible / 4 + 1, [&](int block) {
            Real factor[4];
            attention_dropout_factors(dropout, at.sample, head, query, block, factor);
            for (int i = 0, j = 4 * block; i < 4 && j < visible; ++i, ++j) {
              dp[j] *= factor[i];
              after[j] = rounded_to<Bf16>(s[j] * factor[i]);
            }
          });
        const Real mean = row_sum<Real>(team, visible, [=](int j) { return s[j] * dp[j]; });
        row_for_synced(team, computed,
                       [=](int j) { ds[j] = rounded_to<Bf16>(scale * s[j] * (dp[j] - mean)); });
        row_for(team, at.keys() - visible, [=](int j) {
          after[visible + j] = Bf16(0);
          ds[visible + j] = Bf16(0);
        });
      });
}

/// Calls body(block, offset) for every pass over samples, heads and, last to first, blocks of query
/// rows: the first block of a sample and head sees all its keys. The pass has the workspace's
/// elements from `offset` on. A HostTeam shares samples and heads, in one kernel.
template <class Body>
void for_each_attention_block(const char* label, const ExecSpace& exec, const AttentionShape& shape,
                              const Body& body) {
  const int group = heads_in_a_pass(shape);
  const int block = query_block(shape.tokens);
  const auto blocks_of = [&](int sample, int head, std::size_t offset) {
    for (int end = shape.tokens; end > 0; end -= block) {
      const int rows = end < block ? end : block;
      body(AttentionBlock{sample, head, group, end - rows, rows}, offset);
    }
  };
  const int passes = shape.samples * (shape.heads / group);
  const auto pass = [&](int i, std::size_t offset) {
    blocks_of(i / (shape.heads / group), i % (shape.heads / group) * group, offset);
  };
  if (concurrent_passes(shape) > 1) {
    as_kernel(label, exec, [&] {
      HostTeam::instance().share(passes, 1, [&](int first, int end) {
        const std::size_t offset =
            static_cast<std::size_t>(HostTeam::part()) * elements_in_a_pass(shape);
        for (int i = first; i < end; ++i) pass(i, offset);
      });
    });
    return;
  }
  const ProfilingRegion region(label);
  for (int i = 0; i < passes; ++i) pass(i, 0);
}

/// What attention computes its products from: Real, with Factor = Real, or Real rounded to bf16.
template <class Real, class Factor>
class HeadProducts {
 public:
  HeadProducts() = default;
  /// Of bf16.
  explicit HeadProducts(const Bf16Gemm& gemm) : gemm_(gemm) {}

  /// As gemm_batched().
  void operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixRef<const Factor>& a, std::size_t stride_a,
                  const MatrixRef<const Factor>& b, std::size_t stride_b, Real beta,
                  const MatrixRef<Real>& c, std::size_t stride_c, int count) const {
    if constexpr (std::is_same_v<Factor, Bf16>)
      gemm_.batched(exec, op_a, op_b, a, stride_a, b, stride_b, beta, c, stride_c, count);
    else
      gemm_batched<Real>(exec, op_a, op_b, Real(1), a, stride_a, b, stride_b, beta, c, stride_c,
                         count);
  }

 private:
  Bf16Gemm gemm_;
};

/// Scores of the blocks that are computed together and what products are made of them; each has
/// attention_workspace(shape) elements.
template <class Real, class Factor>
struct AttentionWorkspace {
  VectorRef<Real> scores;
  VectorRef<Factor> factors;  ///< of one type it may be the memory of scores
};

/// out_NC = softmax(q k^T / sqrt(D)) v. `dropout.tokens` must be T.
template <class Real, class Factor>
void attention_forward(const ExecSpace& exec, const AttentionShape& shape,
                       const MatrixRef<const Factor>& qkv_N3C, const Dropout& dropout,
                       const AttentionWorkspace<Real, Factor>& workspace,
                       const MatrixRef<Real>& out_NC, const VectorRef<Real>& log_sum_BHT,
                       const HeadProducts<Real, Factor>& product) {
  const int width = shape.head_width;
  const int channels = shape.channels();
  const std::size_t row = 3 * static_cast<std::size_t>(channels);
  const Real scale = Real(1) / std::sqrt(Real(width));
  for_each_attention_block(
      "deltapipe::Attention::forward", exec, shape,
      [&](const AttentionBlock& at, std::size_t offset) {
        const std::size_t first_row = static_cast<std::size_t>(at.sample) * shape.tokens;
        const Factor* const base = qkv_N3C.data() + first_row * row + at.head * width;
        const auto q = strided_matrix(base + at.first * row, at.rows, width, row);
        const auto k = strided_matrix(base + channels, at.keys(), width, row);
        const auto v = strided_matrix(base + 2 * channels, at.keys(), width, row);
        const MatrixRef<Real> scores(workspace.scores.data() + offset, at.heads * at.rows,
                                     at.keys());
        const MatrixRef<Real> head_scores(scores.data(), at.rows, at.keys());
        const MatrixRef<Factor> probabilities(workspace.factors.data() + offset, at.heads * at.rows,
                                              at.keys());
        const MatrixRef<Factor> head_probabilities(probabilities.data(), at.rows, at.keys());
        const std::size_t score_stride = static_cast<std::size_t>(at.rows) * at.keys();
        product(exec, Transpose::no, Transpose::yes, q, width, k, width, Real(0), head_scores,
                score_stride, at.heads);
        attention_softmax<Real>(exec, at, scale, dropout, scores, probabilities,
                                VectorRef<Real>(log_sum_BHT.data() + first_row * shape.heads,
                                                shape.heads * shape.tokens));
        const auto out =
            strided_matrix(out_NC.data() + (first_row + at.first) * channels + at.head * width,
                           at.rows, width, channels);
        product(exec, Transpose::no, Transpose::no, head_probabilities, score_stride, v, width,
                Real(0), out, width, at.heads);
      });
}

/// The same with products of Real, in a workspace of attention_workspace(shape) elements.
template <class Real>
void attention_forward(const ExecSpace& exec, const AttentionShape& shape,
                       const MatrixRef<const Real>& qkv_N3C, const Dropout& dropout,
                       const VectorRef<Real>& workspace, const MatrixRef<Real>& out_NC,
                       const VectorRef<Real>& log_sum_BHT) {
  attention_forward<Real, Real>(exec, shape, qkv_N3C, dropout, {workspace, workspace}, out_NC,
                                log_sum_BHT, {});
}

/// dqkv_N3C from dout_NC, which is also given as products take it; what attention_forward was given
/// and made comes in again.
template <class Real, class Factor>
void attention_backward(const ExecSpace& exec, const AttentionShape& shape,
                        const MatrixRef<const Factor>& qkv_N3C, const Dropout& dropout,
                        const MatrixRef<const Real>& out_NC,
                        const VectorRef<const Real>& log_sum_BHT,
                        const MatrixRef<const Real>& dout_NC,
                        const MatrixRef<const Factor>& dout_factors_NC,
                        const AttentionWorkspace<Real, Factor>& workspace,
                        const AttentionWorkspace<Real, Factor>& second_workspace,
                        const MatrixRef<Real>& dqkv_N3C,
                        const HeadProducts<Real, Factor>& product) {
  const int width = shape.head_width;
  const int channels = shape.channels();
  const std::size_t row = 3 * static_cast<std::size_t>(channels);
  const Real scale = Real(1) / std::sqrt(Real(width));
  for_each_attention_block(
      "deltapipe::Attention::backward", exec, shape,
      [&](const AttentionBlock& at, std::size_t offset) {
        const std::size_t first_row = static_cast<std::size_t>(at.sample) * shape.tokens;
        const Factor* const base = qkv_N3C.data() + first_row * row + at.head * width;
        const auto q = strided_matrix(base + at.first * row, at.rows, width, row);
        const auto k = strided_matrix(base + channels, at.keys(), width, row);
        const auto v = strided_matrix(base + 2 * channels, at.keys(), width, row);
        Real* const dbase = dqkv_N3C.data() + first_row * row + at.head * width;
        const auto dq = strided_matrix(dbase + at.first * row, at.rows, width, row);
        const auto dk = strided_matrix(dbase + channels, at.keys(), width, row);
        const auto dv = strided_matrix(dbase + 2 * channels, at.keys(), width, row);
        const MatrixRef<const Real> out_TC(out_NC.data() + first_row * channels, shape.tokens,
                                           channels);
        const MatrixRef<const Real> dout_TC(dout_NC.data() + first_row * channels, shape.tokens,
                                            channels);
        const auto dout = strided_matrix(
            dout_factors_NC.data() + (first_row + at.first) * channels + at.head * width, at.rows,
            width, channels);
        const MatrixRef<Real> scores(workspace.scores.data() + offset, at.heads * at.rows,
                                     at.keys());
        const MatrixRef<Real> dprobabilities(second_workspace.scores.data() + offset,
                                             at.heads * at.rows, at.keys());
        const MatrixRef<Factor> probabilities(workspace.factors.data() + offset, at.heads * at.rows,
                                              at.keys());
        const MatrixRef<Factor> dscores(second_workspace.factors.data() + offset,
                                        at.heads * at.rows, at.keys());
        const auto of_head = [&]<class T>(const MatrixRef<T>& all) {
          return MatrixRef<T>(all.data(), at.rows, at.keys());
        };
        const std::size_t score_stride = static_cast<std::size_t>(at.rows) * at.keys();
        const Real key_beta = at.keys() == shape.tokens ? Real(0) : Real(1);

        product(exec, Transpose::no, Transpose::yes, q, width, k, width, Real(0), of_head(scores),
                score_stride, at.heads);
        product(exec, Transpose::no, Transpose::yes, dout, width, v, width, Real(0),
                of_head(dprobabilities), score_stride, at.heads);
        attention_softmax_backward(
            exec, at, width, scale, dropout,
            VectorRef<const Real>(log_sum_BHT.data() + first_row * shape.heads,
                                  shape.heads * shape.tokens),
            out_TC, dout_TC, scores, dprobabilities, probabilities, dscores);
        product(exec, Transpose::yes, Transpose::no, of_head(probabilities), score_stride, dout,
                width, key_beta, dv, width, at.heads);
        product(exec, Transpose::no, Transpose::no, of_head(dscores), score_stride, k, width,
                Real(0), dq, width, at.heads);
        product(exec, Transpose::yes, Transpose::no, of_head(dscores), score_stride, q, width,
                key_beta, dk, width, at.heads);
      });
}

/// The same with products of Real, in workspaces of attention_workspace(shape) elements.
template <class Real>
void attention_backward(const ExecSpace& exec, const AttentionShape& shape,
                        const MatrixRef<const Real>& qkv_N3C, const Dropout& dropout,
                        const MatrixRef<const Real>& out_NC,
                        const VectorRef<const Real>& log_sum_BHT,
                        const MatrixRef<const Real>& dout_NC, const VectorRef<Real>& workspace,
                        const VectorRef<Real>& second_workspace, const MatrixRef<Real>& dqkv_N3C) {
  attention_backward<Real, Real>(exec, shape, qkv_N3C, dropout, out_NC, log_sum_BHT, dout_NC,
                                 dout_NC, {workspace, workspace},
                                 {second_workspace, second_workspace}, dqkv_N3C, {});
}

}  // namespace deltapipe
