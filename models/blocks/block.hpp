// SPDX-License-Identifier: BSD-3-Clause
// Interfaces of what a BlockStage is made of: blocks, and the two ends of a model. To add a block,
// derive a class from Block that declares its parameters in its constructor.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "core/stage/stage.hpp"
#include "models/blocks/narrow.hpp"
#include "models/blocks/workspace.hpp"

namespace deltapipe {

/// A matrix that a block keeps between passes.
struct SavedTensor {
  const char* label;
  int columns;
  /// Rows for each sample; 0: those of the block's input or output, whichever has more.
  int rows_of_sample = 0;
  int rows_of_batch = 0;  ///< rows, whatever the samples; 0: as above
  bool operator==(const SavedTensor&) const = default;
};
using SavedTensors = std::vector<SavedTensor>;

/// One pass of a block over a micro-batch.
template <class Real>
struct BlockPass {
  const ExecSpace& exec;
  const MicroBatch& batch;
  const Workspace<Real>& workspace;
  const Matrix<Real>* saved;      ///< Block::saved()
  const Matrix<Real>* postponed;  ///< Block::postponed(); null: backward() computes everything
  bool training;

  /// Returns dropout of one site of the network; outside of training, of probability 0.
  Dropout dropout(double probability, std::uint32_t site) const {
    Dropout d;
    d.probability = training ? static_cast<float>(probability) : 0;
    d.stream = RandomStream(batch.seed, batch.step, site);
    d.sample_id_B = batch.sample_id_B;
    d.tokens = batch.tokens;
    d.most_tokens = std::max(batch.most_tokens, batch.tokens);
    return d;
  }
};

/// A differentiable function of rows, y_MD = block(x_NC). Blocks share the stage's Workspace, whose
/// contents do not survive a call.
template <class Real>
class Block {
 public:
  virtual ~Block() = default;

  virtual BoundaryShape output_shape(const BoundaryShape& input) const { return input; }
  /// Returns true if y may be the memory of x where there is no backward pass.
  virtual bool in_place() const { return false; }
  /// Returns what forward_saved() writes for backward(). Blocks that return the same share memory
  /// where nothing is kept.
  virtual SavedTensors saved() const = 0;
  /// Returns what backward() keeps for backward_parameters(); empty: nothing is postponed.
  virtual SavedTensors postponed() const { return {}; }
  virtual void require(const StageCapacity& capacity, WorkspaceSize& size) const = 0;

  /// Computes saved(). Recomputation repeats this half only.
  virtual void forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const = 0;
  /// Computes y after forward_saved().
  virtual void forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                              const MatrixRef<Real>& y) const = 0;
  /// Turns the gradient of y into that of x, in the same memory. `gradient` has the shape of the
  /// larger of the two; elements of each are dense from its begin. Computes all gradients of
  /// parameters or, with pass.postponed, those that backward_parameters() does not.
  virtual void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                        const MatrixRef<Real>& gradient, bool accumulate) const = 0;
  virtual void backward_parameters(const BlockPass<Real>&, const MatrixRef<Real>&, bool) const {}

  /// Returns true if continue_text() exists; a stage continues texts if all its blocks do.
  virtual bool continues_text() const { return false; }
  virtual void reserve_text(const StageCapacity&, const ViewAllocator&) {}
  /// Runs the forward pass of rows that follow the first `kept` tokens of the text.
  virtual void continue_text(const BlockPass<Real>&, int, const MatrixRef<Real>&,
                             const MatrixRef<Real>&) const {}
};

/// The first end of a model: makes the first activations from a micro-batch.
template <class Real>
class FirstEnd {
 public:
  virtual ~FirstEnd() = default;

  virtual void require(const StageCapacity&, WorkspaceSize&) const {}
  /// Throws if samples of capacity.tokens cannot be made.
  virtual void reserve(const StageCapacity& capacity, const ViewAllocator& memory) = 0;
  /// Returns true if backward() computes anything.
  virtual bool trained() const { return false; }
  /// Returns the bucket of its parameters (except a token table's); -1: none.
  virtual int bucket() const { return -1; }
  virtual void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const = 0;
  /// May overwrite the gradient.
  virtual void backward(const BlockPass<Real>&, const MatrixRef<Real>&, bool) const {}
  virtual bool continues_text() const { return false; }
  virtual void continue_text(const BlockPass<Real>&, int, const MatrixRef<Real>&) const {}
};

/// The last end of a model: makes scores and the loss's gradient.
template <class Real>
class LastEnd {
 public:
  virtual ~LastEnd() = default;

  virtual void require(const StageCapacity& capacity, WorkspaceSize& size) const = 0;
  virtual void reserve(const StageCapacity& capacity, const ViewAllocator& memory) = 0;
  /// Returns the buckets that are final after forward(), in the order of their announcement.
  virtual std::vector<int> buckets() const { return {}; }
  /// Computes scores and, in training, gradients of parameters and, in `dx`, of x.
  virtual void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                       const MatrixRef<Real>& dx, bool accumulate) = 0;
  /// See Stage.
  virtual int scored_rows(int tokens) const { return tokens; }
  virtual int score_values(RowScore score) const { return values_without_classes(score); }
  virtual VectorRef<const Real> scores(int micro_batch, int count) const = 0;
  /// Returns the logits of one row. [V]
  virtual VectorRef<const Real> logits(const ExecSpace& exec, const Workspace<Real>& workspace,
                                       const MatrixRef<Real>& x_1C) = 0;
};

}  // namespace deltapipe
