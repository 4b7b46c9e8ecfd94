// SPDX-License-Identifier: BSD-3-Clause
// The first end of models of texts.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"
#include "models/blocks/token_table.hpp"

namespace deltapipe {

/// Indices of an embedding's tables among the parameters; -1: no such table.
struct EmbeddingTables {
  int positions = -1;  ///< [positions, C]
  int segments = -1;   ///< [segments, C]
};

/// x = dropout(norm(token + position + segment)). Positions, segments and norm are optional.
template <class Real>
class TextEmbedding final : public FirstEnd<Real> {
 public:
  /// `bucket` is that of the tables and of the norm.
  TextEmbedding(ParameterArena<Real>& parameters, const EmbeddingTables& tables,
                const std::optional<NormLayer<Real>>& norm,
                std::shared_ptr<TokenTable<Real>> tokens, double dropout,
                std::uint32_t dropout_site, int bucket)
      : parameters_(parameters),
        tables_(tables),
        norm_(norm),
        tokens_(std::move(tokens)),
        dropout_(dropout),
        site_(dropout_site),
        bucket_(bucket) {}

  void require(const StageCapacity&, WorkspaceSize& size) const override {
    if (norm_) size.raise(tokens_->embedding_channels(), 0);
  }
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  bool trained() const override;
  int bucket() const override { return bucket_; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                bool accumulate) const override;
  bool continues_text() const override { return !norm_ && tables_.segments < 0; }
  void continue_text(const BlockPass<Real>& pass, int kept,
                     const MatrixRef<Real>& x) const override {
    sum(pass, kept, x);
  }

 private:
  bool is_trained(int table) const { return table >= 0 && !parameters_.info()[table].frozen; }
  /// Computes the sum before the norm, of rows at the positions from `first` on.
  void sum(const BlockPass<Real>& pass, int first, const MatrixRef<Real>& x) const;
  /// Turns the gradient of the norm's output into that of the sum. Computes the sum and its
  /// statistics again: other micro-batches have passed since.
  void backward_norm(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                     bool accumulate) const;

  ParameterArena<Real>& parameters_;
  EmbeddingTables tables_;
  std::optional<NormLayer<Real>> norm_;
  std::shared_ptr<TokenTable<Real>> tokens_;
  double dropout_;
  std::uint32_t site_;
  int bucket_;
  Vector<Real> statistics_;
};

}  // namespace deltapipe
