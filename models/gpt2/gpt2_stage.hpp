// SPDX-License-Identifier: BSD-3-Clause
// GPT-2 (Radford et al. 2019) as a stage of consecutive blocks. It computes the same as Hugging
// Face's GPT2LMHeadModel.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "core/base/numeric/random.hpp"
#include "core/kernels/attention/attention.hpp"
#include "core/kernels/gemm/products.hpp"
#include "core/stage/stage.hpp"
#include "models/gpt2/gpt2_config.hpp"
#include "models/partition.hpp"

namespace deltapipe {

/// Returns the floating-point operations of one sample of T tokens, forward and backward.
ModelCost gpt2_cost(const Gpt2Config& config, int tokens);

template <class Real>
class Gpt2Stage final : public Stage<Real>,
                        public TokenEmbedding<Real>,
                        public TextContinuation<Real> {
 public:
  /// `frozen` contains names of the model's parameters that are not trained.
  Gpt2Stage(const Gpt2Config& config, const StagePart& part,
            const std::set<std::string>& frozen = {});
  /// Builds the stage with memory for its parameters.
  Gpt2Stage(const Gpt2Config& config, const StagePart& part, bool training,
            const std::set<std::string>& frozen = {},
            ProductPrecision products = ProductPrecision::fp32)
      : Gpt2Stage(config, part, frozen) {
    parameters_.allocate(training, products);
  }

  using Stage<Real>::parameters;
  using Stage<Real>::state;
  using Stage<Real>::token_embedding;
  using Stage<Real>::text_continuation;
  ParameterArena<Real>& parameters() override { return parameters_; }
  BoundaryShape input_shape(int tokens) const override { return {tokens, config_.n_embd}; }
  BoundaryShape output_shape(int tokens) const override { return {tokens, config_.n_embd}; }
  TokenEmbedding<Real>* token_embedding() override {
    return part_.first || (part_.last && shared()) ? this : nullptr;
  }
  MemoryLedger memory(const StageCapacity& capacity) const override;
  void reserve(const StageCapacity& capacity) override;
  /// Groups attention and sums columns as on a device or as on a host. The default is the place
  /// where kernels run. Must be called before memory is allocated.
  void compute_as_on_device(bool as_on_device) { as_on_device_ = as_on_device; }

  MatrixRef<Real> input(int slot, int rows) override;
  MatrixRef<Real> output(int slot, int rows) override;
  MatrixRef<Real> output_gradient(int slot, int rows) override;
  MatrixRef<Real> input_gradient(int slot, int rows) override;

  void forward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool training,
               bool accumulate) override;
  void backward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool accumulate,
                const typename Stage<Real>::BucketFinal& bucket_final) override;
  void backward_parameters(const ExecSpace& exec, const MicroBatch& batch, int slot,
                           bool accumulate,
                           const typename Stage<Real>::BucketFinal& bucket_final) override;

  TextContinuation<Real>* text_continuation() override { return this; }
  void continue_text(const ExecSpace& exec, const MicroBatch& batch, int kept, int slot) override;

  VectorRef<const Real> scores(int micro_batch, int rows) override;
  VectorRef<const Real> logits(const ExecSpace& exec, int slot, int row) override;

  bool shared() const override { return config_.tie_word_embeddings; }
  int embedding_channels() const override { return channels(); }
  int wte() const override { return wte_; }
  bool wte_frozen() const override { return parameters_.frozen().contains(kTokenTable); }
  MatrixRef<Real> embedding_rows(int rows) override;
  MatrixRef<Real> embedding_gradient(const ExecSpace& exec,
                                     const VectorRef<const std::int32_t>& first_of_U,
                                     const VectorRef<const std::int32_t>& row_of,
                                     int rows) override;

 private:
  static constexpr const char* kTokenTable = "wte.weight";

  /// Indices of a block's tensors.
  struct Block {
    int ln1_weight, ln1_bias, qkv_weight, qkv_bias, out_weight, out_bias;
    int ln2_weight, ln2_bias, up_weight, up_bias, down_weight, down_bias;
    int bucket;
  };
  /// State that a block's backward pass needs in addition to the block's input.
  struct BlockState {
    Matrix<Real> qkv_N3C, attention_NC, residual_NC, hidden_NF;
    Vector<Real> log_sum_BHT, mean1_N, rstd1_N, mean2_N, rstd2_N;
  };
  /// Gradients of the outputs of a block's linear layers, kept from backward_inputs() to
  /// backward_parameters().
  struct OutputGradients {
    Matrix<Real> qkv_N3C, attention_NC, hidden_NF, mlp_NC;
  };
  struct Slot {
    /// Block inputs and, last, the stage's output. Inputs that no backward pass needs share memory.
    std::vector<Matrix<Real>> x_NC;
    /// One per block, or one for all. Blocks without a backward pass share one.
    std::vector<BlockState> states;
    /// One per block if backward passes are split; empty if there is nothing to keep.
    std::vector<OutputGradients> output_gradients;
    Matrix<Real> gradient_NC;  ///< last stage: gradient of its final block's output
  };

  int channels() const { return config_.n_embd; }
  /// Returns true on the first stage if positions or tokens need gradients.
  bool trains_embeddings() const;
  /// Returns the block at which backward passes end; part_.blocks if no block has one.
  int first_backward_block(const StageCapacity& capacity) const;
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory);
  void reserve_products(const StageCapacity& capacity, const ViewAllocator& memory);
  void reserve_text(const StageCapacity& capacity, const ViewAllocator& memory);
  BlockState make_state(int rows, const ViewAllocator& memory) const;
  OutputGradients make_output_gradients(int rows, const ViewAllocator& memory) const;
  /// Returns true if any weights or biases of the block's linear layers are trained.
  bool trains_linear(const Block& block) const;
  BlockState& state(int slot, int block);
  /// Returns null if no part of the block's backward pass is postponed.
  OutputGradients* kept_gradients(int slot, int block);
  VectorRef<Real> value(int index) const { return parameters_.value(index); }
  Operand<Real> weight(int index) const {
    if (parameters_.in_halves(index)) return {{}, parameters_.rounded_matrix(index)};
    return parameters_.matrix(index);
  }
  /// Returns the token embedding or, if it is on another stage, the rows of it that a step needs.
  RowTable<Real> token_table() const;
  Dropout dropout(const MicroBatch& batch, double probability, std::uint32_t site) const;
  Dropout block_dropout(const MicroBatch& batch, double probability, int block, int site) const;
  MatrixRef<Real> gradient(int slot, int rows);

  Operand<Real> normalised(const ExecSpace& exec, const MatrixRef<Real>& x, int weight, int bias,
                           const Vector<Real>& mean, const Vector<Real>& rstd);
  Operand<Real> activated(const ExecSpace& exec, const MatrixRef<Real>& hidden,
                          const Matrix<Real>& workspace);
  AttentionShape attention_shape(int samples, int tokens) const {
    return {samples, tokens, config_.n_head, config_.n_embd / config_.n_head};
  }
  /// `shape` may be smaller than the one for which memory was allocated.
  AttentionPlan attention_plan(const AttentionShape& shape) const;
  void attend(const ExecSpace& exec, const AttentionShape& shape, const MatrixRef<Real>& qkv,
              const Dropout& dropout, const MatrixRef<Real>& attention,
              const Vector<Real>& log_sum);
  void attend_backward(const ExecSpace& exec, const AttentionShape& shape,
                       const MatrixRef<Real>& qkv, const Dropout& dropout,
                       const MatrixRef<Real>& attention, const Vector<Real>& log_sum,
                       const MatrixRef<Real>& dattention, const MatrixRef<Real>& dqkv);
  void embed(const ExecSpace& exec, const MicroBatch& batch, int slot);
  void embed_backward(const ExecSpace& exec, const MicroBatch& batch, int slot, bool accumulate);
  void block_inner(const ExecSpace& exec, const MicroBatch& batch, int slot, int block,
                   bool training);
  void block_output(const ExecSpace& exec, const MicroBatch& batch, int slot, int block,
                    bool training);
  void continue_block(const ExecSpace& exec, int rows, int kept, int slot, int block);
  void mlp_backward(const ExecSpace& exec, const MicroBatch& batch, int slot, int block,
                    bool accumulate);
  void attention_block_backward(const ExecSpace& exec, const MicroBatch& batch, int slot, int block,
                                bool accumulate);
  void block_parameters_backward(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                 int block, bool accumulate);
  void head(const ExecSpace& exec, const MicroBatch& batch, int slot, bool training,
            bool accumulate);

  Gpt2Config config_;
  StagePart part_;
  StageCapacity capacity_;
  ParameterArena<Real> parameters_;
  std::vector<Block> blocks_;
  int position_table_ = -1;
  int wte_ = -1;  ///< tied: on the last stage, if frozen also on the first; else on the first
  int output_matrix_ = -1;  ///< on the last stage
  int final_weight_ = -1;
  int final_bias_ = -1;
  int final_bucket_ = -1;
  int position_bucket_ = -1;

  Products<Real> products_;
  std::vector<Slot> slots_;
  Matrix<Real> gradient_NC_;          ///< passes backwards through the blocks
  Matrix<Real> norm_NC_, branch_NC_;  ///< workspaces of one width
  Matrix<Real> wide_NF_, wide2_NF_;   ///< workspaces of F = max(n_inner, 3C)
  bool as_on_device_ = !kHostExecution;
  AttentionGrouping grouping_;  ///< grouping of the largest micro-batch
  Vector<Real> scores_, scores2_;
  Vector<std::uintptr_t> addresses_;  ///< addresses of attention's operands
  HeadProducts<Real, Real> head_products_;
  /// Factors of attention in bf16, which requires instructions for it.
  Vector<Bf16> score_factors_, score_factors2_;
  HeadProducts<Real, Bf16> head_products_bf16_;
  Vector<Real> column_sums_;  ///< sums of parts of the rows
  Matrix<Real> logits_;       ///< logits of a block of rows
  Vector<Real> score_, final_mean_N_, final_rstd_N_;
  /// Keys and values of continue_text(): rows of T tokens [k heads
  /// v heads] for each block.
  Matrix<Real> kept_T2C_;
  Vector<Real> kept_scores_;
  Matrix<Real> embedding_rows_UC_, embedding_gradient_UC_;
  Matrix<Real> embedding_gradient_NC_;  ///< gradients of all micro-batches of a step
};

}  // namespace deltapipe
