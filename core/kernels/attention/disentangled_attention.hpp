// SPDX-License-Identifier: BSD-3-Clause
// Disentangled attention (DeBERTa, arXiv 2006.03654, equation 4): scores depend on the contents of
// two tokens and on the distance between them,
//   score(i, j) = q_i . k_j + q_i . pk_r + k_j . pq_r,   r = row(i - j),
// with a row of relative positions for each bucket of distances. Products with relative positions
// cover only the rows that the tokens of a sample can reach.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/kernels/attention/attention.hpp"
#include "core/kernels/attention/relative_distances.hpp"

namespace deltapipe {

/// Queries and keys of the rows of relative positions [P, H * D]; without elements: scores lack
/// the term.
template <class Real>
struct RelativeOperands {
  MatrixRef<Real> queries;  ///< pq
  MatrixRef<Real> keys;     ///< pk

  /// Returns the number of terms of a score.
  int terms() const { return 1 + (queries.size() > 0) + (keys.size() > 0); }
};

/// Memory of one kernel at a time: matrices of `heads` heads of a sample.
template <class Real>
struct DisentangledWorkspace {
  VectorRef<Real> scores, dscores;   ///< [T, T]
  VectorRef<Real> by_query, by_key;  ///< [T, P], of the terms with pk and pq
  int heads = 1;                     ///< computed together
  int concurrent = 1;                ///< groups of heads, each with memory of its own
};

/// score(i, j) += by_query(i, r) + by_key(j, r)
template <class Real>
void add_relative_scores(const ExecSpace& exec, const AttentionBlock& at,
                         const RelativeDistances& distances, const RelativeRows& rows,
                         const MatrixRef<const Real>& by_query, const MatrixRef<const Real>& by_key,
                         const MatrixRef<Real>& scores) {
  const int tokens = at.all_keys, first = rows.first, count = rows.count;
  const bool has_query = by_query.size() > 0, has_key = by_key.size() > 0;
  const std::int32_t* const row_of = distances.row().data() + (distances.most_tokens() - 1);
  for_rows(
      "deltapipe::DisentangledAttention::addRelativeScores", row_policy(exec, at.all_rows()),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank(), query = n % tokens;
        Real* const s = &scores(n, 0);
        const std::int32_t* const row = row_of + query;  // of key 0
        if (has_query) {
          const Real* const of_query = by_query.data() + static_cast<std::size_t>(n) * count;
          row_for_synced(team, tokens, [=](int j) { s[j] += of_query[row[-j] - first]; });
        }
        if (has_key) {
          const Real* const of_keys = by_key.data() + static_cast<std::size_t>(n - query) * count;
          row_for(team, tokens, [=](int j) {
            s[j] += of_keys[static_cast<std::size_t>(j) * count + (row[-j] - first)];
          });
        }
      });
}

/// by_query(i, r) = sum of dscore(i, j), and by_key(j, r) = sum of dscore(i, j), over the pairs
/// with row(i - j) = r. One of the two results, by `of_queries`.
template <class Real>
void sum_relative_scores(const ExecSpace& exec, const AttentionBlock& at,
                         const RelativeDistances& distances, const RelativeRows& rows,
                         const MatrixRef<const Real>& dscores, bool of_queries,
                         const MatrixRef<Real>& sums) {
  const int tokens = at.all_keys, first = rows.first;
  const VectorRef<const std::int32_t> begin = distances.begin();
  for_rows(
      "deltapipe::DisentangledAttention::sumRelativeScores", row_policy(exec, at.all_rows()),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank(), token = n % tokens;
        const Real* const ds = dscores.data() + static_cast<std::size_t>(n - token) * tokens;
        Real* const sum = &sums(n, 0);
        row_for(team, rows.count, [&](int c) {
          // The other token of distances [least, end): a key before, or a query after this one.
          const int least = begin(first + c), end = begin(first + c + 1);
          int from = of_queries ? token - end + 1 : token + least;
          int to = of_queries ? token - least + 1 : token + end;
          from = from < 0 ? 0 : from;
          to = to > tokens ? tokens : to;
          Real total = 0;
          if (of_queries)
            for (int j = from; j < to; ++j)
              total += ds[static_cast<std::size_t>(token) * tokens + j];
          else
            for (int i = from; i < to; ++i)
              total += ds[static_cast<std::size_t>(i) * tokens + token];
          sum[c] = total;
        });
      });
}

/// The matrices of a group of heads of one sample.
template <class Real>
class DisentangledBlock {
 public:
  DisentangledBlock(const ExecSpace& exec, const AttentionShape& shape, const RelativeRows& rows,
                    const DisentangledWorkspace<Real>& workspace, const RealGemm& gemm,
                    const AttentionBlock& at, int part)
      : exec_(exec),
        shape_(shape),
        rows_(rows),
        workspace_(workspace),
        gemm_(gemm),
        at_(at),
        part_(part) {}

  /// c = op(a) * op(b) + beta * c for all heads.
  void product(Transpose op_a, Transpose op_b, const MatrixGrid<const Real>& a,
               const MatrixGrid<const Real>& b, Real beta, const MatrixGrid<Real>& c) const {
    gemm_.batched(exec_, op_a, op_b, a, b, beta, c, 1, at_.heads);
  }

  /// Returns the sample's rows of a matrix of tokens [N, ... heads ...].
  template <class T>
  MatrixGrid<T> of_tokens(const MatrixRef<T>& x, int first_column) const {
    const auto stride = static_cast<std::size_t>(x.stride(0));
    return grid(x.data() + static_cast<std::size_t>(at_.sample) * shape_.tokens * stride +
                    first_column + at_.head * shape_.head_width,
                shape_.tokens, shape_.head_width, stride, shape_.head_width);
  }
  /// Returns a matrix of relative positions [P, ... heads ...].
  template <class T>
  MatrixGrid<T> of_positions(const MatrixRef<T>& x) const {
    const auto stride = static_cast<std::size_t>(x.stride(0));
    return grid(x.data() + at_.head * shape_.head_width, rows_.count, shape_.head_width, stride,
                shape_.head_width);
  }
  MatrixRef<Real> scores() const { return all(workspace_.scores, shape_.tokens); }
  MatrixRef<Real> dscores() const { return all(workspace_.dscores, shape_.tokens); }
  MatrixRef<Real> by_query() const { return all(workspace_.by_query, rows_.count); }
  MatrixRef<Real> by_key() const { return all(workspace_.by_key, rows_.count); }
  /// Returns the matrix of each head.
  template <class T>
  MatrixGrid<T> heads(const MatrixRef<T>& all_rows) const {
    const int columns = all_rows.extent_int(1);
    return grid(all_rows.data(), shape_.tokens, columns, columns,
                static_cast<std::size_t>(shape_.tokens) * columns);
  }

  /// Computes the scores of all pairs of tokens.
  void compute_scores(const MatrixRef<const Real>& qkv_N3C,
                      const RelativeOperands<const Real>& relative,
                      const RelativeDistances& distances) const {
    const int C = shape_.channels();
    const auto q = of_tokens(qkv_N3C, 0), k = of_tokens(qkv_N3C, C);
    product(Transpose::no, Transpose::yes, q, k, Real(0), heads(scores()));
    MatrixRef<const Real> of_query, of_key;
    if (relative.keys.size() > 0) {
      product(Transpose::no, Transpose::yes, q, of_positions(relative.keys), Real(0),
              heads(by_query()));
      of_query = by_query();
    }
    if (relative.queries.size() > 0) {
      product(Transpose::no, Transpose::yes, k, of_positions(relative.queries), Real(0),
              heads(by_key()));
      of_key = by_key();
    }
    add_relative_scores<Real>(exec_, at_, distances, rows_, of_query, of_key, scores());
  }

 private:
  template <class T>
  static MatrixGrid<T> grid(T* data, int rows, int columns, std::size_t row, std::size_t head) {
    MatrixGrid<T> matrices;
    matrices.first = strided_matrix(data, rows, columns, row);
    matrices.inner_stride = head;
    return matrices;
  }
  MatrixRef<Real> all(const VectorRef<Real>& memory, int columns) const {
    const std::size_t of_part =
        static_cast<std::size_t>(workspace_.heads) * shape_.tokens * columns;
    return MatrixRef<Real>(memory.data() + part_ * of_part, at_.heads * shape_.tokens, columns);
  }

  const ExecSpace& exec_;
  const AttentionShape& shape_;
  RelativeRows rows_;
  const DisentangledWorkspace<Real>& workspace_;
  const RealGemm& gemm_;
  AttentionBlock at_;
  int part_;
};

/// Calls body(at, part) for all groups of heads and samples. The samples of a group are computed in
/// their order, so that sums over samples need no other memory; `part` numbers concurrent groups.
template <class Real, class Body>
void for_each_disentangled_block(const char* label, const ExecSpace& exec,
                                 const AttentionShape& shape,
                                 const DisentangledWorkspace<Real>& workspace, const Body& body) {
  const int groups = (shape.heads + workspace.heads - 1) / workspace.heads;
  const auto group = [&](int g, int part) {
    const int head = g * workspace.heads;
    const int heads = shape.heads - head < workspace.heads ? shape.heads - head : workspace.heads;
    for (int sample = 0; sample < shape.samples; ++sample)
      body(AttentionBlock{sample, 1, head, heads, 0, shape.tokens, shape.tokens}, part);
  };
  if (workspace.concurrent > 1) {
    as_kernel(label, exec, [&] {
      HostTeam::instance().share(groups, 1, [&](int first, int end) {
        for (int g = first; g < end; ++g) group(g, HostTeam::part());
      });
    });
    return;
  }
  const ProfilingRegion region(label);
  for (int g = 0; g < groups; ++g) group(g, 0);
}

/// Returns the factor of all scores: 1 / sqrt(D * terms).
template <class Real>
Real disentangled_scale(const AttentionShape& shape, int terms) {
  return Real(1) / std::sqrt(Real(shape.head_width) * Real(terms));
}

/// out_NC = softmax(scale * score) v. The operands of relative positions have the rows
/// RelativeRows::of(shape.tokens), at most distances.most_tokens() tokens. For `dropout`, length_B
/// and log_sum_BHT see attention_forward().
template <class Real>
void disentangled_attention_forward(
    const ExecSpace& exec, const AttentionShape& shape, const RelativeDistances& distances,
    const MatrixRef<const Real>& qkv_N3C, const RelativeOperands<const Real>& relative,
    const Dropout& dropout, const DisentangledWorkspace<Real>& workspace,
    const MatrixRef<Real>& out_NC, const VectorRef<Real>& log_sum_BHT, const RealGemm& gemm = {},
    const VectorRef<const std::int32_t>& length_B = {}) {
  const RelativeRows rows = RelativeRows::of(distances.buckets(), shape.tokens);
  const Real scale = disentangled_scale<Real>(shape, relative.terms());
  for_each_disentangled_block(
      "deltapipe::DisentangledAttention::forward", exec, shape, workspace,
      [&](const AttentionBlock& at, int part) {
        const DisentangledBlock<Real> block(exec, shape, rows, workspace, gemm, at, part);
        block.compute_scores(qkv_N3C, relative, distances);
        const MatrixRef<Real> scores = block.scores();
        attention_softmax<Real, Real>(exec, at, scale, dropout, length_B, shape.heads, scores,
                                      scores, log_sum_BHT);
        block.product(Transpose::no, Transpose::no, block.heads(MatrixRef<const Real>(scores)),
                      block.of_tokens(qkv_N3C, 2 * shape.channels()), Real(0),
                      block.of_tokens(out_NC, 0));
      });
}

/// Computes dqkv_N3C and the gradients of the relative positions, `drelative`, from dout_NC. The
/// arguments and results of the forward pass are passed again.
template <class Real>
void disentangled_attention_backward(
    const ExecSpace& exec, const AttentionShape& shape, const RelativeDistances& distances,
    const MatrixRef<const Real>& qkv_N3C, const RelativeOperands<const Real>& relative,
    const Dropout& dropout, const DisentangledWorkspace<Real>& workspace,
    const MatrixRef<const Real>& out_NC, const VectorRef<const Real>& log_sum_BHT,
    const MatrixRef<const Real>& dout_NC, const MatrixRef<Real>& dqkv_N3C,
    const RelativeOperands<Real>& drelative, const RealGemm& gemm = {},
    const VectorRef<const std::int32_t>& length_B = {}) {
  const RelativeRows rows = RelativeRows::of(distances.buckets(), shape.tokens);
  const Real scale = disentangled_scale<Real>(shape, relative.terms());
  const int C = shape.channels();
  const auto no = Transpose::no, yes = Transpose::yes;
  for_each_disentangled_block(
      "deltapipe::DisentangledAttention::backward", exec, shape, workspace,
      [&](const AttentionBlock& at, int part) {
        const DisentangledBlock<Real> block(exec, shape, rows, workspace, gemm, at, part);
        block.compute_scores(qkv_N3C, relative, distances);
        const auto q = block.of_tokens(qkv_N3C, 0), k = block.of_tokens(qkv_N3C, C),
                   v = block.of_tokens(qkv_N3C, 2 * C), dout = block.of_tokens(dout_NC, 0);
        const auto dq = block.of_tokens(dqkv_N3C, 0), dk = block.of_tokens(dqkv_N3C, C),
                   dv = block.of_tokens(dqkv_N3C, 2 * C);
        const MatrixRef<Real> scores = block.scores(), dscores = block.dscores();
        block.product(no, yes, dout, v, Real(0), block.heads(dscores));
        attention_softmax_backward<Real>(exec, shape, at, scale, dropout, length_B, log_sum_BHT,
                                         out_NC, dout_NC, scores, dscores, scores, dscores);
        const auto p = block.heads(MatrixRef<const Real>(scores));
        const auto ds = block.heads(MatrixRef<const Real>(dscores));
        block.product(yes, no, p, dout, Real(0), dv);
        block.product(no, no, ds, k, Real(0), dq);
        block.product(yes, no, ds, q, Real(0), dk);
        const Real add = at.sample > 0 ? 1 : 0;
        if (relative.keys.size() > 0) {
          const MatrixRef<Real> sums = block.by_query();
          sum_relative_scores<Real>(exec, at, distances, rows, dscores, true, sums);
          const auto s = block.heads(MatrixRef<const Real>(sums));
          block.product(no, no, s, block.of_positions(relative.keys), Real(1), dq);
          block.product(yes, no, s, q, add, block.of_positions(drelative.keys));
        }
        if (relative.queries.size() > 0) {
          const MatrixRef<Real> sums = block.by_key();
          sum_relative_scores<Real>(exec, at, distances, rows, dscores, false, sums);
          const auto s = block.heads(MatrixRef<const Real>(sums));
          block.product(no, no, s, block.of_positions(relative.queries), Real(1), dk);
          block.product(yes, no, s, k, add, block.of_positions(drelative.queries));
        }
      });
}

}  // namespace deltapipe
