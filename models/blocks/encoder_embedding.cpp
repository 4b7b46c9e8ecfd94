// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/encoder_embedding.hpp"

#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "core/kernels/layers/segments.hpp"

namespace deltapipe {

template <class Real>
bool EncoderEmbedding<Real>::trained() const {
  return !tokens_->wte_frozen() || is_trained(tables_.positions) || is_trained(tables_.segments) ||
         norm_.trained();
}

template <class Real>
void EncoderEmbedding<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  tokens_->reserve(capacity, memory);
  statistics_ = memory.uninitialized<Vector<Real>>(
      MemoryUse::workspace, "deltapipe::EncoderEmbedding::statistics",
      2 * std::size_t(capacity.samples) * capacity.tokens);
}

template <class Real>
void EncoderEmbedding<Real>::sum(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
  const BatchFields& fields = pass.batch.fields;
  const VectorRef<const std::int32_t> tokens = fields.integers(Field::tokens);
  if (tables_.positions >= 0)
    embedding_forward<Real>(pass.exec, tokens, pass.batch.tokens, tokens_->rows(),
                            parameters_.matrix(tables_.positions), x);
  else
    gather_rows<Real>(pass.exec, tokens_->rows(), tokens, x);
  if (tables_.segments >= 0)
    add_segments<Real>(pass.exec, fields.integers(Field::segments),
                       parameters_.matrix(tables_.segments), x);
}

template <class Real>
void EncoderEmbedding<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::EncoderEmbedding::forward");
  const int rows = x.extent_int(0), channels = x.extent_int(1);
  const MatrixRef<Real> before = narrow(pass.workspace.norm_NC, rows, channels);
  sum(pass, before);
  norm_.forward(pass.exec, before, x, {statistics_, rows});
  if (pass.training && dropout_ > 0)
    apply_dropout<Real>(pass.exec, dropout_of(pass.batch, dropout_, site_), x, x);
}

template <class Real>
void EncoderEmbedding<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                                      bool accumulate) const {
  const ProfilingRegion region("deltapipe::EncoderEmbedding::backward");
  const ExecSpace& exec = pass.exec;
  const Workspace<Real>& w = pass.workspace;
  const int rows = gradient.extent_int(0), channels = gradient.extent_int(1);
  const bool frozen = tokens_->wte_frozen();
  const MatrixRef<Real> kept = frozen ? gradient : tokens_->stored_gradient(pass.batch);
  if (dropout_ > 0)
    apply_dropout<Real>(exec, dropout_of(pass.batch, dropout_, site_), gradient, kept);
  else if (!frozen)
    Kokkos::deep_copy(exec, kept, gradient);
  // The sum and its statistics are computed again: other micro-batches have passed since.
  const MatrixRef<Real> before = narrow(w.branch_NC, rows, channels);
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, channels);
  const NormStatistics<Real> statistics(statistics_, rows);
  sum(pass, before);
  norm_.forward(exec, before, norm, statistics);
  norm_.parameter_gradient(exec, kept, before, statistics, accumulate, w);
  norm_.backward_in_place(exec, kept, before, statistics, norm);
  if (is_trained(tables_.positions))
    position_gradient<Real>(exec, kept, pass.batch.tokens, accumulate,
                            parameters_.gradient_matrix(tables_.positions));
  if (is_trained(tables_.segments))
    segment_gradient<Real>(exec, pass.batch.fields.integers(Field::segments), kept, accumulate,
                           parameters_.gradient_matrix(tables_.segments), w.column_sums);
}

template class EncoderEmbedding<float>;
template class EncoderEmbedding<double>;

}  // namespace deltapipe
