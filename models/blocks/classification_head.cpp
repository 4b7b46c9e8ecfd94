// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/classification_head.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/layers/cross_entropy.hpp"

namespace deltapipe {

namespace {

/// Returns dropout of one row for each sample.
template <class Real>
Dropout dropout_of_samples(const BlockPass<Real>& pass, const ClassificationOptions& options) {
  Dropout dropout = pass.dropout(options.dropout, options.dropout_site);
  dropout.tokens = 1;
  return dropout;
}

/// Returns the valid rows of samples with `rows` rows, which are known where rows are those of the
/// data.
VectorRef<const std::int32_t> lengths_of(const MicroBatch& batch, int rows) {
  return rows == batch.tokens ? batch.length_B : VectorRef<const std::int32_t>();
}

}  // namespace

template <class Real>
ClassificationHead<Real>::ClassificationHead(ParameterArena<Real>& parameters,
                                             const ClassificationNames& names,
                                             const ClassificationOptions& options, int bucket)
    : options_(options),
      norm_(names.norm.empty()
                ? std::nullopt
                : std::optional<NormLayer<Real>>(std::in_place, parameters, names.norm,
                                                 options.channels, options.epsilon, bucket)),
      dense_(names.dense.empty() ? std::nullopt
                                 : std::optional<LinearLayer<Real>>(
                                       std::in_place, parameters, names.dense, options.channels,
                                       options.channels, bucket, options.layout)),
      output_(parameters, names.output, options.channels, options.classes, bucket, options.layout,
              options.output_bias),
      bucket_(bucket) {}

template <class Real>
void ClassificationHead<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  const int widest = std::max(options_.channels, options_.classes);
  size.raise(capacity.samples, options_.channels, widest);
  size.gradient_elements =
      std::max(size.gradient_elements, static_cast<std::size_t>(capacity.samples) * widest);
}

template <class Real>
void ClassificationHead<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  const auto matrix = [&](const char* label, int columns) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::workspace, label, capacity.samples,
                                              columns);
  };
  batch_samples_ = capacity.samples;
  pooled_BC_ = matrix("deltapipe::ClassificationHead::pooled", options_.channels);
  if (norm_) {
    normal_BC_ = matrix("deltapipe::ClassificationHead::normal", options_.channels);
    statistics_ = matrix("deltapipe::ClassificationHead::statistics", 2);
  }
  if (dense_) hidden_BC_ = matrix("deltapipe::ClassificationHead::hidden", options_.channels);
  if (options_.activation)
    activated_BC_ = matrix("deltapipe::ClassificationHead::activated", options_.channels);
  dropped_BC_ = matrix("deltapipe::ClassificationHead::dropped", options_.channels);
  if (capacity.training)
    gradient_BC_ = matrix("deltapipe::ClassificationHead::gradient", options_.channels);
  logits_BV_ = matrix("deltapipe::ClassificationHead::logits", options_.classes);
  score_ = memory.zeroed<Vector<Real>>(MemoryUse::workspace, "deltapipe::ClassificationHead::score",
                                       first_score(capacity.micro_batches));
}

template <class Real>
int ClassificationHead<Real>::score_values(RowScore score) const {
  switch (score) {
    case RowScore::loss:
      return 1;
    case RowScore::prediction:
      return 3;
    case RowScore::probabilities:
      return options_.classes;
    case RowScore::miss:
      return 0;
  }
  return 0;
}

template <class Real>
MatrixRef<Real> ClassificationHead<Real>::normal(const ExecSpace& exec,
                                                 const MatrixRef<Real>& pooled) const {
  if (!norm_) return pooled;
  const int samples = pooled.extent_int(0);
  const MatrixRef<Real> normal = narrow(normal_BC_, samples, options_.channels);
  norm_->forward(exec, pooled, normal, {statistics_, samples});
  return normal;
}

template <class Real>
MatrixRef<Real> ClassificationHead<Real>::hidden(const ExecSpace& exec, const MatrixRef<Real>& x_BC,
                                                 const Workspace<Real>& w) const {
  const MatrixRef<Real> pooled = normal(exec, x_BC);
  if (!dense_) return pooled;
  const MatrixRef<Real> hidden = narrow(hidden_BC_, pooled.extent_int(0), options_.channels);
  dense_->forward(exec, w.products.input(exec, pooled), hidden, w);
  if (options_.activation) {
    const MatrixRef<Real> activated =
        narrow(activated_BC_, pooled.extent_int(0), options_.channels);
    activation_forward<Real>(exec, *options_.activation, hidden, activated);
    return activated;
  }
  tanh_forward<Real>(exec, hidden);
  return hidden;
}

template <class Real>
void ClassificationHead<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                       const MatrixRef<Real>& dx, bool accumulate) {
  const ProfilingRegion region("deltapipe::ClassificationHead::forward");
  const ExecSpace& exec = pass.exec;
  const MicroBatch& batch = pass.batch;
  const Workspace<Real>& w = pass.workspace;
  const int samples = batch.samples;
  const MatrixRef<Real> pooled = narrow(pooled_BC_, samples, options_.channels);
  const MatrixRef<Real> logits = narrow(logits_BV_, samples, options_.classes);
  const int rows = x.extent_int(0) / samples;
  pool_rows<Real>(exec, options_.pooling, rows, lengths_of(batch, rows), x, pooled);
  MatrixRef<Real> features = hidden(exec, pooled, w);
  if (pass.training && options_.dropout > 0) {
    const MatrixRef<Real> dropped = narrow(dropped_BC_, samples, options_.channels);
    apply_dropout<Real>(exec, dropout_of_samples(pass, options_), features, dropped);
    features = dropped;
  }
  output_.forward(exec, w.products.input(exec, features), logits, w);
  const VectorRef<const std::int32_t> label = batch.fields.integers(Field::label);
  const auto score = [&](int value) {
    return VectorRef<Real>(score_.data() + first_score(batch.index) + value * samples, samples);
  };
  if (batch.score == RowScore::probabilities) {
    DELTAPIPE_ASSERT(!pass.training, "probabilities are for evaluations");
    probabilities<Real>(exec, logits, MatrixRef<Real>(score(0).data(), samples, options_.classes));
    return;
  }
  if (batch.score == RowScore::prediction)
    predictions<Real>(exec, label, logits, score(1), score(2));
  cross_entropy<Real>(exec, label, Real(batch.loss_scale), pass.training, logits, logits, score(0));
  if (pass.training) backward(pass, features, logits, dx, accumulate);
}

template <class Real>
void ClassificationHead<Real>::backward(const BlockPass<Real>& pass,
                                        const MatrixRef<Real>& features,
                                        const MatrixRef<Real>& dlogits, const MatrixRef<Real>& dx,
                                        bool accumulate) const {
  const ExecSpace& exec = pass.exec;
  const Workspace<Real>& w = pass.workspace;
  const int samples = pass.batch.samples;
  const MatrixRef<Real> gradient = narrow(gradient_BC_, samples, options_.channels);
  const MatrixRef<Real> pooled = narrow(pooled_BC_, samples, options_.channels);
  const Operand<Real> dlogits_operand = w.products.gradient(exec, dlogits);
  output_.parameter_gradient(exec, w.products.input(exec, features), dlogits_operand, accumulate,
                             w);
  output_.input_gradient(exec, dlogits_operand, gradient, w);
  if (options_.dropout > 0)
    apply_dropout<Real>(exec, dropout_of_samples(pass, options_), gradient, gradient);
  MatrixRef<Real> dpooled = gradient;
  if (dense_) {
    const MatrixRef<Real> hidden = narrow(hidden_BC_, samples, options_.channels);
    if (options_.activation)
      activation_backward<Real>(exec, *options_.activation, hidden, gradient,
                                narrow(activated_BC_, samples, options_.channels));
    else
      tanh_backward<Real>(exec, hidden, gradient);
    const Operand<Real> gradient_operand = w.products.gradient(exec, gradient);
    const MatrixRef<Real> input = norm_ ? narrow(normal_BC_, samples, options_.channels) : pooled;
    dense_->parameter_gradient(exec, w.products.input(exec, input), gradient_operand, accumulate,
                               w);
    dpooled = narrow(dropped_BC_, samples, options_.channels);
    dense_->input_gradient(exec, gradient_operand, dpooled, w);
  }
  if (norm_) {
    const NormStatistics<Real> statistics(statistics_, samples);
    norm_->parameter_gradient(exec, dpooled, pooled, statistics, accumulate, w);
    norm_->backward_in_place(exec, dpooled, pooled, statistics,
                             narrow(normal_BC_, samples, options_.channels));
  }
  const int rows = dx.extent_int(0) / samples;
  pool_rows_backward<Real>(exec, options_.pooling, rows, lengths_of(pass.batch, rows), dpooled, dx);
}

template <class Real>
VectorRef<const Real> ClassificationHead<Real>::logits(const ExecSpace& exec,
                                                       const Workspace<Real>& workspace,
                                                       const MatrixRef<Real>& x_1C) {
  const MatrixRef<Real> logits = narrow(logits_BV_, 1, options_.classes);
  output_.forward(exec, workspace.products.input(exec, hidden(exec, x_1C, workspace)), logits,
                  workspace);
  return VectorRef<const Real>(logits.data(), options_.classes);
}

template class ClassificationHead<float>;
template class ClassificationHead<double>;

}  // namespace deltapipe
