// SPDX-License-Identifier: BSD-3-Clause
// A convolution without bias, followed by batch normalisation.
#pragma once

#include <string>

#include "core/kernels/layers/batch_norm.hpp"
#include "models/blocks/block.hpp"
#include "models/blocks/residual_shape.hpp"

namespace deltapipe {

/// Tensors that a NormedConvolution keeps: the output before the norm, and its statistics.
inline constexpr int kNormedTensors = 2;

/// norm(x * W): NAME.convolution.weight and NAME.normalization.{weight,bias,running_mean,
/// running_var}. In training, statistics are those of the micro-batch, as in PyTorch; otherwise
/// running ones.
template <class Real>
class NormedConvolution {
 public:
  NormedConvolution(ParameterArena<Real>& parameters, const std::string& name,
                    const ConvolutionShape& shape, const BatchNormOptions& norm, int bucket);

  const ConvolutionShape& shape() const { return shape_; }
  void add_saved(SavedTensors& saved) const;
  void require(const StageCapacity& capacity, WorkspaceSize& size) const {
    size.images.raise(shape_, capacity.samples);
  }
  /// Returns the output before the norm, in memory of add_saved().
  MatrixRef<Real> output(const BlockPass<Real>& pass, const Matrix<Real>* saved) const;
  /// Returns the norm of the output, whose statistics are in memory of add_saved().
  ColumnNorm<Real> norm(const Matrix<Real>* saved) const;
  /// Computes output() and norm().
  void forward(const BlockPass<Real>& pass, const MatrixRef<const Real>& x,
               const Matrix<Real>* saved) const;
  /// Adds the micro-batch to the running statistics. Must be called once for each forward pass in
  /// training.
  void update_statistics(const BlockPass<Real>& pass, const Matrix<Real>* saved) const;
  /// From dy, the gradient of norm(output): computes the gradients of parameters, and that of
  /// output() in `doutput`, which may be dy.
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<const Real>& x,
                           const Matrix<Real>* saved, const MatrixRef<Real>& dy,
                           const MatrixRef<Real>& doutput, bool accumulate) const;
  /// Computes the gradient of x, added to dx if `add` is set.
  void backward_input(const BlockPass<Real>& pass, const MatrixRef<Real>& doutput, bool add,
                      const MatrixRef<Real>& dx) const;

 private:
  enum Statistic { kMean, kVariance, kRstd, kStatistics };
  VectorRef<Real> statistic(const Matrix<Real>* saved, Statistic which) const {
    return VectorRef<Real>(saved[1].data() + which * shape_.outputs, shape_.outputs);
  }

  ParameterArena<Real>& parameters_;
  ConvolutionShape shape_;
  BatchNormOptions options_;
  int filter_, weight_, bias_, running_mean_, running_variance_;
};

}  // namespace deltapipe
