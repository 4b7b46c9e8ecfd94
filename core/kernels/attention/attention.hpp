// SPDX-License-Identifier: BSD-3-Clause
// Multi-head self-attention, causal or over all valid tokens. Probabilities exist only for one
// block of query rows at a time: for one head on a host, and for all heads and samples on a device.
// The backward pass computes them again from the logarithm of each row's softmax sum (arXiv
// 2205.14135).
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/attention/causal_products.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "core/kernels/gemm/real_gemm.hpp"
#include "core/kernels/layers/linear.hpp"

namespace deltapipe {

/// Shape of one micro-batch's attention: rows of qkv are [q heads | k heads | v heads].
struct AttentionShape {
  int samples = 0;     ///< B
  int tokens = 0;      ///< T
  int heads = 0;       ///< H
  int head_width = 0;  ///< D
  bool causal = true;  ///< a query sees the keys up to its own, else all valid keys of its sample

  int channels() const { return heads * head_width; }
};

/// Part of a micro-batch that one pass computes.
struct AttentionGrouping {
  int rows = 0;     ///< query rows of a block
  int heads = 0;    ///< the last pass over a sample may have fewer
  int samples = 0;  ///< more than one only with all heads; the last pass may have fewer
  /// True if products of Real are those of causal_products.hpp, for one head and sample.
  bool in_tiles = false;

  /// Probabilities that a device stores at a time: 256 MiB in fp32.
  static constexpr std::size_t kMostElements = std::size_t{1} << 26;

  /// Returns one head at a time, which fits into a core's cache. A library's products of a block
  /// cover all keys up to the last row's. With short sequences, smaller blocks compute fewer masked
  /// elements; with long ones, larger products are faster.
  static AttentionGrouping of_host(const AttentionShape& shape,
                                   bool in_tiles = kTeamExecution && causal::kIsFast) {
    const bool tiles = in_tiles && shape.causal;
    return {tiles ? 96 : shape.tokens <= 512 ? 64 : 128, 1, 1, tiles};
  }
  /// Returns all heads and samples of a block, or as many as fit into `most_elements`.
  static AttentionGrouping of_device(const AttentionShape& shape,
                                     std::size_t most_elements = kMostElements) {
    constexpr int kRows = 128;
    const std::size_t rows = shape.tokens < kRows ? shape.tokens : kRows;
    const std::size_t a_head = rows * static_cast<std::size_t>(shape.tokens);
    const auto fitting = [&](int count, std::size_t elements) {
      const std::size_t most = elements > 0 ? most_elements / elements : count;
      return most >= static_cast<std::size_t>(count) ? count
             : most < 1                              ? 1
                                                     : static_cast<int>(most);
    };
    const int heads = fitting(shape.heads, a_head);
    return {kRows, heads, heads < shape.heads ? 1 : fitting(shape.samples, a_head * heads)};
  }
};

/// Returns the grouping that this build uses for attention in shapes up to `shape`.
inline AttentionGrouping attention_grouping(const AttentionShape& shape) {
  return kHostExecution ? AttentionGrouping::of_host(shape) : AttentionGrouping::of_device(shape);
}

/// Place of a block of probabilities: query rows [first, first + rows) against keys [0, keys()),
/// for heads [head, head + heads) of samples [sample, sample + samples).
struct AttentionBlock {
  int sample, samples, head, heads, first, rows;
  int all_keys = 0;  ///< T; 0: causal, so that no row sees keys from first + rows on

  KOKKOS_FORCEINLINE_FUNCTION int keys() const { return all_keys > 0 ? all_keys : first + rows; }
  /// Returns the number of one head's probabilities.
  KOKKOS_FORCEINLINE_FUNCTION std::size_t elements() const {
    return static_cast<std::size_t>(rows) * keys();
  }
  int all_rows() const { return samples * heads * rows; }
};

/// A row of a block's probabilities; rows are ordered by sample, head and query.
struct AttentionRow {
  int sample, head, query;

  KOKKOS_FORCEINLINE_FUNCTION AttentionRow(const AttentionBlock& at, int row) {
    const int of_head = row / at.rows;
    query = at.first + row % at.rows;
    sample = at.sample + of_head / at.heads;
    head = at.head + of_head % at.heads;
  }
  /// Returns the number of keys that the row's query sees, the first ones. length_B has the valid
  /// tokens of each sample; without it all tokens are valid.
  KOKKOS_FORCEINLINE_FUNCTION int visible(const AttentionBlock& at,
                                          const VectorRef<const std::int32_t>& length_B) const {
    if (at.all_keys == 0) return query + 1;
    return length_B.extent(0) > 0 ? length_B(sample) : at.all_keys;
  }
};

/// The passes over samples and heads, and the blocks of query rows in each pass, from last to
/// first: the first block to be computed sees all keys of its sample and head.
struct AttentionPasses {
  AttentionShape shape;
  AttentionGrouping grouping;

  KOKKOS_INLINE_FUNCTION int head_groups() const {
    return (shape.heads + grouping.heads - 1) / grouping.heads;
  }
  int count() const {
    return (shape.samples + grouping.samples - 1) / grouping.samples * head_groups();
  }
  int blocks() const { return (shape.tokens + grouping.rows - 1) / grouping.rows; }
  KOKKOS_INLINE_FUNCTION int pass_of(int sample, int head) const {
    return sample / grouping.samples * head_groups() + head / grouping.heads;
  }
  KOKKOS_INLINE_FUNCTION AttentionBlock at(int pass, int block) const {
    const int sample = pass / head_groups() * grouping.samples;
    const int head = pass % head_groups() * grouping.heads;
    const int end = shape.tokens - block * grouping.rows;
    const int rows = end < grouping.rows ? end : grouping.rows;
    return {sample,
            least(grouping.samples, shape.samples - sample),
            head,
            least(grouping.heads, shape.heads - head),
            end - rows,
            rows,
            shape.causal ? 0 : shape.tokens};
  }
  /// Returns the elements of a pass in a workspace: its probabilities and, after those of the
  /// largest pass, packed keys or values.
  std::size_t workspace() const { return packed_place() + packed_elements(); }
  std::size_t packed_place() const {
    constexpr std::size_t kLine = 16;  // elements of a cache line
    return grouping.in_tiles ? (elements() + kLine - 1) / kLine * kLine : elements();
  }
  /// Returns the number of probabilities in the largest pass.
  std::size_t elements() const {
    return static_cast<std::size_t>(least(grouping.samples, shape.samples)) *
           least(grouping.heads, shape.heads) * least(grouping.rows, shape.tokens) * shape.tokens;
  }
  /// Returns the number of concurrent passes: each thread of a HostTeam computes one.
  int concurrent() const {
    return kTeamExecution ? least(count(), HostTeam::instance().size()) : 1;
  }

 private:
  std::size_t packed_elements() const {
    return grouping.in_tiles ? causal::packed_elements(shape.tokens, shape.head_width) : 0;
  }
  KOKKOS_INLINE_FUNCTION static int least(int a, int b) { return a < b ? a : b; }
};

/// Returns the elements of each of the two workspaces of the kernels below (the forward pass uses
/// one). They suffice for smaller shapes in the same grouping as well.
inline std::size_t attention_workspace(const AttentionShape& shape,
                                       const AttentionGrouping& grouping) {
  const AttentionPasses passes{shape, grouping};
  return passes.workspace() * static_cast<std::size_t>(passes.concurrent());
}

/// Largest number of operands of the products of a pass.
inline constexpr int kAttentionOperands = 11;

/// Returns the elements of a table with the addresses of all operands of an attention. Products of
/// matrices that are not evenly spaced (the heads of several samples) need it.
inline std::size_t attention_addresses(const AttentionShape& shape,
                                       const AttentionGrouping& grouping) {
  const int blocks = AttentionPasses{shape, grouping}.blocks();
  return static_cast<std::size_t>(kAttentionOperands) * blocks * shape.samples * shape.heads;
}

/// True if this build's products need such a table.
inline bool needs_attention_addresses([[maybe_unused]] const AttentionGrouping& grouping) {
#if defined(KOKKOS_ENABLE_CUDA)
  return grouping.samples > 1 && grouping.heads > 1;
#else
  return false;
#endif
}

/// The grouping of an attention and, if its products need it, memory for the addresses of its
/// operands, at least attention_addresses() elements.
struct AttentionPlan {
  AttentionGrouping grouping;
  VectorRef<std::uintptr_t> addresses;
};

/// Returns the number of concurrent passes; one if there is a table of addresses, which is for one
/// workspace.
inline int concurrent_passes(const AttentionPasses& passes, const AttentionPlan& plan) {
  return plan.addresses.extent(0) > 0 ? 1 : passes.concurrent();
}

/// Computes the dropout factors of probabilities j = 4*block ... of query i.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION void attention_dropout_factors(const Dropout& dropout, int sample,
                                                           int head, int query, int block,
                                                           Real factor[4]) {
  const int tokens = dropout.most_tokens > 0 ? dropout.most_tokens : dropout.tokens;
  const std::uint32_t blocks_a_row = static_cast<std::uint32_t>((tokens + 3) / 4);
  const std::uint32_t row = static_cast<std::uint32_t>(head * tokens + query);
  dropout_factors_at(dropout, sample, row * blocks_a_row + block, factor);
}

/// Computes probabilities from scores and overwrites the scores. Probabilities are rounded to bf16
/// if Factor is Bf16; otherwise both may be the same memory. log_sum_BHT keeps log(sum(exp(scale *
/// score))) for all_heads heads. A row that sees no key has the sum 0.
template <class Real, class Factor>
void attention_softmax(const ExecSpace& exec, const AttentionBlock& at, Real scale,
                       const Dropout& dropout, const VectorRef<const std::int32_t>& length_B,
                       int all_heads, const MatrixRef<Real>& scores,
                       const MatrixRef<Factor>& probabilities, const VectorRef<Real>& log_sum_BHT) {
  const int tokens = dropout.tokens;
  for_rows(
      "deltapipe::Attention::softmax", row_policy(exec, at.all_rows()),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const AttentionRow row(at, team.league_rank());
        const int visible = row.visible(at, length_B);
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
            attention_dropout_factors(dropout, row.sample, row.head, row.query, block, factor);
            for (int i = 0, j = 4 * block; i < 4 && j < visible; ++i, ++j)
              p[j] = rounded_to<Factor>(s[j] * (inverse * factor[i]));
          });
        } else {
          row_for(team, visible, [=](int j) { p[j] = rounded_to<Factor>(s[j] * inverse); });
        }
        row_for(team, at.keys() - visible, [=](int j) { p[visible + j] = Factor(0); });
        log_sum_BHT((row.sample * all_heads + row.head) * tokens + row.query) =
            top * scale + std::log(sum);
      });
}

/// Returns the number of a row's keys that a kernel uses, at least the `visible` ones. On a host
/// these are whole vectors, because a remainder costs as much.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION int computed_keys(int visible, int keys) {
  if (!kHostExecution) return visible;
  constexpr int kLanes = 64 / static_cast<int>(sizeof(Real));
  const int whole = (visible + kLanes - 1) / kLanes * kLanes;
  return whole < keys ? whole : keys;
}

/// Computes from scores s and dL/dprobability dp the probabilities after dropout (in place of the
/// scores) and dL/dscore (in place of dp): ds = scale * p * (factor * dp - sum_d dO O).
template <class Real>
void attention_softmax_backward(const ExecSpace& exec, const AttentionShape& shape,
                                const AttentionBlock& at, Real scale, const Dropout& dropout,
                                const VectorRef<const std::int32_t>& length_B,
                                const VectorRef<const Real>& log_sum_BHT,
                                const MatrixRef<const Real>& out_NC,
                                const MatrixRef<const Real>& dout_NC, const MatrixRef<Real>& scores,
                                const MatrixRef<Real>& dprobabilities, const MatrixRef<Real>&,
                                const MatrixRef<Real>&) {
  const int tokens = shape.tokens, all_heads = shape.heads, head_width = shape.head_width;
  for_rows(
      "deltapipe::Attention::softmaxBackward", row_policy(exec, at.all_rows()),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const AttentionRow row(at, team.league_rank());
        const int visible = row.visible(at, length_B);
        Real* const s = &scores(team.league_rank(), 0);
        Real* const d = &dprobabilities(team.league_rank(), 0);
        const int n = row.sample * tokens + row.query;
        const Real* const out = &out_NC(n, row.head * head_width);
        const Real* const dout = &dout_NC(n, row.head * head_width);
        const Real log_sum = log_sum_BHT((row.sample * all_heads + row.head) * tokens + row.query);
        const Real mean = row_sum<Real>(team, head_width, [&](int i) { return out[i] * dout[i]; });
        if (dropout.probability > 0) {
          row_for(team, visible / 4 + 1, [&](int block) {
            Real factor[4];
            attention_dropout_factors(dropout, row.sample, row.head, row.query, block, factor);
            for (int i = 0, j = 4 * block; i < 4 && j < visible; ++i, ++j) {
              const Real p = vector_exp(s[j] * scale - log_sum);
              s[j] = p * factor[i];
              d[j] = scale * p * (factor[i] * d[j] - mean);
            }
          });
        } else {
          // Captured by value, because variables that calls of the other branch can access are not
          // kept in registers.
          row_for(team, computed_keys<Real>(visible, at.keys()), [=](int j) {
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

/// The same, rounded to bf16; overwrites scores and dp. With rounded operands, sum_d dO O differs
/// from the sum of p * factor * dp over the keys, and a part common to all keys would not cancel.
/// This function therefore uses the latter sum.
template <class Real>
void attention_softmax_backward(const ExecSpace& exec, const AttentionShape& shape,
                                const AttentionBlock& at, Real scale, const Dropout& dropout,
                                const VectorRef<const std::int32_t>& length_B,
                                const VectorRef<const Real>& log_sum_BHT,
                                const MatrixRef<const Real>&, const MatrixRef<const Real>&,
                                const MatrixRef<Real>& scores,
                                const MatrixRef<Real>& dprobabilities,
                                const MatrixRef<Bf16>& probabilities,
                                const MatrixRef<Bf16>& dscores) {
  const int tokens = shape.tokens, all_heads = shape.heads;
  for_rows(
      "deltapipe::Attention::softmaxBackward", row_policy(exec, at.all_rows()),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const AttentionRow row(at, team.league_rank());
        const int visible = row.visible(at, length_B);
        const int computed = computed_keys<Real>(visible, at.keys());
        Real* const s = &scores(team.league_rank(), 0);
        Real* const dp = &dprobabilities(team.league_rank(), 0);
        Bf16* const after = &probabilities(team.league_rank(), 0);
        Bf16* const ds = &dscores(team.league_rank(), 0);
        const Real log_sum = log_sum_BHT((row.sample * all_heads + row.head) * tokens + row.query);
        row_for_synced(team, computed, [=](int j) {
          s[j] = vector_exp(s[j] * scale - log_sum);
          after[j] = rounded_to<Bf16>(s[j]);
        });
        if (dropout.probability > 0)
          row_for_synced(team, visible / 4 + 1, [&](int block) {
            Real factor[4];
            attention_dropout_factors(dropout, row.sample, row.head, row.query, block, factor);
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

/// Calls body(block, index, offset) for the blocks of every pass; `index` counts the blocks of a
/// pass. The pass uses the workspace's elements from `offset` on. If `concurrent` is more than one,
/// a HostTeam shares the passes, in one kernel.
template <class Body>
void for_each_attention_block(const char* label, const ExecSpace& exec,
                              const AttentionPasses& passes, int concurrent, const Body& body) {
  const auto pass = [&](int i, std::size_t offset) {
    for (int block = 0; block < passes.blocks(); ++block) body(passes.at(i, block), block, offset);
  };
  if (concurrent > 1) {
    as_kernel(label, exec, [&] {
      HostTeam::instance().share(passes.count(), 1, [&](int first, int end) {
        const std::size_t offset = static_cast<std::size_t>(HostTeam::part()) * passes.workspace();
        for (int i = first; i < end; ++i) pass(i, offset);
      });
    });
    return;
  }
  const ProfilingRegion region(label);
  for (int i = 0; i < passes.count(); ++i) pass(i, 0);
}

/// Offsets of the matrices of a block's samples and heads, in elements from the matrix of the very
/// first sample and head. The matrices are rows of tokens, [... heads ...], or a workspace of
/// probabilities.
struct HeadPlaces {
  std::size_t row_stride = 0;  ///< elements of a token's row; 0: a workspace
  bool of_queries = false;     ///< true if a matrix has the block's queries, not all its keys

  KOKKOS_INLINE_FUNCTION std::size_t begin(const AttentionShape& shape, const AttentionBlock& at,
                                           int sample, int head) const {
    if (row_stride == 0)
      return (static_cast<std::size_t>(sample - at.sample) * at.heads + (head - at.head)) *
             at.elements();
    return (static_cast<std::size_t>(sample) * shape.tokens + (of_queries ? at.first : 0)) *
               row_stride +
           static_cast<std::size_t>(head) * shape.head_width;
  }
};

/// Matrices of samples and heads that an attention's products read or write.
template <class T>
struct HeadOperand {
  T* data;
  HeadPlaces places;
  int index;  ///< index among the operands, which is the order of the table of addresses
};

/// Operands in the form that the kernel for their addresses uses.
struct HeadOperandTable {
  struct Entry {
    std::uintptr_t data;
    std::size_t bytes;  ///< bytes of an element
    HeadPlaces places;
  };
  Entry of[kAttentionOperands];
};

/// All operands of one attention: their addresses, if needed, and the matrices of each block.
class AttentionOperands {
 public:
  AttentionOperands(const AttentionPasses& passes, const VectorRef<std::uintptr_t>& addresses)
      : passes_(passes), addresses_(addresses) {}

  template <class T>
  HeadOperand<T> add(T* data, const HeadPlaces& places) {
    DELTAPIPE_ASSERT(count_ < kAttentionOperands, "more operands");
    table_.of[count_] = {reinterpret_cast<std::uintptr_t>(data), sizeof(T), places};
    return {data, places, count_++};
  }

  /// Writes the table of addresses, in one kernel.
  void write(const ExecSpace& exec) const {
    if (addresses_.extent(0) == 0) return;
    const AttentionPasses passes = passes_;
    const HeadOperandTable table = table_;
    const int operands = count_;
    const int heads = passes.shape.heads, matrices = passes.shape.samples * heads;
    const int blocks = passes.blocks();
    const VectorRef<std::uintptr_t> addresses = addresses_;
    DELTAPIPE_ASSERT(static_cast<std::size_t>(operands) * blocks * matrices <= addresses.extent(0),
                     "a table of fewer addresses");
    for_range(
        "deltapipe::Attention::addresses", exec, blocks * matrices, DELTAPIPE_LAMBDA(int i) {
          const int sample = i % matrices / heads, head = i % heads;
          const AttentionBlock at = passes.at(passes.pass_of(sample, head), i / matrices);
          for (int k = 0; k < operands; ++k)
            addresses(static_cast<std::size_t>(k) * blocks * matrices + i) =
                table.of[k].data +
                table.of[k].bytes * table.of[k].places.begin(passes.shape, at, sample, head);
        });
  }

  /// Returns the matrices of the block-th block of its pass, rows x columns each. Those of a
  /// workspace begin `offset` elements after its data.
  template <class T>
  MatrixGrid<T> grid(const HeadOperand<T>& operand, const AttentionBlock& at, int block, int rows,
                     int columns, std::size_t offset = 0) const {
    const AttentionShape& shape = passes_.shape;
    const std::size_t row = operand.places.row_stride;
    MatrixGrid<T> grid;
    T* const first = operand.data + offset + operand.places.begin(shape, at, at.sample, at.head);
    grid.first = strided_matrix(first, rows, columns, row == 0 ? columns : row);
    grid.outer_stride = row == 0 ? at.heads * at.elements() : row * shape.tokens;
    grid.inner_stride = row == 0 ? at.elements() : shape.head_width;
    if (addresses_.extent(0) > 0) {
      const std::size_t matrices = static_cast<std::size_t>(shape.samples) * shape.heads;
      grid.addresses =
          addresses_.data() +
          (static_cast<std::size_t>(operand.index) * passes_.blocks() + block) * matrices +
          static_cast<std::size_t>(at.sample) * shape.heads + at.head;
    }
    return grid;
  }

 private:
  AttentionPasses passes_;
  VectorRef<std::uintptr_t> addresses_;
  HeadOperandTable table_{};
  int count_ = 0;
};

/// Products of attention. Their factors are Real, with Factor = Real, or Real rounded to bf16.
template <class Real, class Factor>
class HeadProducts {
 public:
  using Gemm = std::conditional_t<std::is_same_v<Factor, Bf16>, Bf16Gemm, RealGemm>;

  HeadProducts() = default;
  explicit HeadProducts(const Gemm& gemm) : gemm_(gemm) {}

  /// c = op(a) * op(b) + beta * c for all samples and heads of a block.
  void operator()(const ExecSpace& exec, const AttentionBlock& at, Transpose op_a, Transpose op_b,
                  const MatrixGrid<const Factor>& a, const MatrixGrid<const Factor>& b, Real beta,
                  const MatrixGrid<Real>& c) const {
    gemm_.batched(exec, op_a, op_b, a, b, beta, c, at.samples, at.heads);
  }

 private:
  Gemm gemm_;
};

/// The products of a block. Scores are only guaranteed where a query sees a key; probabilities are
/// zero elsewhere.
template <class Real, class Factor>
class AttentionBlockProducts {
 public:
  /// Refers to the block-th block of a pass whose workspaces begin `offset` elements after their
  /// data. Keeps references to the operands and products.
  AttentionBlockProducts(const ExecSpace& exec, const AttentionPasses& passes,
                         const AttentionOperands& operands,
                         const HeadProducts<Real, Factor>& products, const AttentionBlock& at,
                         int block, std::size_t offset)
      : exec_(exec),
        passes_(passes),
        operands_(operands),
        products_(products),
        at_(at),
        block_(block),
        offset_(offset) {
    DELTAPIPE_ASSERT(
        !passes.grouping.in_tiles || (passes.grouping.heads == 1 && passes.grouping.samples == 1),
        "tiles of several heads");
  }

  /// scores = x_QD k_KD^T; in tiles, packed k remains after the scores for the pass' other blocks.
  void scores(const HeadOperand<const Factor>& x, const HeadOperand<const Factor>& k,
              const HeadOperand<Real>& scores) const {
    if constexpr (std::is_same_v<Real, Factor>)
      if (passes_.grouping.in_tiles)
        return in_tiles([&] {
          Real* const packed = scores.data + offset_ + passes_.packed_place();
          if (block_ == 0) causal::pack<Real>(at_.keys(), width(), rows(of_keys(k)), packed);
          causal::scores<Real>(queries(), width(), rows(of_queries(x)), packed,
                               rows(of_scores(scores)));
        });
    products_(exec_, at_, Transpose::no, Transpose::yes, of_queries(x), of_keys(k), Real(0),
              of_scores(scores));
  }

  /// y_QD = p_QK x_KD
  void weigh(const HeadOperand<const Factor>& p, const HeadOperand<const Factor>& x,
             const HeadOperand<Real>& y) const {
    if constexpr (std::is_same_v<Real, Factor>)
      if (passes_.grouping.in_tiles)
        return in_tiles([&] {
          causal::weigh<Real>(queries(), width(), rows(of_scores(p)), rows(of_keys(x)),
                              rows(of_queries(y)));
        });
    products_(exec_, at_, Transpose::no, Transpose::no, of_scores(p), of_keys(x), Real(0),
              of_queries(y));
  }

  /// y_KD = p_QK^T x_QD, summed over the pass' blocks.
  void weigh_transposed(const HeadOperand<const Factor>& p, const HeadOperand<const Factor>& x,
                        const HeadOperand<Real>& y) const {
    const bool accumulate = block_ > 0;
    if constexpr (std::is_same_v<Real, Factor>)
      if (passes_.grouping.in_tiles)
        return in_tiles([&] {
          causal::weigh_transposed<Real>(queries(), width(), rows(of_scores(p)),
                                         rows(of_queries(x)), accumulate, rows(of_keys(y)));
        });
    products_(exec_, at_, Transpose::yes, Transpose::no, of_scores(p), of_queries(x),
              Real(accumulate ? 1 : 0), of_keys(y));
  }

  /// Returns all rows of a workspace.
  template <class T>
  MatrixRef<T> all_of(const VectorRef<T>& workspace) const {
    return MatrixRef<T>(workspace.data() + offset_, at_.all_rows(), at_.keys());
  }

 private:
  template <class Product>
  void in_tiles(const Product& product) const {
    as_kernel("deltapipe::CausalProducts::product", exec_, product);
  }
  int width() const { return passes_.shape.head_width; }
  causal::Queries queries() const { return {at_.first, at_.rows}; }
  template <class T>
  MatrixGrid<T> of_queries(const HeadOperand<T>& operand) const {
    return operands_.grid(operand, at_, block_, at_.rows, width());
  }
  template <class T>
  MatrixGrid<T> of_keys(const HeadOperand<T>& operand) const {
    return operands_.grid(operand, at_, block_, at_.keys(), width());
  }
  template <class T>
  MatrixGrid<T> of_scores(const HeadOperand<T>& operand) const {
    return operands_.grid(operand, at_, block_, at_.rows, at_.keys(), offset_);
  }
  template <class T>
  static causal::Rows<T> rows(const MatrixGrid<T>& grid) {
    return {grid.first.data(), static_cast<std::size_t>(grid.first.stride(0))};
  }

  const ExecSpace& exec_;
  const AttentionPasses& passes_;
  const AttentionOperands& operands_;
  const HeadProducts<Real, Factor>& products_;
  AttentionBlock at_;
  int block_;
  std::size_t offset_;
};

/// Scores of the blocks that are computed together, and the factors that products make of them.
/// Each has attention_workspace(shape, grouping) elements.
template <class Real, class Factor>
struct AttentionWorkspace {
  VectorRef<Real> scores;
  VectorRef<Factor> factors;  ///< may be the memory of scores if the types are the same
};

/// out_NC = softmax(q k^T / sqrt(D)) v. `dropout.tokens` must be T. length_B is the key padding
/// mask of attention that is not causal: sample b has length_B(b) valid tokens, no query sees
/// others, and all of qkv is finite. Without it, all tokens are valid.
template <class Real, class Factor>
void attention_forward(const ExecSpace& exec, const AttentionShape& shape,
                       const AttentionPlan& plan, const MatrixRef<const Factor>& qkv_N3C,
                       const Dropout& dropout, const AttentionWorkspace<Real, Factor>& workspace,
                       const MatrixRef<Real>& out_NC, const VectorRef<Real>& log_sum_BHT,
                       const HeadProducts<Real, Factor>& product,
                       const VectorRef<const std::int32_t>& length_B = {}) {
  const AttentionPasses passes{shape, plan.grouping};
  const int width = shape.head_width;
  const int channels = shape.channels();
  const std::size_t row = 3 * static_cast<std::size_t>(channels);
  const Real scale = Real(1) / std::sqrt(Real(width));
  AttentionOperands operands(passes, plan.addresses);
  const auto q = operands.add(qkv_N3C.data(), {row, true});
  const auto k = operands.add(qkv_N3C.data() + channels, {row, false});
  const auto v = operands.add(qkv_N3C.data() + 2 * channels, {row, false});
  const auto scores = operands.add(workspace.scores.data(), {});
  const auto probabilities = operands.add<const Factor>(workspace.factors.data(), {});
  const auto out = operands.add(out_NC.data(), {static_cast<std::size_t>(channels), true});
  operands.write(exec);
  for_each_attention_block(
      "deltapipe::Attention::forward", exec, passes, concurrent_passes(passes, plan),
      [&](const AttentionBlock& at, int block, std::size_t offset) {
        const AttentionBlockProducts<Real, Factor> products(exec, passes, operands, product, at,
                                                            block, offset);
        products.scores(q, k, scores);
        attention_softmax<Real>(exec, at, scale, dropout, length_B, shape.heads,
                                products.all_of(workspace.scores),
                                products.all_of(workspace.factors), log_sum_BHT);
        products.weigh(probabilities, v, out);
      });
}

/// Computes dqkv_N3C from dout_NC, which is also passed in the form of products. The arguments and
/// results of attention_forward() are passed again.
template <class Real, class Factor>
void attention_backward(const ExecSpace& exec, const AttentionShape& shape,
                        const AttentionPlan& plan, const MatrixRef<const Factor>& qkv_N3C,
                        const Dropout& dropout, const MatrixRef<const Real>& out_NC,
                        const VectorRef<const Real>& log_sum_BHT,
                        const MatrixRef<const Real>& dout_NC,
                        const MatrixRef<const Factor>& dout_factors_NC,
                        const AttentionWorkspace<Real, Factor>& workspace,
                        const AttentionWorkspace<Real, Factor>& second_workspace,
                        const MatrixRef<Real>& dqkv_N3C, const HeadProducts<Real, Factor>& product,
                        const VectorRef<const std::int32_t>& length_B = {}) {
  const AttentionPasses passes{shape, plan.grouping};
  const int width = shape.head_width;
  const int channels = shape.channels();
  const std::size_t row = 3 * static_cast<std::size_t>(channels);
  const Real scale = Real(1) / std::sqrt(Real(width));
  AttentionOperands operands(passes, plan.addresses);
  const auto q = operands.add(qkv_N3C.data(), {row, true});
  const auto k = operands.add(qkv_N3C.data() + channels, {row, false});
  const auto v = operands.add(qkv_N3C.data() + 2 * channels, {row, false});
  const auto dout = operands.add(dout_factors_NC.data(), {row / 3, true});
  const auto scores = operands.add(workspace.scores.data(), {});
  const auto dprobabilities = operands.add(second_workspace.scores.data(), {});
  const auto probabilities = operands.add<const Factor>(workspace.factors.data(), {});
  const auto dscores = operands.add<const Factor>(second_workspace.factors.data(), {});
  const auto dq = operands.add(dqkv_N3C.data(), {row, true});
  const auto dk = operands.add(dqkv_N3C.data() + channels, {row, false});
  const auto dv = operands.add(dqkv_N3C.data() + 2 * channels, {row, false});
  operands.write(exec);
  for_each_attention_block(
      "deltapipe::Attention::backward", exec, passes, concurrent_passes(passes, plan),
      [&](const AttentionBlock& at, int block, std::size_t offset) {
        const AttentionBlockProducts<Real, Factor> products(exec, passes, operands, product, at,
                                                            block, offset);
        products.scores(q, k, scores);
        products.scores(dout, v, dprobabilities);
        attention_softmax_backward(
            exec, shape, at, scale, dropout, length_B, log_sum_BHT, out_NC, dout_NC,
            products.all_of(workspace.scores), products.all_of(second_workspace.scores),
            products.all_of(workspace.factors), products.all_of(second_workspace.factors));
        products.weigh_transposed(probabilities, dout, dv);
        products.weigh(dscores, k, dq);
        products.weigh_transposed(dscores, q, dk);
      });
}

}  // namespace deltapipe
