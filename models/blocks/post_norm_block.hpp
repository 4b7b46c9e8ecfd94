// SPDX-License-Identifier: BSD-3-Clause
// Transformer block that normalises after each residual sum, as BERT (arXiv 1810.04805).
#pragma once

#include "models/blocks/residual_branches.hpp"

namespace deltapipe {

/// a = x + dropout(attention(x)), h = norm1(a), b = h + dropout(MLP(h)), y = norm2(b). Tokens see
/// all valid tokens of their sample.
template <class Real>
class PostNormBlock final : public Block<Real> {
 public:
  PostNormBlock(ParameterArena<Real>& parameters, const AttentionNames& attention_names,
                const AttentionOptions& attention, const MlpNames& mlp_names, const MlpOptions& mlp,
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
  AttentionShape shape(int samples, int tokens) const {
    return {samples, tokens, attention_.heads, attention_.channels / attention_.heads, false};
  }
  bool trains_linear() const {
    return qkv_.trained() || out_.trained() || up_.trained() || down_.trained();
  }
  /// Turns the gradient of y into that of a.
  void backward_mlp(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                    bool accumulate) const;
  /// Turns the gradient of a into that of x.
  void backward_attention(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                          const MatrixRef<Real>& gradient, bool accumulate) const;
  /// Returns the gradient after a branch's dropout: `gradient` itself or a matrix of the workspace.
  MatrixRef<Real> branch_gradient(const BlockPass<Real>& pass, double dropout, std::uint32_t site,
                                  const MatrixRef<Real>& gradient) const;

  AttentionOptions attention_;
  MlpOptions mlp_;
  LinearLayer<Real> qkv_, out_;
  NormLayer<Real> norm1_;
  LinearLayer<Real> up_, down_;
  NormLayer<Real> norm2_;
};

}  // namespace deltapipe
