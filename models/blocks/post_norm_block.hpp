// SPDX-License-Identifier: BSD-3-Clause
// Transformer block that normalises after each residual sum, as BERT (arXiv 1810.04805).
#pragma once

#include <memory>

#include "models/blocks/self_attention.hpp"
#include "models/blocks/transformer_branches.hpp"

namespace deltapipe {

/// Names of the layers after the attention, without ".weight" and ".bias".
struct PostNormNames {
  std::string out, attention_norm;
  MlpNames mlp;
};

/// a = x + dropout(attention(x) W + b), h = norm1(a), b = h + dropout(MLP(h)), y = norm2(b).
template <class Real>
class PostNormBlock final : public Block<Real> {
 public:
  /// `attention` has declared its parameters, of the same bucket. `options` are those of
  /// `attention`.
  PostNormBlock(ParameterArena<Real>& parameters, std::unique_ptr<SelfAttention<Real>> attention,
                const PostNormNames& names, const AttentionOptions& options, const MlpOptions& mlp,
                int bucket);

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

 private:
  /// Matrices of saved() and postponed() after the attention's.
  enum Saved { kAttention, kSum1, kStatistics1, kHidden, kSum2, kStatistics2 };
  enum Postponed { kOutGradient, kHiddenGradient, kDownGradient };

  const Matrix<Real>& saved(const BlockPass<Real>& pass, Saved tensor) const {
    return pass.saved[attention_saved_ + tensor];
  }
  const Matrix<Real>& postponed(const BlockPass<Real>& pass, Postponed tensor) const {
    return pass.postponed[attention_postponed_ + tensor];
  }
  bool trains_linear() const {
    return attention_->trains_linear() || out_.trained() || up_.trained() || down_.trained();
  }
  /// Turns the gradient of y into that of a.
  void backward_mlp(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                    bool accumulate) const;
  /// Turns the gradient of a into that of x.
  void backward_attention(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                          const MatrixRef<Real>& gradient, bool accumulate) const;

  std::unique_ptr<SelfAttention<Real>> attention_;
  std::size_t attention_saved_, attention_postponed_;
  AttentionOptions options_;
  MlpOptions mlp_;
  LinearLayer<Real> out_;
  NormLayer<Real> norm1_;
  LinearLayer<Real> up_, down_;
  NormLayer<Real> norm2_;
};

}  // namespace deltapipe
