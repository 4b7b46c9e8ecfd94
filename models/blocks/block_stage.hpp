// SPDX-License-Identifier: BSD-3-Clause
// A stage of consecutive blocks, whatever the model: slots, recomputation, buckets and the order
// of passes.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "models/blocks/block.hpp"
#include "models/partition.hpp"

namespace deltapipe {

/// Pieces of a stage. Buckets of parameters ascend from the first end to the last one.
template <class Real>
struct StageParts {
  struct Piece {
    std::unique_ptr<Block<Real>> block;
    int bucket = -1;  ///< bucket of its parameters; -1: none
  };

  std::function<BoundaryShape(int tokens)> input_shape;  ///< shape of the first block's input
  std::unique_ptr<FirstEnd<Real>> first;                 ///< null: not the first stage
  std::vector<Piece> blocks;
  std::unique_ptr<LastEnd<Real>> last;                    ///< null: not the last stage
  std::shared_ptr<TokenEmbedding<Real>> token_embedding;  ///< null: see Stage::token_embedding()
  std::shared_ptr<CommonParameters<Real>> common;         ///< null: see Stage::common_parameters()
  int longest = 0;                                        ///< most tokens of a sample; 0: any
};

template <class Real>
class BlockStage : public Stage<Real>, public TextContinuation<Real> {
 public:
  /// Declares the stage's parameters in the arena, which outlives the returned parts.
  using Build = std::function<StageParts<Real>(ParameterArena<Real>&)>;

  /// `build` is called once for the stage and once for each memory(). `frozen` contains names of
  /// the model's parameters that are not trained.
  BlockStage(Build build, const std::set<std::string>& frozen);
  BlockStage(const BlockStage&) = delete;
  BlockStage& operator=(const BlockStage&) = delete;

  using Stage<Real>::parameters;
  using Stage<Real>::state;
  using Stage<Real>::token_embedding;
  using Stage<Real>::common_parameters;
  using Stage<Real>::text_continuation;
  ParameterArena<Real>& parameters() override { return parameters_; }
  BoundaryShape input_shape(int tokens) const override { return parts_.input_shape(tokens); }
  BoundaryShape output_shape(int tokens) const override { return shapes(tokens).back(); }
  TokenEmbedding<Real>* token_embedding() override { return parts_.token_embedding.get(); }
  CommonParameters<Real>* common_parameters() override { return parts_.common.get(); }
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

  TextContinuation<Real>* text_continuation() override;
  void continue_text(const ExecSpace& exec, const MicroBatch& batch, int kept, int slot) override;

  int scored_rows(int tokens) const override { return parts_.last->scored_rows(tokens); }
  int score_values(RowScore score) const override { return parts_.last->score_values(score); }
  VectorRef<const Real> scores(int micro_batch, int count) override {
    return parts_.last->scores(micro_batch, count);
  }
  VectorRef<const Real> logits(const ExecSpace& exec, int slot, int row) override;

 private:
  using Tensors = std::vector<Matrix<Real>>;
  struct Slot {
    /// Block inputs and, last, the stage's output. Inputs that no backward pass needs share memory.
    std::vector<Matrix<Real>> x;
    std::vector<Tensors> saved;      ///< one per block; several may be the same memory
    std::vector<Tensors> postponed;  ///< one per block
    Matrix<Real> gradient;           ///< last stage: gradient of its final block's output
  };

  int blocks() const { return static_cast<int>(parts_.blocks.size()); }
  const Block<Real>& block(int i) const { return *parts_.blocks[i].block; }
  /// Returns the shapes of the blocks' inputs and, last, of the stage's output.
  std::vector<BoundaryShape> shapes(int tokens) const;
  /// Returns the block at which backward passes end; the number of blocks if no block has one.
  int first_backward_block(const StageCapacity& capacity) const;
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory);
  void reserve_slots(const StageCapacity& capacity, const ViewAllocator& memory);
  void reserve_saved(const StageCapacity& capacity, const ViewAllocator& memory);
  void require(const StageCapacity& capacity, WorkspaceSize& size) const;
  BlockPass<Real> pass(const ExecSpace& exec, const MicroBatch& batch, int slot, int block,
                       bool training) const;
  MatrixRef<Real> gradient(int slot, int rows, int channels) const {
    return narrow(parts_.last ? slots_[slot].gradient : gradient_, rows, channels);
  }
  MatrixRef<Real> x(int slot, int block, const MicroBatch& batch,
                    const BoundaryShape& shape) const {
    return narrow(slots_[slot].x[block], batch.samples * shape.tokens, shape.channels);
  }

  Build build_;
  ParameterArena<Real> parameters_;
  StageParts<Real> parts_;
  StageCapacity capacity_;
  bool as_on_device_ = !kHostExecution;
  std::vector<Slot> slots_;
  Workspace<Real> workspace_;
  Matrix<Real> gradient_;  ///< passes backwards through the blocks
};

/// The stage of a model whose parts are parts_of(config, part, parameters), a function beside its
/// configuration.
template <class Real, class Config>
class ModelStage : public BlockStage<Real> {
 public:
  ModelStage(const Config& config, const StagePart& part, const std::set<std::string>& frozen = {})
      : BlockStage<Real>(
            [config, part](ParameterArena<Real>& parameters) {
              return parts_of(config, part, parameters);
            },
            frozen) {}
  /// Builds the stage with memory for its parameters.
  ModelStage(const Config& config, const StagePart& part, bool training,
             const std::set<std::string>& frozen = {},
             ProductPrecision products = ProductPrecision::fp32)
      : ModelStage(config, part, frozen) {
    this->parameters().allocate(training, products);
  }
};

}  // namespace deltapipe
