// SPDX-License-Identifier: BSD-3-Clause
// The first end of a model of vectors.
#pragma once

#include <algorithm>
#include <string>

#include "core/kernels/layers/pooling.hpp"
#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"

namespace deltapipe::test {

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
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override {
    values_NF_ =
        memory.uninitialized<Matrix<Real>>(MemoryUse::workspace, "test::ValuesInput::values",
                                           capacity.samples * capacity.tokens, width_);
  }
  bool trained() const override { return layer_.trained(); }
  int bucket() const override { return bucket_; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override {
    layer_.forward(pass.exec, rows(pass), x, pass.workspace);
  }
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                bool accumulate) const override {
    const Workspace<Real>& w = pass.workspace;
    layer_.parameter_gradient(pass.exec, rows(pass), w.products.gradient(pass.exec, gradient),
                              accumulate, w);
  }

 private:
  /// Returns the values in the form of products.
  Operand<Real> rows(const BlockPass<Real>& pass) const {
    const MatrixRef<Real> values = narrow(values_NF_, pass.batch.rows(), width_);
    values_of_rows<Real>(pass.exec, pass.batch.fields.reals(Field::values), values);
    return pass.workspace.products.input(pass.exec, values);
  }

  int width_, channels_, bucket_;
  LinearLayer<Real> layer_;
  Matrix<Real> values_NF_;
};

}  // namespace deltapipe::test
