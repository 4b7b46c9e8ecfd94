// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/text_embedding.hpp"

#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "core/kernels/layers/segments.hpp"

namespace deltapipe {

template <class Real>
bool TextEmbedding<Real>::trained() const {
  return !tokens_->wte_frozen() || is_trained(tables_.positions) || is_trained(tables_.segments) ||
         (norm_ && norm_->trained());
}

template <class Real>
void TextEmbedding<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  tokens_->reserve(capacity, memory);
  if (norm_)
    statistics_ = memory.uninitialized<Vector<Real>>(
        MemoryUse::workspace, "deltapipe::TextEmbedding::statistics",
        2 * std::size_t(capacity.samples) * capacity.tokens);
}

template <class Real>
void TextEmbedding<Real>::sum(const BlockPass<Real>& pass, int first,
                              const MatrixRef<Real>& x) const {
  const BatchFields& fields = pass.batch.fields;
  const VectorRef<const std::int32_t> tokens = fields.integers(Field::tokens);
  const int length = pass.batch.tokens;
  if (tables_.positions >= 0)
    embedding_forward<Real>(pass.exec, tokens, length, tokens_->rows(),
                            rows_of<Real>(parameters_.matrix(tables_.positions), first, length), x);
  else
    gather_rows<Real>(pass.exec, tokens_->rows(), tokens, x);
  if (tables_.segments >= 0)
    add_segments<Real>(pass.exec, fields.integers(Field::segments),
                       parameters_.matrix(tables_.segments), x);
}

template <class Real>
void TextEmbedding<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::TextEmbedding::forward");
  const int rows = x.extent_int(0);
  const MatrixRef<Real> before = norm_ ? narrow(pass.workspace.norm_NC, rows, x.extent_int(1)) : x;
  sum(pass, 0, before);
  if (norm_) norm_->forward(pass.exec, before, x, {statistics_, rows});
  if (pass.training && dropout_ > 0)
    apply_dropout<Real>(pass.exec, pass.dropout(dropout_, site_), x, x);
}

template <class Real>
void TextEmbedding<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                                   bool accumulate) const {
  const ProfilingRegion region("deltapipe::TextEmbedding::backward");
  const ExecSpace& exec = pass.exec;
  const bool frozen = tokens_->wte_frozen();
  const MatrixRef<Real> kept = frozen ? gradient : tokens_->stored_gradient(pass.batch);
  if (dropout_ > 0)
    apply_dropout<Real>(exec, pass.dropout(dropout_, site_), gradient, kept);
  else if (!frozen)
    Kokkos::deep_copy(exec, kept, gradient);
  if (norm_) backward_norm(pass, kept, accumulate);
  if (is_trained(tables_.positions))
    position_gradient<Real>(exec, kept, pass.batch.tokens, accumulate,
                            parameters_.gradient_matrix(tables_.positions));
  if (is_trained(tables_.segments))
    segment_gradient<Real>(exec, pass.batch.fields.integers(Field::segments), kept, accumulate,
                           parameters_.gradient_matrix(tables_.segments),
                           pass.workspace.column_sums);
}

template <class Real>
void TextEmbedding<Real>::backward_norm(const BlockPass<Real>& pass,
                                        const MatrixRef<Real>& gradient, bool accumulate) const {
  const ExecSpace& exec = pass.exec;
  const Workspace<Real>& w = pass.workspace;
  const int rows = gradient.extent_int(0), channels = gradient.extent_int(1);
  const MatrixRef<Real> before = narrow(w.branch_NC, rows, channels);
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, channels);
  const NormStatistics<Real> statistics(statistics_, rows);
  sum(pass, 0, before);
  norm_->forward(exec, before, norm, statistics);
  norm_->parameter_gradient(exec, gradient, before, statistics, accumulate, w);
  norm_->backward_in_place(exec, gradient, before, statistics, norm);
}

template class TextEmbedding<float>;
template class TextEmbedding<double>;

}  // namespace deltapipe
