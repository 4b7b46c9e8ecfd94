// SPDX-License-Identifier: BSD-3-Clause
// The last end of a model that predicts a class, such as the next token, for every row.
#pragma once

#include <vector>

#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"

namespace deltapipe {

/// logits = norm(x) M^T with the softmax cross entropy of Field::next_tokens.
template <class Real>
class LanguageHead final : public LastEnd<Real> {
 public:
  /// `output_matrix` is a parameter [V, C] of `parameters`; `buckets` see LastEnd::buckets().
  LanguageHead(ParameterArena<Real>& parameters, const NormLayer<Real>& norm, int output_matrix,
               std::vector<int> buckets)
      : parameters_(parameters),
        norm_(norm),
        matrix_(output_matrix),
        buckets_(std::move(buckets)) {}

  void require(const StageCapacity& capacity, WorkspaceSize& size) const override;
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  std::vector<int> buckets() const override { return buckets_; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x, const MatrixRef<Real>& dx,
               bool accumulate) override;
  VectorRef<const Real> scores(int micro_batch, int count) const override {
    return VectorRef<const Real>(score_.data() + micro_batch * batch_rows_, count);
  }
  VectorRef<const Real> logits(const ExecSpace& exec, const Workspace<Real>& workspace,
                               const MatrixRef<Real>& x_1C) override;

 private:
  std::size_t vocabulary() const { return parameters_.info()[matrix_].shape[0]; }
  int channels() const { return static_cast<int>(parameters_.info()[matrix_].shape[1]); }

  ParameterArena<Real>& parameters_;
  NormLayer<Real> norm_;
  int matrix_;
  std::vector<int> buckets_;
  std::size_t batch_rows_ = 0;  ///< rows reserved for a micro-batch
  Matrix<Real> logits_;         ///< logits of a block of rows
  Vector<Real> score_, statistics_;
};

}  // namespace deltapipe
