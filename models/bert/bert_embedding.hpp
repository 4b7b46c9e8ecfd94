// SPDX-License-Identifier: BSD-3-Clause
// The first end of a BERT.
#pragma once

#include <memory>

#include "models/blocks/block.hpp"
#include "models/blocks/layers.hpp"
#include "models/blocks/token_embedding.hpp"

namespace deltapipe {

/// x = dropout(norm(token + position + segment))
template <class Real>
class BertEmbedding final : public FirstEnd<Real> {
 public:
  /// The tables are parameters [positions, C] and [segments, C] of `parameters`.
  BertEmbedding(ParameterArena<Real>& parameters, int position_table, int segment_table,
                const NormLayer<Real>& norm, std::shared_ptr<TokenTable<Real>> tokens,
                double dropout, std::uint32_t dropout_site)
      : parameters_(parameters),
        positions_(position_table),
        segments_(segment_table),
        norm_(norm),
        tokens_(std::move(tokens)),
        dropout_(dropout),
        site_(dropout_site) {}

  void require(const StageCapacity&, WorkspaceSize& size) const override {
    size.raise(tokens_->embedding_channels(), 0);
  }
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  bool trained() const override;
  int bucket() const override { return parameters_.info()[positions_].bucket; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                bool accumulate) const override;

 private:
  bool is_trained(int table) const { return !parameters_.info()[table].frozen; }
  /// Computes the sum before the norm.
  void sum(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const;

  ParameterArena<Real>& parameters_;
  int positions_, segments_;
  NormLayer<Real> norm_;
  std::shared_ptr<TokenTable<Real>> tokens_;
  double dropout_;
  std::uint32_t site_;
  Vector<Real> mean_N_, rstd_N_;
};

}  // namespace deltapipe
