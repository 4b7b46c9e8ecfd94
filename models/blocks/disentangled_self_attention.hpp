// SPDX-License-Identifier: BSD-3-Clause
// The disentangled self-attention of DeBERTa-v2 and -v3 (arXiv 2006.03654).
#pragma once

#include <memory>
#include <string>

#include "models/blocks/relative_embedding.hpp"
#include "models/blocks/self_attention.hpp"

namespace deltapipe {

struct DisentangledOptions {
  AttentionOptions attention;  ///< causal and epsilon are not used
  bool content_to_position = true, position_to_content = true;
  /// Site of the relative embedding's dropout. Its mask is that of the micro-batch's first sample.
  std::uint32_t position_dropout_site = 0;
};

/// Names of the projections, without ".weight" and ".bias".
struct DisentangledNames {
  std::string qkv;
  /// Projection of relative positions with the rows [queries, keys] or, for one kind of scores,
  /// only those that it requires; empty: `qkv` projects relative positions as well (share_att_key).
  std::string positions;
};

template <class Real>
class DisentangledSelfAttention final : public SelfAttention<Real> {
 public:
  DisentangledSelfAttention(ParameterArena<Real>& parameters, const DisentangledNames& names,
                            const DisentangledOptions& options,
                            std::shared_ptr<RelativeEmbedding<Real>> embedding, int bucket);

  SavedTensors saved() const override;
  SavedTensors postponed() const override;
  bool trains_linear() const override {
    return qkv_.trained() || position_layer_.trained() || embedding_->trained();
  }
  void require(const StageCapacity& capacity, WorkspaceSize& size) const override;
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
               const MatrixRef<Real>& attention) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                const MatrixRef<Real>& attention, const MatrixRef<Real>& dattention,
                const MatrixRef<Real>& dx, bool accumulate) const override;
  void backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           bool accumulate) const override;

 private:
  /// Matrices of saved() and postponed().
  enum Saved { kQkv, kLogSum };
  enum Postponed { kQkvGradient, kPositionsGradient };

  int channels() const { return options_.attention.channels; }
  AttentionShape shape(int samples, int tokens) const {
    return {samples, tokens, options_.attention.heads, channels() / options_.attention.heads,
            false};
  }
  Dropout probability_dropout(const BlockPass<Real>& pass) const {
    return pass.dropout(options_.attention.attention_dropout, options_.attention.dropout_site);
  }
  Dropout position_dropout(const BlockPass<Real>& pass, int rows) const;
  /// Returns the number of kinds of scores by relative positions.
  int kinds() const { return options_.content_to_position + options_.position_to_content; }
  /// Returns the number of columns of projected relative positions: queries and keys.
  int position_columns() const { return (shares_projections_ ? 2 : kinds()) * channels(); }
  /// Returns the rows of the relative embedding [P, C], in the workspace.
  MatrixRef<Real> relative_embedding(const BlockPass<Real>& pass) const;
  /// Projects these rows; the operands are in the workspace.
  RelativeOperands<Real> project_positions(const BlockPass<Real>& pass,
                                           const MatrixRef<Real>& embedding) const;
  void parameter_gradients(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                           const MatrixRef<Real>& embedding, const MatrixRef<Real>& dpositions,
                           const MatrixRef<Real>& dqkv, bool accumulate) const;
  /// Computes this block's gradient of the relative embedding. Overwrites the workspace's rows of
  /// it.
  void embedding_gradient(const BlockPass<Real>& pass, const MatrixRef<Real>& dpositions,
                          bool accumulate) const;
  /// Returns queries and keys among the columns of projected positions [P, F].
  RelativeOperands<Real> operands(const MatrixRef<Real>& positions_PF) const;

  DisentangledOptions options_;
  std::shared_ptr<RelativeEmbedding<Real>> embedding_;
  int index_;                ///< among the blocks that use the relative embedding
  bool shares_projections_;  ///< position_layer_ is a part of qkv_
  LinearLayer<Real> qkv_, position_layer_;
};

}  // namespace deltapipe
