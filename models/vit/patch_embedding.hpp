// SPDX-License-Identifier: BSD-3-Clause
// The first end of a vision transformer.
#pragma once

#include <string>

#include "core/base/image_shape.hpp"
#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"

namespace deltapipe {

/// x = dropout([class token; patches W + b] + position). Field::values are images [H, W, C].
template <class Real>
class PatchEmbedding final : public FirstEnd<Real> {
 public:
  /// Declares PREFIXcls_token, PREFIXposition_embeddings and PREFIXpatch_embeddings.projection.
  PatchEmbedding(ParameterArena<Real>& parameters, const std::string& prefix,
                 const ImageShape& image, int patch, int channels, double dropout,
                 std::uint32_t dropout_site, int bucket);

  void require(const StageCapacity&, WorkspaceSize& size) const override {
    size.raise(channels_, patch_values());
  }
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  bool trained() const override;
  int bucket() const override { return parameters_.info()[positions_].bucket; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                bool accumulate) const override;

 private:
  int patches() const { return image_.height / patch_ * (image_.width / patch_); }
  int patch_values() const { return image_.channels * patch_ * patch_; }
  bool is_trained(int parameter) const { return !parameters_.info()[parameter].frozen; }
  /// Returns a [1, T, C] parameter's values or gradient as a matrix.
  MatrixRef<Real> rows(const MatrixRef<Real>& values) const {
    return MatrixRef<Real>(values.data(), patches() + 1, channels_);
  }
  /// Returns the pixels of all patches in the form of products.
  Operand<Real> pixels(const BlockPass<Real>& pass) const;

  ParameterArena<Real>& parameters_;
  ImageShape image_;
  int patch_, channels_;
  double dropout_;
  std::uint32_t site_;
  int class_token_, positions_;
  LinearLayer<Real> projection_;
  Matrix<Real> pixels_MF_, patches_MC_;
};

}  // namespace deltapipe
