// SPDX-License-Identifier: BSD-3-Clause
// The two branches of a pre-norm transformer block: out = x + dropout(branch(norm(x))). They are
// parts of blocks, which give them their saved matrices.
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

/// Self-attention.
template <class Real>
class AttentionBranch {
 public:
  AttentionBranch(ParameterArena<Real>& parameters, const AttentionNames& names,
                  const AttentionOptions& options, int bucket);

  /// Matrices of saved() and postponed().
  static constexpr int kSaved = 5, kPostponed = 2;
  SavedTensors saved() const;
  SavedTensors postponed() const;
  bool trains_linear() const { return qkv_.trained() || out_.trained(); }
  /// Continued texts use matrices in GPT-2's layout.
  bool continues_text() const {
    return options_.causal && options_.layout == WeightLayout::inputs_outputs;
  }
  void require(const StageCapacity& capacity, WorkspaceSize& size) const;

  void forward(const BlockPass<Real>& pass, const Matrix<Real>* saved, const MatrixRef<Real>& x,
               const MatrixRef<Real>& y) const;
  /// Turns the gradient of y into that of x. `postponed` may be null.
  void backward(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                const Matrix<Real>* postponed, const MatrixRef<Real>& x, const MatrixRef<Real>& dx,
                bool accumulate) const;
  void backward_parameters(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                           const Matrix<Real>* postponed, const MatrixRef<Real>& x,
                           bool accumulate) const;

  void reserve_text(const StageCapacity& capacity, const ViewAllocator& memory);
  void continue_text(const BlockPass<Real>& pass, int kept, const Matrix<Real>* saved,
                     const MatrixRef<Real>& x, const MatrixRef<Real>& y) const;

 private:
  /// Matrices of saved() and postponed().
  enum Saved { kQkv, kAttention, kLogSum, kMean, kRstd };
  enum Postponed { kQkvGradient, kOutGradient };

  AttentionShape shape(int samples, int tokens) const {
    return {samples, tokens, options_.heads, options_.channels / options_.heads, options_.causal};
  }

  AttentionOptions options_;
  NormLayer<Real> norm_;
  LinearLayer<Real> qkv_, out_;
  Matrix<Real> kept_T2C_;  ///< keys and values of the text: rows [k heads v heads]
};

/// Two linear layers with an activation between them.
template <class Real>
class MlpBranch {
 public:
  MlpBranch(ParameterArena<Real>& parameters, const MlpNames& names, const MlpOptions& options,
            int bucket);

  static constexpr int kSaved = 3, kPostponed = 2;
  SavedTensors saved() const;
  SavedTensors postponed() const;
  bool trains_linear() const { return up_.trained() || down_.trained(); }
  void require(WorkspaceSize& size) const { size.raise(options_.channels, options_.hidden); }

  /// Computes the hidden layer before the activation: all that backward() needs.
  void forward_saved(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                     const MatrixRef<Real>& x) const;
  void forward_output(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                      const MatrixRef<Real>& x, const MatrixRef<Real>& y) const;
  void backward(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                const Matrix<Real>* postponed, const MatrixRef<Real>& x, const MatrixRef<Real>& dx,
                bool accumulate) const;
  void backward_parameters(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                           const Matrix<Real>* postponed, const MatrixRef<Real>& x,
                           bool accumulate) const;
  void continue_text(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                     const MatrixRef<Real>& x, const MatrixRef<Real>& y) const;

 private:
  /// Matrices of saved() and postponed().
  enum Saved { kHidden, kMean, kRstd };
  enum Postponed { kHiddenGradient, kDownGradient };

  Operand<Real> activated(const ExecSpace& exec, const MatrixRef<Real>& hidden,
                          const Matrix<Real>& memory, const Workspace<Real>& w) const;

  MlpOptions options_;
  NormLayer<Real> norm_;
  LinearLayer<Real> up_, down_;
};

}  // namespace deltapipe
