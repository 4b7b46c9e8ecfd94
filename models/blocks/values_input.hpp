// SPDX-License-Identifier: BSD-3-Clause
// The first end of a model of vectors, such as the patches of an image.
#pragma once

#include <algorithm>
#include <string>

#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"

namespace deltapipe {

/// x_NC = v_NF W + b: Field::values are F values for each of a sample's T rows.
template <class Real>
class ValuesInput final : public FirstEnd<Real> {
 public:
  ValuesInput(ParameterArena<Real>& parameters, const std::string& name, int width, int channels,
              int bucket)
      : width_(width),
        channels_(channels),
        bucket_(bucket),
        layer_(parameters, name, width, channels, bucket) {}

  void require(const StageCapacity&, WorkspaceSize& size) const override {
    size.raise(0, std::max(width_, channels_));
  }
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  bool trained() const override { return layer_.trained(); }
  int bucket() const override { return bucket_; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                bool accumulate) const override;

 private:
  /// Returns the values in the form of products.
  Operand<Real> rows(const BlockPass<Real>& pass) const;

  int width_, channels_, bucket_;
  LinearLayer<Real> layer_;
  Matrix<Real> values_NF_;
};

}  // namespace deltapipe
