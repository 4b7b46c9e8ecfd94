// SPDX-License-Identifier: BSD-3-Clause
// Blocks of residual branches.
#pragma once

#include "models/blocks/transformer_branches.hpp"

namespace deltapipe {

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
  const Matrix<Real>* postponed_mlp(const BlockPass<Real>& pass) const {
    return pass.postponed ? pass.postponed + AttentionBranch<Real>::kPostponed : nullptr;
  }

  int channels_;
  AttentionBranch<Real> attention_;
  MlpBranch<Real> mlp_;
};

/// y = x + MLP(norm(x)), for rows that do not see each other.
template <class Real>
class MlpBlock final : public Block<Real> {
 public:
  MlpBlock(ParameterArena<Real>& parameters, const MlpNames& names, const MlpOptions& options,
           int bucket)
      : mlp_(parameters, names, options, bucket) {}

  bool in_place() const override { return true; }
  SavedTensors saved() const override { return mlp_.saved(); }
  SavedTensors postponed() const override {
    return mlp_.trains_linear() ? mlp_.postponed() : SavedTensors();
  }
  void require(const StageCapacity&, WorkspaceSize& size) const override { mlp_.require(size); }
  void forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override {
    mlp_.forward_saved(pass, pass.saved, x);
  }
  void forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                      const MatrixRef<Real>& y) const override {
    mlp_.forward_output(pass, pass.saved, x, y);
  }
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                const MatrixRef<Real>& gradient, bool accumulate) const override {
    mlp_.backward(pass, pass.saved, pass.postponed, x, gradient, accumulate);
  }
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           bool accumulate) const override {
    mlp_.backward_parameters(pass, pass.saved, pass.postponed, x, accumulate);
  }

 private:
  MlpBranch<Real> mlp_;
};

}  // namespace deltapipe
