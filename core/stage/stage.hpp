// SPDX-License-Identifier: BSD-3-Clause
// What a pipeline knows of a model: a stage turns boundary activations into boundary activations
// and, backwards, gradients into gradients. Adding a model means deriving from Stage.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/numeric/precision.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/state/state.hpp"
#include "core/stage/parameters.hpp"

namespace deltapipe {

/// Score of a row on the last stage: its loss or, in evaluations, whether greedy decoding misses
/// its target (0 or 1; NaN where a logit is not finite).
enum class RowScore { loss, miss };

/// One micro-batch as a stage sees it. Rows n = b*T + t are those of the data, which cross a
/// boundary as BoundaryShape says.
struct MicroBatch {
  std::uint64_t seed = 0;  ///< of the run; with step it keys dropout
  std::uint64_t step = 0;
  int index = 0;    ///< within the step
  int samples = 0;  ///< B, at most what the stage was reserved for
  int tokens = 0;   ///< T
  VectorRef<const std::uint64_t> sample_id_B;
  VectorRef<const std::int32_t> row_N;     ///< first stage: each token's row in the token embedding
  VectorRef<const std::int32_t> target_N;  ///< last stage: next token, -1 for padding
  double loss_scale = 0;  ///< gradients are those of loss_scale * (sum of the rows' losses)
  RowScore score = RowScore::loss;

  int rows() const { return samples * tokens; }
};

/// Sizes that a stage takes memory for, once.
struct StageCapacity {
  int samples = 1;         ///< B
  int tokens = 1;          ///< T
  int slots = 1;           ///< micro-batches between their forward and backward pass
  int micro_batches = 1;   ///< in a step
  int embedding_rows = 0;  ///< first stage: rows of the token embedding that a step can need
  bool training = true;
  bool recompute = false;  ///< keep only the blocks' inputs; recompute the rest in backward
  /// Of the model's matrices; a model may compute all in fp32.
  ProductPrecision products = ProductPrecision::fp32;
  /// backward_inputs() and backward_parameters() come instead of backward().
  bool splits_backward = false;
  /// In training: the stage before takes input_gradient(). Otherwise it is never asked for, and
  /// backward() may end at the lowest parameter that is trained.
  bool input_gradient = true;
  /// TextContinuation: keys and values of a sample's T tokens are kept. Not in training; B = 1.
  bool keeps_text = false;
};

/// Values that cross a boundary for each sample: rows of `channels` values, `tokens` of them.
struct BoundaryShape {
  int tokens = 0;
  int channels = 0;
  bool operator==(const BoundaryShape&) const = default;
};

/// Part of stages whose model looks tokens up in a table: the first one and, if it is shared, the
/// last one. The first stage finds in MicroBatch::row_N each token's row of the table or, if that
/// is elsewhere, of embedding_rows().
template <class Real>
class TokenEmbedding {
 public:
  virtual ~TokenEmbedding() = default;

  /// The table is the output matrix as well: it lives on the last stage. The first one, if it is
  /// another, holds for a step only the rows that the step's tokens need or, of a frozen table, a
  /// copy (ParameterArena::add_copy), so that no rows travel.
  virtual bool shared() const = 0;
  /// Over more than one stage the first one borrows rows of the last one's table.
  bool lends_rows() const { return shared() && !wte_frozen(); }
  /// Columns of the table.
  virtual int embedding_channels() const = 0;
  /// Index of the table among the parameters; -1: not here.
  virtual int wte() const = 0;
  /// The table is frozen, here or elsewhere: nobody asks for embedding_gradient().
  virtual bool wte_frozen() const { return false; }
  /// First stage, where the table is elsewhere: the rows in use, to be filled before a step. [U, C]
  virtual MatrixRef<Real> embedding_rows(int rows) = 0;
  /// First stage: gradient of the step's table rows from all its micro-batches. Row u gets the sum
  /// over stored rows row_of(first_of_U(u)...first_of_U(u+1)), stored row m*B*T + n being row n of
  /// micro-batch m.
  virtual MatrixRef<Real> embedding_gradient(const ExecSpace& exec,
                                             const VectorRef<const std::int32_t>& first_of_U,
                                             const VectorRef<const std::int32_t>& row_of,
                                             int rows) = 0;
};

/// Part of stages whose model can continue a text without computing its beginning again:
/// attention's keys and values of its tokens are kept. Reserved with StageCapacity::keeps_text.
template <class Real>
class TextContinuation {
 public:
  virtual ~TextContinuation() = default;

  /// forward() of the micro-batch's tokens, which follow the first `kept` tokens of its one sample;
  /// those were passed by earlier calls, or do not exist. From input() of as many rows to
  /// output(); on the last stage logits() of these rows follow, but no losses.
  virtual void continue_text(const ExecSpace& exec, const MicroBatch& batch, int kept,
                             int slot) = 0;
};

/// A stage is made without memory and answers then already what its parameters are, what crosses at
/// its two ends and how much memory it will take. parameters().allocate() and reserve() take it.
template <class Real>
class Stage {
 public:
  virtual ~Stage() = default;

  virtual ParameterArena<Real>& parameters() = 0;
  const ParameterArena<Real>& parameters() const { return const_cast<Stage*>(this)->parameters(); }

  /// Shape at each end when samples have `tokens` tokens (StageCapacity, MicroBatch). The
  /// input's is of no account on the first stage, nor is the output's on the last. Stages that
  /// share a boundary must agree. Where as many tokens cross as samples have, those that are
  /// padding are neither sent nor counted; where another number crosses, all of them are.
  virtual BoundaryShape input_shape(int tokens) const = 0;
  virtual BoundaryShape output_shape(int tokens) const = 0;

  /// Null: this stage has to do with no token embedding.
  virtual TokenEmbedding<Real>* token_embedding() { return nullptr; }
  const TokenEmbedding<Real>* token_embedding() const {
    return const_cast<Stage*>(this)->token_embedding();
  }

  /// Bucket of the token embedding's table, whose gradients are final last; -1: it is not here.
  int embedding_bucket() const {
    const TokenEmbedding<Real>* const embedding = token_embedding();
    const int table = embedding ? embedding->wte() : -1;
    return table < 0 ? -1 : parameters().info()[table].bucket;
  }

  /// Null: the model computes every text as a whole. All stages of a model have one, or none.
  virtual TextContinuation<Real>* text_continuation() { return nullptr; }
  const TextContinuation<Real>* text_continuation() const {
    return const_cast<Stage*>(this)->text_continuation();
  }

  /// Gradients of parameters are made here, or of rows of a shared embedding. Where not, and
  /// nowhere before, no backward pass comes: the stage is then reserved without `training`.
  bool has_trained() const {
    const TokenEmbedding<Real>* const embedding = token_embedding();
    return parameters().gradient_size() > 0 || (embedding && !embedding->wte_frozen());
  }

  /// Memory of parameters().allocate(capacity.training, capacity.products) and reserve(capacity).
  /// Allocates nothing: the same code runs with a ViewAllocator that counts.
  virtual MemoryLedger memory(const StageCapacity& capacity) const = 0;
  /// Takes all memory that forward and backward need.
  virtual void reserve(const StageCapacity& capacity) = 0;

  /// State of the stage between steps, all its parts.
  virtual std::vector<StatePart> state(const ExecSpace& exec) {
    return {parameter_state(exec, parameters())};
  }

  // Rows below are those of the end: B * input_shape(T).tokens or B * output_shape(T).tokens.
  //
  // Who runs a stage keeps these orders, so that memory may be shared as follows. Of a slot:
  // input, forward(), output read, output_gradient, backward() or backward_inputs(),
  // input_gradient read, backward_parameters() after the latter. Between slots: from writing
  // output_gradient() to having read input_gradient() no other pass of the stage runs and no other
  // slot's gradient is written. So both gradients of
  // all slots may be the same memory, or overlap, but on the last stage, whose forward() makes the
  // loss's gradient: there each slot has its own until its backward(). No gradient may overlap an
  // input or an output; inputs and outputs of different slots are separate. backward() may
  // overwrite output_gradient().

  /// Memory for the boundary's activations of a slot before forward(); not on the first stage.
  virtual MatrixRef<Real> input(int slot, int rows) = 0;
  /// Memory in which forward() leaves its output; not on the last stage.
  virtual MatrixRef<Real> output(int slot, int rows) = 0;
  /// Memory for the gradient of the output before backward(); not on the last stage.
  virtual MatrixRef<Real> output_gradient(int slot, int rows) = 0;
  /// Memory in which backward() leaves the gradient of the input; not on the first stage.
  virtual MatrixRef<Real> input_gradient(int slot, int rows) = 0;

  /// In training the last stage also makes the loss's gradient, so that logits never outlive a
  /// block of rows; `accumulate` is false for a step's first micro-batch, whose gradients replace
  /// what is there. Gradients of frozen parameters are not made.
  virtual void forward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool training,
                       bool accumulate) = 0;
  using BucketFinal = std::function<void(int bucket)>;
  /// `bucket_final` is called, if set, after the kernels that finish a bucket's gradients were
  /// launched: once for every bucket but that of the token embedding, in descending order.
  virtual void backward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool accumulate,
                        const BucketFinal& bucket_final) = 0;

  // backward() in two passes with the same bits, for schedules in which gradients leave before
  // those of parameters are made. Other slots' passes may come between the two.

  /// The gradient of the input, and as many of parameters as the stage likes.
  virtual void backward_inputs(const ExecSpace& exec, const MicroBatch& batch, int slot,
                               bool accumulate) {
    backward(exec, batch, slot, accumulate, {});
  }
  /// The gradients of the other parameters; `bucket_final` as above.
  virtual void backward_parameters(const ExecSpace&, const MicroBatch&, int, bool,
                                   const BucketFinal& bucket_final) {
    finish_buckets(bucket_final, static_cast<int>(parameters().buckets().size()), 0);
  }

  /// Last stage: MicroBatch::score of every row of a micro-batch of the step (0 for padding).
  virtual VectorRef<const Real> scores(int micro_batch, int rows) = 0;
  /// Last stage: logits of one row of the last forward() of a slot. [V]
  virtual VectorRef<const Real> logits(const ExecSpace& exec, int slot, int row) = 0;

 protected:
  /// Buckets [begin, end) in descending order, but that of the token embedding.
  void finish_buckets(const BucketFinal& bucket_final, int end, int begin) const {
    if (!bucket_final) return;
    const int table = embedding_bucket();
    for (int b = end - 1; b >= begin; --b)
      if (b != table) bucket_final(b);
  }
};

}  // namespace deltapipe
