// SPDX-License-Identifier: BSD-3-Clause
// The first end of encoders of texts.
#pragma once

#include <memory>

#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"
#include "models/blocks/token_embedding.hpp"

namespace deltapipe {

/// Indices of an embedding's tables among the parameters; -1: no such table.
struct EmbeddingTables {
  int positions = -1;  ///< [positions, C]
  int segments = -1;   ///< [segments, C]
};

/// x = dropout(norm(token + position + segment)). Positions and segments are optional.
template <class Real>
class EncoderEmbedding final : public FirstEnd<Real> {
 public:
  /// `bucket` is that of the tables and of the norm.
  EncoderEmbedding(ParameterArena<Real>& parameters, const EmbeddingTables& tables,
                   const NormLayer<Real>& norm, std::shared_ptr<TokenTable<Real>> tokens,
                   double dropout, std::uint32_t dropout_site, int bucket)
      : parameters_(parameters),
        tables_(tables),
        norm_(norm),
        tokens_(std::move(tokens)),
        dropout_(dropout),
        site_(dropout_site),
        bucket_(bucket) {}

  void require(const StageCapacity&, WorkspaceSize& size) const override {
    size.raise(tokens_->embedding_channels(), 0);
  }
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  bool trained() const override;
  int bucket() const override { return bucket_; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                bool accumulate) const override;

 private:
  bool is_trained(int table) const { return table >= 0 && !parameters_.info()[table].frozen; }
  /// Computes the sum before the norm.
  void sum(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const;

  ParameterArena<Real>& parameters_;
  EmbeddingTables tables_;
  NormLayer<Real> norm_;
  std::shared_ptr<TokenTable<Real>> tokens_;
  double dropout_;
  std::uint32_t site_;
  int bucket_;
  Vector<Real> statistics_;
};

}  // namespace deltapipe
