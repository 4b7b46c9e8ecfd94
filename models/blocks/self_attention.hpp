// SPDX-License-Identifier: BSD-3-Clause
// Self-attention between its input and the input of its output projection: a part of blocks, which
// give it its saved matrices.
#pragma once

#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"
#include "models/blocks/transformer_branches.hpp"

namespace deltapipe {

/// Attention over the valid tokens of each sample.
template <class Real>
class SelfAttention {
 public:
  virtual ~SelfAttention() = default;

  /// Matrices of a block's saved() and postponed() that belong to the attention, the first ones.
  virtual SavedTensors saved() const = 0;
  virtual SavedTensors postponed() const = 0;
  virtual bool trains_linear() const = 0;
  virtual void require(const StageCapacity& capacity, WorkspaceSize& size) const = 0;

  /// Computes attention_NC from x_NC. May overwrite the workspace's norm_NC, branch_NC and wide_NF.
  virtual void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                       const MatrixRef<Real>& attention) const = 0;
  /// Adds the gradient of x to dx. `attention` is the forward pass' result and `dattention`, which
  /// may be branch_NC, its gradient. May overwrite norm_NC, wide_NF and wide2_NF. Computes all
  /// gradients of parameters or, with pass.postponed, those that backward_parameters() does not.
  virtual void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                        const MatrixRef<Real>& attention, const MatrixRef<Real>& dattention,
                        const MatrixRef<Real>& dx, bool accumulate) const = 0;
  virtual void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                   bool accumulate) const = 0;
};

/// softmax(q k^T / sqrt(D)) v with q, k, v = x W + b.
template <class Real>
class DotProductAttention final : public SelfAttention<Real> {
 public:
  /// The parameters are `qkv`.weight and `qkv`.bias.
  DotProductAttention(ParameterArena<Real>& parameters, const std::string& qkv,
                      const AttentionOptions& options, int bucket)
      : options_(options),
        qkv_(parameters, qkv, options.channels, 3 * std::uint64_t(options.channels), bucket,
             options.layout) {}

  SavedTensors saved() const override;
  SavedTensors postponed() const override;
  bool trains_linear() const override { return qkv_.trained(); }
  void require(const StageCapacity& capacity, WorkspaceSize& size) const override;
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
               const MatrixRef<Real>& attention) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                const MatrixRef<Real>& attention, const MatrixRef<Real>& dattention,
                const MatrixRef<Real>& dx, bool accumulate) const override;
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           bool accumulate) const override;

 private:
  /// Matrices of saved() and postponed().
  enum Saved { kQkv, kLogSum };
  enum Postponed { kQkvGradient };

  AttentionShape shape(int samples, int tokens) const {
    return {samples, tokens, options_.heads, options_.channels / options_.heads, options_.causal};
  }

  AttentionOptions options_;
  LinearLayer<Real> qkv_;
};

}  // namespace deltapipe
