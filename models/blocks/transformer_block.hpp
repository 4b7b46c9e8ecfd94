// SPDX-License-Identifier: BSD-3-Clause
// Blocks that normalise before each residual branch.
#pragma once

#include "models/blocks/transformer_branches.hpp"

namespace deltapipe {

/// y = x + dropout(MLP(norm(x))), for rows that do not see each other.
template <class Real>
class MlpBlock final : public Block<Real> {
 public:
  MlpBlock(ParameterArena<Real>& parameters, const MlpNames& names, const MlpOptions& options,
           int bucket);

  bool in_place() const override { return true; }
  SavedTensors saved() const override;
  SavedTensors postponed() const override {
    return trains_linear() ? gradients_to_keep() : SavedTensors();
  }
  /// The tensors of postponed(), also of layers that are frozen.
  SavedTensors gradients_to_keep() const;
  bool trains_linear() const { return up_.trained() || down_.trained(); }
  void require(const StageCapacity&, WorkspaceSize& size) const override {
    size.raise(options_.channels, options_.hidden);
  }
  void forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                      const MatrixRef<Real>& y) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x, const MatrixRef<Real>& dx,
                bool accumulate) const override;
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           bool accumulate) const override;
  /// Computes y of few rows, with weights in GPT-2's layout.
  void forward_few(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                   const MatrixRef<Real>& y) const;

 private:
  enum Saved { kHidden, kStatistics };
  enum Postponed { kHiddenGradient, kDownGradient };

  /// Returns the hidden layer before the activation: all that backward() needs.
  MatrixRef<Real> hidden(const BlockPass<Real>& pass, int rows) const {
    return narrow(pass.saved[kHidden], rows, options_.hidden);
  }

  MlpOptions options_;
  NormLayer<Real> norm_;
  LinearLayer<Real> up_, down_;
};

/// Pre-norm block: attention, then an MLP, both with residual connections.
template <class Real>
class TransformerBlock final : public Block<Real> {
 public:
  TransformerBlock(ParameterArena<Real>& parameters, const AttentionNames& attention_names,
                   const AttentionOptions& attention, const MlpNames& mlp_names,
                   const MlpOptions& mlp, int bucket)
      : channels_(mlp.channels),
        attention_(parameters, attention_names, attention, bucket),
        mlp_(parameters, mlp_names, mlp, bucket) {}

  bool in_place() const override { return true; }
  SavedTensors saved() const override;
  SavedTensors postponed() const override;
  void require(const StageCapacity& capacity, WorkspaceSize& size) const override;
  void forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                      const MatrixRef<Real>& y) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                const MatrixRef<Real>& gradient, bool accumulate) const override;
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           bool accumulate) const override;
  bool continues_text() const override { return attention_.continues_text(); }
  void reserve_text(const StageCapacity& capacity, const ViewAllocator& memory) override {
    attention_.reserve_text(capacity, memory);
  }
  void continue_text(const BlockPass<Real>& pass, int kept, const MatrixRef<Real>& x,
                     const MatrixRef<Real>& y) const override;

 private:
  static constexpr int kResidual = AttentionBranch<Real>::kSaved, kMlp = kResidual + 1;

  MatrixRef<Real> residual(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
    return narrow(pass.saved[kResidual], x.extent_int(0), channels_);
  }
  /// Returns the pass of mlp_, whose matrices are the last ones.
  BlockPass<Real> of_mlp(BlockPass<Real> pass) const {
    pass.saved += kMlp;
    if (pass.postponed) pass.postponed += AttentionBranch<Real>::kPostponed;
    return pass;
  }

  int channels_;
  AttentionBranch<Real> attention_;
  MlpBlock<Real> mlp_;
};

}  // namespace deltapipe
