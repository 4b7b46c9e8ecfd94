// SPDX-License-Identifier: BSD-3-Clause
// The last end of a model that predicts a class for every sample.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels/layers/pooling.hpp"
#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"

namespace deltapipe {

/// Names of the layers' parameters, without ".weight" and ".bias".
struct ClassificationNames {
  std::string dense;  ///< empty: no such layer
  std::string output;
  std::string norm = {};  ///< empty: no such layer
};

struct ClassificationOptions {
  int channels = 0;  ///< C
  int classes = 0;   ///< V
  Pooling pooling = Pooling::first;
  /// After the dense layer; without it, tanh.
  std::optional<Activation> activation = {};
  double epsilon = 1e-5;  ///< of the norm
  WeightLayout layout = WeightLayout::inputs_outputs;
  Bias output_bias = Bias::yes;
  double dropout = 0;
  std::uint32_t dropout_site = 0;
};

/// logits = dropout(activation(dense(norm(pooled x)))) W + b with the softmax cross entropy of
/// Field::label. The norm is optional, and so is the dense layer with its activation. The end for
/// the task "classification".
template <class Real>
class ClassificationHead final : public LastEnd<Real> {
 public:
  ClassificationHead(ParameterArena<Real>& parameters, const ClassificationNames& names,
                     const ClassificationOptions& options, int bucket);

  void require(const StageCapacity& capacity, WorkspaceSize& size) const override;
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  std::vector<int> buckets() const override { return {bucket_}; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x, const MatrixRef<Real>& dx,
               bool accumulate) override;
  int scored_rows(int) const override { return 1; }
  int score_values(RowScore score) const override;
  VectorRef<const Real> scores(int micro_batch, int count) const override {
    return VectorRef<const Real>(score_.data() + first_score(micro_batch), count);
  }
  /// x_1C is a pooled row.
  VectorRef<const Real> logits(const ExecSpace& exec, const Workspace<Real>& workspace,
                               const MatrixRef<Real>& x_1C) override;

 private:
  std::size_t first_score(int micro_batch) const {
    const int most = std::max(score_values(RowScore::prediction), options_.classes);
    return static_cast<std::size_t>(micro_batch) * batch_samples_ * static_cast<std::size_t>(most);
  }
  /// Returns normalised rows; without a norm, the rows.
  MatrixRef<Real> normal(const ExecSpace& exec, const MatrixRef<Real>& pooled) const;
  /// Returns the row of each sample that the output layer takes, before its dropout.
  MatrixRef<Real> hidden(const ExecSpace& exec, const MatrixRef<Real>& pooled,
                         const Workspace<Real>& w) const;
  /// `features` is what the output layer took.
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& features,
                const MatrixRef<Real>& dlogits, const MatrixRef<Real>& dx, bool accumulate) const;

  ClassificationOptions options_;
  std::optional<NormLayer<Real>> norm_;
  std::optional<LinearLayer<Real>> dense_;
  LinearLayer<Real> output_;
  int bucket_;
  std::size_t batch_samples_ = 0;  ///< samples reserved for a micro-batch
  Matrix<Real> pooled_BC_, normal_BC_, hidden_BC_, activated_BC_, dropped_BC_, gradient_BC_,
      logits_BV_, statistics_;
  Vector<Real> score_;
};

}  // namespace deltapipe
