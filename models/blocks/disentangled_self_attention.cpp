// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/disentangled_self_attention.hpp"

#include <utility>

#include "core/base/parallel/profiling_region.hpp"

namespace deltapipe {

template <class Real>
DisentangledSelfAttention<Real>::DisentangledSelfAttention(
    ParameterArena<Real>& parameters, const DisentangledNames& names,
    const DisentangledOptions& options, std::shared_ptr<RelativeEmbedding<Real>> embedding,
    int bucket)
    : options_(options),
      embedding_(std::move(embedding)),
      index_(embedding_->add_block()),
      shares_projections_(names.positions.empty()),
      qkv_(parameters, names.qkv, channels(), 3 * std::uint64_t(channels()), bucket,
           options.attention.layout),
      position_layer_(shares_projections_
                          ? qkv_.first_outputs(2 * channels())
                          : LinearLayer<Real>(parameters, names.positions, channels(),
                                              kinds() * std::uint64_t(channels()), bucket,
                                              options.attention.layout)) {}

template <class Real>
SavedTensors DisentangledSelfAttention<Real>::saved() const {
  return {{"deltapipe::DisentangledSelfAttention::qkv", 3 * channels()},
          {"deltapipe::DisentangledSelfAttention::logSum", options_.attention.heads}};
}

template <class Real>
SavedTensors DisentangledSelfAttention<Real>::postponed() const {
  return {{"deltapipe::DisentangledSelfAttention::qkvGradient", 3 * channels()},
          {.label = "deltapipe::DisentangledSelfAttention::positionsGradient",
           .columns = position_columns(),
           .rows_of_batch = embedding_->buckets().rows()}};
}

template <class Real>
void DisentangledSelfAttention<Real>::require(const StageCapacity& capacity,
                                              WorkspaceSize& size) const {
  size.raise(channels(), 3 * channels());
  size.raise(RelativeRows::of(embedding_->buckets(), capacity.tokens).count, channels(),
             position_columns());
  size.relative = {shape(capacity.samples, capacity.tokens), embedding_->buckets(),
                   position_columns()};
}

template <class Real>
Dropout DisentangledSelfAttention<Real>::position_dropout(const BlockPass<Real>& pass,
                                                          int rows) const {
  Dropout dropout = pass.dropout(options_.attention.dropout, options_.position_dropout_site);
  dropout.tokens = rows;
  return dropout;
}

template <class Real>
MatrixRef<Real> DisentangledSelfAttention<Real>::relative_embedding(
    const BlockPass<Real>& pass) const {
  const RelativeWorkspace<Real>& w = pass.workspace.relative;
  const RelativeRows rows = RelativeRows::of(embedding_->buckets(), pass.batch.tokens);
  const MatrixRef<Real> y = narrow(w.embedding_PC, rows.count, channels());
  embedding_->forward(pass.exec, rows, position_dropout(pass, rows.count), w, y);
  return y;
}

template <class Real>
RelativeOperands<Real> DisentangledSelfAttention<Real>::project_positions(
    const BlockPass<Real>& pass, const MatrixRef<Real>& embedding) const {
  const Workspace<Real>& w = pass.workspace;
  const MatrixRef<Real> positions =
      narrow(w.relative.positions_PF, embedding.extent_int(0), position_columns());
  position_layer_.forward(pass.exec, w.products.input(pass.exec, embedding), positions, w);
  return operands(positions);
}

template <class Real>
RelativeOperands<Real> DisentangledSelfAttention<Real>::operands(
    const MatrixRef<Real>& positions_PF) const {
  const int C = channels();
  const auto columns = [&](int first) {
    return strided_matrix(positions_PF.data() + first, positions_PF.extent_int(0), C,
                          positions_PF.extent(1));
  };
  const int key = !shares_projections_ && !options_.position_to_content ? 0 : C;
  RelativeOperands<Real> found;
  if (options_.position_to_content) found.queries = columns(0);
  if (options_.content_to_position) found.keys = columns(key);
  return found;
}

template <class Real>
void DisentangledSelfAttention<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                              const MatrixRef<Real>& attention) const {
  const ProfilingRegion region("deltapipe::DisentangledSelfAttention::forward");
  const Workspace<Real>& w = pass.workspace;
  const MatrixRef<Real> qkv = narrow(pass.saved[kQkv], x.extent_int(0), 3 * channels());
  const RelativeOperands<Real> relative = project_positions(pass, relative_embedding(pass));
  qkv_.forward(pass.exec, w.products.input(pass.exec, x), qkv, w);
  disentangled_attention_forward<Real>(
      pass.exec, shape(pass.batch.samples, pass.batch.tokens), w.relative.distances, qkv,
      {relative.queries, relative.keys}, probability_dropout(pass), w.relative.attention(),
      attention, elements_of(pass.saved[kLogSum]), w.relative.gemm, pass.batch.length_B);
}

template <class Real>
void DisentangledSelfAttention<Real>::backward(const BlockPass<Real>& pass,
                                               const MatrixRef<Real>& x,
                                               const MatrixRef<Real>& attention,
                                               const MatrixRef<Real>& dattention,
                                               const MatrixRef<Real>& dx, bool accumulate) const {
  const ProfilingRegion region("deltapipe::DisentangledSelfAttention::backward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = channels();
  const MatrixRef<Real> embedding = relative_embedding(pass);
  const RelativeOperands<Real> relative = project_positions(pass, embedding);
  const MatrixRef<Real> dpositions =
      narrow(pass.postponed ? pass.postponed[kPositionsGradient] : w.relative.dpositions_PF,
             embedding.extent_int(0), position_columns());
  const MatrixRef<Real> dqkv =
      narrow(pass.postponed ? pass.postponed[kQkvGradient] : w.wide_NF, rows, 3 * C);
  // The columns of a kind of scores that is missing.
  if (shares_projections_ && kinds() < 2) Kokkos::deep_copy(exec, dpositions, Real(0));
  disentangled_attention_backward<Real>(
      exec, shape(pass.batch.samples, pass.batch.tokens), w.relative.distances,
      narrow(pass.saved[kQkv], rows, 3 * C), {relative.queries, relative.keys},
      probability_dropout(pass), w.relative.attention(), attention,
      elements_of(pass.saved[kLogSum]), dattention, dqkv, operands(dpositions), w.relative.gemm,
      pass.batch.length_B);
  if (!pass.postponed) parameter_gradients(pass, x, embedding, dpositions, dqkv, accumulate);
  qkv_.input_gradient(exec, w.products.gradient(exec, dqkv), dx, w, true);
}

template <class Real>
void DisentangledSelfAttention<Real>::parameter_gradients(
    const BlockPass<Real>& pass, const MatrixRef<Real>& x, const MatrixRef<Real>& embedding,
    const MatrixRef<Real>& dpositions, const MatrixRef<Real>& dqkv, bool accumulate) const {
  const Products<Real>& products = pass.workspace.products;
  qkv_.parameter_gradient(pass.exec, products.input(pass.exec, x),
                          products.gradient(pass.exec, dqkv), accumulate, pass.workspace);
  position_layer_.parameter_gradient(pass.exec, products.input(pass.exec, embedding),
                                     products.gradient(pass.exec, dpositions),
                                     accumulate || shares_projections_, pass.workspace);
  if (embedding_->trained()) embedding_gradient(pass, dpositions, accumulate);
}

template <class Real>
void DisentangledSelfAttention<Real>::embedding_gradient(const BlockPass<Real>& pass,
                                                         const MatrixRef<Real>& dpositions,
                                                         bool accumulate) const {
  const Workspace<Real>& w = pass.workspace;
  const RelativeRows rows = RelativeRows::of(embedding_->buckets(), pass.batch.tokens);
  const MatrixRef<Real> dembedding = narrow(w.relative.embedding_PC, rows.count, channels());
  position_layer_.input_gradient(pass.exec, w.products.gradient(pass.exec, dpositions), dembedding,
                                 w);
  const Dropout dropout = position_dropout(pass, rows.count);
  if (dropout.probability > 0) apply_dropout<Real>(pass.exec, dropout, dembedding, dembedding);
  embedding_->add_gradient(pass.exec, index_, rows, dembedding, accumulate);
}

template <class Real>
void DisentangledSelfAttention<Real>::backward_parameters(const BlockPass<Real>& pass,
                                                          const MatrixRef<Real>& x,
                                                          bool accumulate) const {
  const MatrixRef<Real> embedding = relative_embedding(pass);
  parameter_gradients(
      pass, x, embedding,
      narrow(pass.postponed[kPositionsGradient], embedding.extent_int(0), position_columns()),
      narrow(pass.postponed[kQkvGradient], x.extent_int(0), 3 * channels()), accumulate);
}

template class DisentangledSelfAttention<float>;
template class DisentangledSelfAttention<double>;

}  // namespace deltapipe
