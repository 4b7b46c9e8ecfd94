// SPDX-License-Identifier: BSD-3-Clause
// Interface between a pipeline and a model. A stage turns boundary activations into boundary
// activations and, backwards, gradients into gradients. To add a model, derive a class from Stage.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

#include "core/base/numeric/precision.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/base/row_grid.hpp"
#include "core/base/sample_fields.hpp"
#include "core/base/state/state.hpp"
#include "core/stage/parameters.hpp"

namespace deltapipe {

/// Score of a row on the last stage. `loss` is its loss. The others are for evaluations: `miss` is
/// 1 if greedy decoding misses the row's target, else 0; NaN if a logit is not finite. `prediction`
/// is the loss, the predicted class, and the number of classes that are likelier than the label,
/// each for all rows of a micro-batch. `probabilities` are those of all classes, row by row; they
/// require no target.
enum class RowScore { loss, miss, prediction, probabilities };
/// Returns the values in a row's score of a model without classes.
constexpr int values_without_classes(RowScore score) {
  return score == RowScore::loss || score == RowScore::miss ? 1 : 0;
}

/// One micro-batch at a stage. Its rows n = b*T + t are rows of the data, which cross a boundary as
/// BoundaryShape defines.
struct MicroBatch {
  std::uint64_t seed = 0;  ///< seed of the run; keys dropout together with step
  std::uint64_t step = 0;
  int index = 0;        ///< within the step
  int samples = 0;      ///< B, at most the reserved number
  int tokens = 0;       ///< T of this micro-batch: that of its longest sample, or of the data
  int most_tokens = 0;  ///< T of the data, by which dropout counts; 0: `tokens`
  VectorRef<const std::uint64_t> sample_id_B;
  /// Valid rows of each sample; those after them are padding. Empty: all rows are valid.
  VectorRef<const std::int32_t> length_B;
  /// Inputs on the first stage, targets on the last one. With a TokenEmbedding, Field::tokens is
  /// each token's row in the embedding.
  BatchFields fields;
  double loss_scale = 0;  ///< gradients belong to loss_scale * (sum of the rows' losses)
  RowScore score = RowScore::loss;

  int rows() const { return samples * tokens; }
};

/// Sizes for which a stage allocates memory, once.
struct StageCapacity {
  int samples = 1;         ///< B
  int tokens = 1;          ///< T
  int slots = 1;           ///< micro-batches between their forward and backward pass
  int micro_batches = 1;   ///< micro-batches in a step
  int embedding_rows = 0;  ///< first stage: rows of the token embedding that a step may need
  bool training = true;
  bool recompute = false;  ///< keeps only the blocks' inputs and recomputes the rest in backward
  /// Precision of the model's matrix products; a model may compute everything in fp32.
  ProductPrecision products = ProductPrecision::fp32;
  /// Passes are backward_inputs() and backward_parameters() instead of backward().
  bool splits_backward = false;
  /// In training: the previous stage requires input_gradient(). Otherwise it is never read, and
  /// backward() may end at the lowest trained parameter.
  bool input_gradient = true;
  /// TextContinuation: keeps keys and values of a sample's T tokens. Not in training; B = 1.
  bool keeps_text = false;
};

/// Shape of what crosses a boundary for each sample: `tokens` rows of `channels` values.
struct BoundaryShape {
  int tokens = 0;
  int channels = 0;
  RowGrid grid = {};  ///< places of the rows in the sample's image, if they have places
  bool operator==(const BoundaryShape&) const = default;
};

/// Interface of stages whose model looks up tokens in a table: the first stage and, if the table is
/// shared, the last one. On the first stage Field::tokens holds each token's row of the table or,
/// if the table is on another stage, of embedding_rows().
template <class Real>
class TokenEmbedding {
 public:
  virtual ~TokenEmbedding() = default;

  /// Returns true if the table is also the output matrix and therefore on the last stage. For each
  /// step a separate first stage holds only the rows of the step's tokens. If the table is frozen,
  /// it holds a copy (ParameterArena::add_copy) instead, and no rows travel.
  virtual bool shared() const = 0;
  /// Returns true if, with several stages, the first one borrows rows of the last one's table.
  bool lends_rows() const { return shared() && !wte_frozen(); }
  /// Returns the number of columns of the table.
  virtual int embedding_channels() const = 0;
  /// Returns the index of the table among the parameters; -1: not on this stage.
  virtual int wte() const = 0;
  /// Returns true if the table is frozen, here or on another stage; embedding_gradient() is then
  /// not called.
  virtual bool wte_frozen() const { return false; }
  /// First stage, if the table is on another one: returns the rows in use, to be filled before a
  /// step. [U, C]
  virtual MatrixRef<Real> embedding_rows(int rows) = 0;
  /// First stage: returns the gradient of the step's table rows from all its micro-batches. Row u
  /// is the sum over stored rows row_of(first_of_U(u)...first_of_U(u+1)). Stored row m*B*T + n is
  /// row n of micro-batch m.
  virtual MatrixRef<Real> embedding_gradient(const ExecSpace& exec,
                                             const VectorRef<const std::int32_t>& first_of_U,
                                             const VectorRef<const std::int32_t>& row_of,
                                             int rows) = 0;
};

/// Interface of stages whose blocks all use the same trained parameters. The first stage owns them,
/// and the others have copies (ParameterArena::add_renewed_copy), which are renewed after each
/// update. Their gradients are summed from the model's last block to its first one, so that the
/// partition does not change their bits.
template <class Real>
class CommonParameters {
 public:
  virtual ~CommonParameters() = default;

  /// Returns the shape of the sum of gradients in steps of samples of `tokens` tokens.
  virtual BoundaryShape gradient_shape(int tokens) const = 0;
  /// Returns the shape of all values.
  virtual BoundaryShape value_shape() const = 0;
  /// First stage: returns the bucket of their gradients, which holds nothing else.
  virtual int bucket() const = 0;
  virtual void reserve(const StageCapacity& capacity, const ViewAllocator& memory) = 0;

  /// Returns the memory of the sum of the gradients of this stage and of later ones.
  virtual MatrixRef<Real> gradient_sum() const = 0;
  /// Adds the gradients of this stage's blocks to the sum or, with `begin`, starts the sum with
  /// them.
  virtual void add_gradients(const ExecSpace& exec, bool begin) const = 0;
  /// First stage: computes the parameters' gradients from the sum, which it overwrites.
  virtual void finish_gradients(const ExecSpace& exec) const = 0;

  /// Returns the memory in which values travel.
  virtual MatrixRef<Real> values() const = 0;
  /// Copies the parameters to values().
  virtual void pack_values(const ExecSpace& exec) const = 0;
  /// Copies values() to the parameters.
  virtual void unpack_values(const ExecSpace& exec) const = 0;
};

/// Interface of stages whose model can continue a text without recomputing earlier tokens, because
/// it keeps attention's keys and values. Reserved with StageCapacity::keeps_text.
template <class Real>
class TextContinuation {
 public:
  virtual ~TextContinuation() = default;

  /// Runs forward() on the micro-batch's tokens. They follow the first `kept` tokens of its only
  /// sample, which earlier calls have passed; `kept` may be 0. Takes the rows of input() to
  /// output(). On the last stage logits() of these rows are available, but no losses.
  virtual void continue_text(const ExecSpace& exec, const MicroBatch& batch, int kept,
                             int slot) = 0;
};

/// Part of a model. A stage is built without memory. It already reports its parameters, what
/// crosses at its two ends and how much memory it requires. parameters().allocate() and reserve()
/// allocate it.
template <class Real>
class Stage {
 public:
  virtual ~Stage() = default;

  virtual ParameterArena<Real>& parameters() = 0;
  const ParameterArena<Real>& parameters() const { return const_cast<Stage*>(this)->parameters(); }

  /// Return what crosses at each end when samples have `tokens` tokens (StageCapacity, MicroBatch).
  /// The input's shape is ignored on the first stage, the output's on the last one. Stages that
  /// share a boundary must agree. If the number of tokens equals that of the samples, padding is
  /// neither sent nor counted; otherwise all tokens are.
  virtual BoundaryShape input_shape(int tokens) const = 0;
  virtual BoundaryShape output_shape(int tokens) const = 0;

  /// Returns null if the stage does not use a token embedding.
  virtual TokenEmbedding<Real>* token_embedding() { return nullptr; }
  const TokenEmbedding<Real>* token_embedding() const {
    return const_cast<Stage*>(this)->token_embedding();
  }

  /// Returns null if the model has no trained parameters that all stages use. Either all stages of
  /// a model have some or none of them.
  virtual CommonParameters<Real>* common_parameters() { return nullptr; }
  const CommonParameters<Real>* common_parameters() const {
    return const_cast<Stage*>(this)->common_parameters();
  }
  /// Returns the buckets of the token embedding's table and of common parameters, whose gradients
  /// are final after the stage's passes; -1: not on this stage.
  std::array<int, 2> late_buckets() const {
    const TokenEmbedding<Real>* const embedding = token_embedding();
    const CommonParameters<Real>* const common = common_parameters();
    const int table = embedding ? embedding->wte() : -1;
    return {table < 0 ? -1 : parameters().info()[table].bucket, common ? common->bucket() : -1};
  }

  /// Returns null if the model computes every text as a whole. Either all stages of a model have
  /// one or none of them.
  virtual TextContinuation<Real>* text_continuation() { return nullptr; }
  const TextContinuation<Real>* text_continuation() const {
    return const_cast<Stage*>(this)->text_continuation();
  }

  /// Returns true if this stage computes gradients of parameters, or of rows of a shared embedding.
  /// If neither it nor an earlier stage does, it has no backward pass and is reserved without
  /// `training`.
  bool has_trained() const {
    const TokenEmbedding<Real>* const embedding = token_embedding();
    return parameters().gradient_size() > 0 || (embedding && !embedding->wte_frozen());
  }

  /// Returns the memory that parameters().allocate(capacity.training, capacity.products) and
  /// reserve(capacity) require. Allocates nothing: the same code runs with a ViewAllocator that
  /// counts.
  virtual MemoryLedger memory(const StageCapacity& capacity) const = 0;
  /// Allocates all memory that forward and backward need.
  virtual void reserve(const StageCapacity& capacity) = 0;

  /// Returns all parts of what the stage retains from step to step.
  virtual std::vector<StatePart> state(const ExecSpace& exec) {
    return {parameter_state(exec, parameters())};
  }

  // `rows` of an end is B * input_shape(T).tokens or B * output_shape(T).tokens.
  //
  // The caller of a stage keeps the following orders, which allow a stage to share memory. Within
  // a slot: input, forward(), output read, output_gradient, backward() or backward_inputs(),
  // input_gradient read, then backward_parameters(). Between slots: from the write of
  // output_gradient() until input_gradient() has been read, no other pass of the stage runs and no
  // other slot's gradient is written. Therefore both gradients of all slots may share or overlap
  // memory. The last stage is the exception: its forward() computes the loss's gradient, so each
  // slot keeps its own until its backward(). No gradient may overlap an input or an output. Inputs
  // and outputs of different slots are separate. backward() may overwrite output_gradient().

  /// Returns the memory for a slot's boundary activations before forward(); not on the first stage.
  virtual MatrixRef<Real> input(int slot, int rows) = 0;
  /// Returns the activations after forward(); not on the last stage.
  virtual MatrixRef<Real> output(int slot, int rows) = 0;
  /// Returns the memory for the output's gradient before backward(); not on the last stage.
  virtual MatrixRef<Real> output_gradient(int slot, int rows) = 0;
  /// Returns the input's gradient after backward(); not on the first stage.
  virtual MatrixRef<Real> input_gradient(int slot, int rows) = 0;

  /// Runs the forward pass. In training the last stage also computes the loss's gradient, so that
  /// logits exist only for a block of rows at a time. `accumulate` is false for a step's first
  /// micro-batch, whose gradients replace earlier values. Frozen parameters get no gradients.
  virtual void forward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool training,
                       bool accumulate) = 0;
  using BucketFinal = std::function<void(int bucket)>;
  /// Runs the backward pass. If `bucket_final` is set, it is called after the launch of the kernels
  /// that finish a bucket's gradients. It is called once for every bucket except those of the token
  /// embedding and of common parameters, in descending order.
  virtual void backward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool accumulate,
                        const BucketFinal& bucket_final) = 0;

  // backward() in two passes with the same bits, for schedules that send gradients before they
  // compute those of parameters. Other slots' passes may run between the two.

  /// Computes the gradient of the input and, optionally, gradients of some parameters.
  virtual void backward_inputs(const ExecSpace& exec, const MicroBatch& batch, int slot,
                               bool accumulate) {
    backward(exec, batch, slot, accumulate, {});
  }
  /// Computes the gradients of the other parameters; for `bucket_final` see backward().
  virtual void backward_parameters(const ExecSpace&, const MicroBatch&, int, bool,
                                   const BucketFinal& bucket_final) {
    finish_buckets(bucket_final, static_cast<int>(parameters().buckets().size()), 0);
  }

  /// Last stage: returns the number of rows that have a score in a sample of T rows.
  virtual int scored_rows(int tokens) const { return tokens; }
  /// Last stage: returns the number of values in a row's score; 0: the model has no such score.
  virtual int score_values(RowScore score) const { return values_without_classes(score); }
  /// Last stage: returns MicroBatch::score of the scored rows of a micro-batch of the step (0 for
  /// padding), `count` values in all.
  virtual VectorRef<const Real> scores(int micro_batch, int count) = 0;
  /// Last stage: returns the logits of one row of a slot's last forward(). [V]
  virtual VectorRef<const Real> logits(const ExecSpace& exec, int slot, int row) = 0;

 protected:
  /// Finishes buckets [begin, end) in descending order, except those that are final later.
  void finish_buckets(const BucketFinal& bucket_final, int end, int begin) const {
    if (!bucket_final) return;
    const std::array<int, 2> late = late_buckets();
    for (int b = end - 1; b >= begin; --b)
      if (b != late[0] && b != late[1]) bucket_final(b);
  }
};

}  // namespace deltapipe
