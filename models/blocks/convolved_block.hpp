// SPDX-License-Identifier: BSD-3-Clause
// A block with a convolution along the text beside it, as after the first block of DeBERTa-v2.
#pragma once

#include <memory>
#include <string>

#include "core/kernels/layers/token_windows.hpp"
#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"

namespace deltapipe {

struct TextConvolutionOptions {
  int channels = 0;  ///< C
  int width = 3;     ///< tokens of a window, odd
  Activation activation = Activation::gelu_erf;
  double epsilon = 1e-7;
  double dropout = 0;
  std::uint32_t dropout_site = 0;
};

/// y = norm(block(x) + activation(dropout(convolution(x)))). Output rows of padding are finite.
template <class Real>
class ConvolvedBlock final : public Block<Real> {
 public:
  /// The parameters are `convolution`.weight [C, C, width], `convolution`.bias and those of `norm`.
  ConvolvedBlock(ParameterArena<Real>& parameters, std::unique_ptr<Block<Real>> block,
                 const std::string& convolution, const std::string& norm,
                 const TextConvolutionOptions& options, int bucket);

  SavedTensors saved() const override;
  SavedTensors postponed() const override { return block_->postponed(); }
  void require(const StageCapacity& capacity, WorkspaceSize& size) const override;
  void forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                      const MatrixRef<Real>& y) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                const MatrixRef<Real>& gradient, bool accumulate) const override;
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           bool accumulate) const override {
    block_->backward_parameters(pass, x, accumulate);
  }

 private:
  /// Matrices of saved() after the block's.
  enum Saved { kConvolved, kSum, kStatistics };
  const Matrix<Real>& saved(const BlockPass<Real>& pass, Saved tensor) const {
    return pass.saved[block_saved_ + tensor];
  }
  TokenWindows windows(const BlockPass<Real>& pass) const {
    return {pass.batch.tokens, options_.width, pass.batch.length_B};
  }
  /// Returns the windows of x as an operand, in the workspace.
  Operand<Real> windows_of(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const;

  std::unique_ptr<Block<Real>> block_;
  std::size_t block_saved_;
  TextConvolutionOptions options_;
  LinearLayer<Real> convolution_;
  NormLayer<Real> norm_;
};

}  // namespace deltapipe
