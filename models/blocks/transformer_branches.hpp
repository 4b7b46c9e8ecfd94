// SPDX-License-Identifier: BSD-3-Clause
// What transformer blocks are made of: options, common functions, and the attention of pre-norm
// blocks.
#pragma once

#include <string>

#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"

namespace deltapipe {

/// Names of the layers' parameters, without ".weight" and ".bias".
struct AttentionNames {
  std::string norm, qkv, out;
};
struct MlpNames {
  std::string norm, up, down;
};

struct AttentionOptions {
  int channels = 0;  ///< C
  int heads = 0;
  bool causal = true;  ///< else a token sees all valid tokens of its sample
  WeightLayout layout = WeightLayout::inputs_outputs;
  double epsilon = 1e-5;
  double attention_dropout = 0, dropout = 0;
  std::uint32_t dropout_site = 0;  ///< site of the probabilities; the output's is the next one
};
struct MlpOptions {
  int channels = 0;  ///< C
  int hidden = 0;    ///< F
  Activation activation = Activation::gelu_tanh;
  WeightLayout layout = WeightLayout::inputs_outputs;
  double epsilon = 1e-5;
  double dropout = 0;
  std::uint32_t dropout_site = 0;
};

/// Returns activation(x) in the form that the next layer takes, in `memory`.
template <class Real>
Operand<Real> activated(const BlockPass<Real>& pass, Activation activation,
                        const MatrixRef<Real>& x, const Matrix<Real>& memory) {
  return pass.workspace.products.make_input(
      narrow(memory, x.extent_int(0), x.extent_int(1)),
      [&](const auto& y) { activation_forward<Real>(pass.exec, activation, x, y); });
}

/// Returns the gradient of a branch whose result passed through dropout: `gradient` itself or, with
/// dropout, a matrix in norm_NC of the workspace.
template <class Real>
MatrixRef<Real> branch_gradient(const BlockPass<Real>& pass, double dropout, std::uint32_t site,
                                const MatrixRef<Real>& gradient) {
  if (dropout == 0) return gradient;
  const MatrixRef<Real> dropped =
      narrow(pass.workspace.norm_NC, gradient.extent_int(0), gradient.extent_int(1));
  apply_dropout<Real>(pass.exec, pass.dropout(dropout, site), gradient, dropped);
  return dropped;
}

/// y = x + dropout(attention(norm(x)) W + b), a part of blocks. Its saved and postponed matrices
/// are the block's first ones.
template <class Real>
class AttentionBranch {
 public:
  AttentionBranch(ParameterArena<Real>& parameters, const AttentionNames& names,
                  const AttentionOptions& options, int bucket);

  /// Matrices of saved() and postponed().
  static constexpr int kSaved = 4, kPostponed = 2;
  SavedTensors saved() const;
  SavedTensors postponed() const;
  bool trains_linear() const { return qkv_.trained() || out_.trained(); }
  /// Continued texts use matrices in GPT-2's layout.
  bool continues_text() const {
    return options_.causal && options_.layout == WeightLayout::inputs_outputs;
  }
  void require(const StageCapacity& capacity, WorkspaceSize& size) const;

  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
               const MatrixRef<Real>& y) const;
  /// Turns the gradient of y into that of x.
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x, const MatrixRef<Real>& dx,
                bool accumulate) const;
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           bool accumulate) const;

  void reserve_text(const StageCapacity& capacity, const ViewAllocator& memory);
  void continue_text(const BlockPass<Real>& pass, int kept, const MatrixRef<Real>& x,
                     const MatrixRef<Real>& y) const;

 private:
  enum Saved { kQkv, kAttention, kLogSum, kStatistics };
  enum Postponed { kQkvGradient, kOutGradient };

  AttentionShape shape(int samples, int tokens) const {
    return {samples, tokens, options_.heads, options_.channels / options_.heads, options_.causal};
  }

  AttentionOptions options_;
  NormLayer<Real> norm_;
  LinearLayer<Real> qkv_, out_;
  Matrix<Real> kept_T2C_;  ///< keys and values of the text: rows [k heads v heads]
};

}  // namespace deltapipe
