// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/relative_embedding.hpp"

#include <vector>

#include "core/kernels/add_values.hpp"
#include "core/kernels/layers/layer_norm.hpp"
#include "core/kernels/layers/linear.hpp"
#include "models/blocks/narrow.hpp"

namespace deltapipe {

template <class Real>
RelativeEmbedding<Real>::RelativeEmbedding(ParameterArena<Real>& parameters,
                                           const RelativeEmbeddingNames& names,
                                           const RelativeBuckets& buckets, int channels,
                                           double epsilon, bool is_owner, int bucket)
    : parameters_(parameters),
      buckets_(buckets),
      epsilon_(static_cast<Real>(epsilon)),
      channels_(channels),
      bucket_(bucket) {
  const auto add = [&](const std::string& name, const std::vector<std::uint64_t>& shape) {
    trained_ = trained_ || !parameters.frozen().contains(name);
    return is_owner ? parameters.add(name, shape, shape.size() > 1, bucket)
                    : parameters.add_renewed_copy(name, shape, bucket);
  };
  const auto C = static_cast<std::uint64_t>(channels);
  table_ = add(names.table + ".weight", {static_cast<std::uint64_t>(buckets.rows()), C});
  if (names.norm.empty()) return;
  norm_weight_ = add(names.norm + ".weight", {C});
  norm_bias_ = add(names.norm + ".bias", {C});
}

template <class Real>
void RelativeEmbedding<Real>::forward(const ExecSpace& exec, const RelativeRows& rows,
                                      const Dropout& dropout,
                                      const RelativeWorkspace<Real>& workspace,
                                      const MatrixRef<Real>& y_PC) const {
  const MatrixRef<const Real> table =
      rows_of<const Real>(parameters_.matrix(table_), rows.first, rows.count);
  if (norm_weight_ >= 0)
    layer_norm_forward<Real>(
        exec, table, parameters_.value(norm_weight_), parameters_.value(norm_bias_), epsilon_, y_PC,
        head_of(workspace.mean_P, rows.count), head_of(workspace.rstd_P, rows.count));
  else
    Kokkos::deep_copy(exec, y_PC, table);
  if (dropout.probability > 0) apply_dropout<Real>(exec, dropout, y_PC, y_PC);
}

template <class Real>
MatrixRef<Real> RelativeEmbedding<Real>::block_gradient(int block) const {
  return rows_of<Real>(gradients_, block * reached_.count, reached_.count);
}

template <class Real>
void RelativeEmbedding<Real>::add_gradient(const ExecSpace& exec, int block,
                                           const RelativeRows& rows, const MatrixRef<Real>& d_PC,
                                           bool accumulate) const {
  const MatrixRef<Real> all = block_gradient(block);
  const MatrixRef<Real> reached = rows_of<Real>(all, rows.first - reached_.first, rows.count);
  if (accumulate)
    return add_values<Real>("deltapipe::RelativeEmbedding::addGradient", exec, elements_of(d_PC),
                            elements_of(reached));
  if (rows.count < reached_.count) Kokkos::deep_copy(exec, all, Real(0));
  Kokkos::deep_copy(exec, reached, d_PC);
}

template <class Real>
BoundaryShape RelativeEmbedding<Real>::gradient_shape(int tokens) const {
  return {RelativeRows::of(buckets_, tokens).count, channels_};
}

template <class Real>
BoundaryShape RelativeEmbedding<Real>::value_shape() const {
  return {buckets_.rows() + (norm_weight_ >= 0 ? 2 : 0), channels_};
}

template <class Real>
void RelativeEmbedding<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  if (!capacity.training) return;
  const auto matrix = [&](const char* label, int rows) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::embeddings, label, rows, channels_);
  };
  const auto vector = [&](const char* label, int rows) {
    return memory.uninitialized<Vector<Real>>(MemoryUse::embeddings, label, rows);
  };
  reached_ = RelativeRows::of(buckets_, capacity.tokens);
  gradients_ = matrix("deltapipe::RelativeEmbedding::gradients", blocks_ * reached_.count);
  sum_PC_ = matrix("deltapipe::RelativeEmbedding::sum", reached_.count);
  values_ = matrix("deltapipe::RelativeEmbedding::values", value_shape().tokens);
  mean_P_ = vector("deltapipe::RelativeEmbedding::mean", reached_.count);
  rstd_P_ = vector("deltapipe::RelativeEmbedding::rstd", reached_.count);
}

template <class Real>
void RelativeEmbedding<Real>::add_gradients(const ExecSpace& exec, bool begin) const {
  if (begin) Kokkos::deep_copy(exec, sum_PC_, Real(0));
  for (int block = blocks_ - 1; block >= 0; --block)
    add_values<Real>("deltapipe::RelativeEmbedding::addBlock", exec,
                     elements_of(block_gradient(block)), elements_of(gradient_sum()));
}

template <class Real>
void RelativeEmbedding<Real>::finish_gradients(const ExecSpace& exec) const {
  const MatrixRef<Real> sum = gradient_sum();
  const MatrixRef<Real> table =
      rows_of<Real>(parameters_.matrix(table_), reached_.first, reached_.count);
  if (norm_weight_ >= 0) {
    const VectorRef<Real> weight = parameters_.value(norm_weight_);
    const VectorRef<Real> bias = parameters_.value(norm_bias_);
    const MatrixRef<Real> y = rows_of<Real>(values_, 0, reached_.count);
    layer_norm_forward<Real>(exec, table, weight, bias, epsilon_, y, mean_P_, rstd_P_);
    layer_norm_parameter_gradient<Real>(exec, sum, table, mean_P_, rstd_P_, false,
                                        parameters_.gradient(norm_weight_),
                                        parameters_.gradient(norm_bias_));
    layer_norm_backward<Real, Real, false>(exec, sum, table, weight, bias, mean_P_, rstd_P_, sum,
                                           y);
  }
  const MatrixRef<Real> gradient = parameters_.gradient_matrix(table_);
  if (gradient.size() == 0) return;
  Kokkos::deep_copy(exec, gradient, Real(0));
  Kokkos::deep_copy(exec, rows_of<Real>(gradient, reached_.first, reached_.count), sum);
}

template <class Real>
template <class F>
void RelativeEmbedding<Real>::for_values(const F& f) const {
  const int rows = buckets_.rows();
  f(elements_of(rows_of<Real>(values_, 0, rows)), parameters_.value(table_));
  if (norm_weight_ < 0) return;
  f(elements_of(rows_of<Real>(values_, rows, 1)), parameters_.value(norm_weight_));
  f(elements_of(rows_of<Real>(values_, rows + 1, 1)), parameters_.value(norm_bias_));
}

template <class Real>
void RelativeEmbedding<Real>::pack_values(const ExecSpace& exec) const {
  for_values([&](const VectorRef<Real>& packed, const VectorRef<Real>& value) {
    Kokkos::deep_copy(exec, packed, value);
  });
}

template <class Real>
void RelativeEmbedding<Real>::unpack_values(const ExecSpace& exec) const {
  for_values([&](const VectorRef<Real>& packed, const VectorRef<Real>& value) {
    Kokkos::deep_copy(exec, value, packed);
  });
}

template class RelativeEmbedding<float>;
template class RelativeEmbedding<double>;

}  // namespace deltapipe
