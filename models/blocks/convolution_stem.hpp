// SPDX-License-Identifier: BSD-3-Clause
// The first layers of a convolutional network.
#pragma once

#include <string>

#include "models/blocks/normed_convolution.hpp"

namespace deltapipe {

/// x_NC = pixels: Field::values are images [H, W, C].
template <class Real>
class PixelInput final : public FirstEnd<Real> {
 public:
  void reserve(const StageCapacity&, const ViewAllocator&) override {}
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
};

/// y = pool(relu(norm(x * W))). Computes no gradient of x, because x are the data.
template <class Real>
class ConvolutionStem final : public Block<Real> {
 public:
  /// With `pools`, y has the maxima of pooling_after().
  ConvolutionStem(ParameterArena<Real>& parameters, const std::string& name,
                  const ConvolutionShape& shape, bool pools, const BatchNormOptions& norm,
                  int bucket)
      : convolution_(parameters, name, shape, norm, bucket), pools_(pools) {}

  BoundaryShape output_shape(const BoundaryShape&) const override;
  SavedTensors saved() const override;
  void require(const StageCapacity& capacity, WorkspaceSize& size) const override {
    convolution_.require(capacity, size);
  }
  void forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override {
    convolution_.forward(pass, x, pass.saved);
  }
  void forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                      const MatrixRef<Real>& y) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                const MatrixRef<Real>& gradient, bool accumulate) const override;

 private:
  NormedConvolution<Real> convolution_;
  bool pools_;
};

}  // namespace deltapipe
