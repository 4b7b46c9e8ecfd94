// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/residual_block.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/base/parallel/profiling_region.hpp"

namespace deltapipe {

template <class Real>
ResidualBlock<Real>::ResidualBlock(ParameterArena<Real>& parameters, const std::string& prefix,
                                   const ResidualShape& shape, const BatchNormOptions& norm,
                                   int bucket) {
  if (shape.has_projection())
    projection_.emplace(parameters, prefix + "shortcut", shape.projection(), norm, bucket);
  for (const ConvolutionShape& convolution : shape.path())
    path_.emplace_back(parameters, fmt::format("{}layer.{}", prefix, path_.size()), convolution,
                       norm, bucket);
}

template <class Real>
BoundaryShape ResidualBlock<Real>::output_shape(const BoundaryShape& input) const {
  const ImageShape output = path_.back().shape().output();
  int stride = 1;
  for (const auto& convolution : path_) stride *= convolution.shape().stride;
  return {output.height * output.width, output.channels,
          input.grid.coarser(output.height, output.width, stride)};
}

template <class Real>
SavedTensors ResidualBlock<Real>::saved() const {
  SavedTensors saved;
  for (const auto& convolution : path_) convolution.add_saved(saved);
  if (projection_) projection_->add_saved(saved);
  return saved;
}

template <class Real>
void ResidualBlock<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  for (const auto& convolution : path_) convolution.require(capacity, size);
  if (projection_) projection_->require(capacity, size);
}

template <class Real>
MatrixRef<Real> ResidualBlock<Real>::activation(const BlockPass<Real>& pass,
                                                std::size_t convolution,
                                                const Vector<Real>& memory) const {
  const Matrix<Real>* const saved = saved_of(pass, convolution);
  const MatrixRef<Real> output = path_[convolution].output(pass, saved);
  const MatrixRef<Real> active = narrow(memory, output.extent_int(0), output.extent_int(1));
  norm_relu<Real>(pass.exec, output, path_[convolution].norm(saved), active);
  return active;
}

template <class Real>
typename ResidualBlock<Real>::Sum ResidualBlock<Real>::sum(const BlockPass<Real>& pass,
                                                           const MatrixRef<Real>& x) const {
  const std::size_t last = path_.size() - 1;
  const Matrix<Real>* const saved = saved_of(pass, last);
  Sum sum = {path_[last].output(pass, saved), path_[last].norm(saved), x, {}};
  if (projection_) {
    const Matrix<Real>* const projected = saved_of(pass, path_.size());
    sum.shortcut = projection_->output(pass, projected);
    sum.shortcut_norm = projection_->norm(projected);
  }
  return sum;
}

template <class Real>
void ResidualBlock<Real>::forward_saved(const BlockPass<Real>& pass,
                                        const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::ResidualBlock::forward");
  path_[0].forward(pass, x, saved_of(pass, 0));
  for (std::size_t i = 1; i < path_.size(); ++i)
    path_[i].forward(pass, activation(pass, i - 1, pass.workspace.images.a), saved_of(pass, i));
  if (projection_) projection_->forward(pass, x, saved_of(pass, path_.size()));
}

template <class Real>
void ResidualBlock<Real>::forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                         const MatrixRef<Real>& y) const {
  const ProfilingRegion region("deltapipe::ResidualBlock::forward");
  const Sum s = sum(pass, x);
  residual_relu<Real>(pass.exec, s.main, s.main_norm, s.shortcut, s.shortcut_norm, y);
  if (!pass.training) return;
  for (std::size_t i = 0; i < path_.size(); ++i)
    path_[i].update_statistics(pass, saved_of(pass, i));
  if (projection_) projection_->update_statistics(pass, saved_of(pass, path_.size()));
}

template <class Real>
void ResidualBlock<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                   const MatrixRef<Real>& gradient, bool accumulate) const {
  const ProfilingRegion region("deltapipe::ResidualBlock::backward");
  const Sum s = sum(pass, x);
  const MatrixRef<Real> dsum(gradient.data(), s.main.extent(0), s.main.extent(1));
  residual_relu_backward<Real>(pass.exec, s.main, s.main_norm, s.shortcut, s.shortcut_norm, dsum);

  // `doutput` is the gradient of a convolution's output; `other` is free for that of its input.
  Vector<Real> memory = pass.workspace.images.b, other = pass.workspace.images.a;
  const std::size_t last = path_.size() - 1;
  MatrixRef<Real> dy = dsum, doutput = narrow(memory, dsum.extent_int(0), dsum.extent_int(1));
  for (std::size_t i = last; i > 0; --i) {
    const MatrixRef<Real> input = activation(pass, i - 1, other);
    path_[i].backward_parameters(pass, input, saved_of(pass, i), dy, doutput, accumulate);
    path_[i].backward_input(pass, doutput, false, input);
    const Matrix<Real>* const before = saved_of(pass, i - 1);
    norm_relu_backward<Real>(pass.exec, path_[i - 1].output(pass, before),
                             path_[i - 1].norm(before), input);
    dy = doutput = input;
    std::swap(memory, other);
  }
  path_[0].backward_parameters(pass, x, saved_of(pass, 0), dy, doutput, accumulate);
  const MatrixRef<Real> dx(gradient.data(), x.extent(0), x.extent(1));
  if (!projection_) {
    path_[0].backward_input(pass, doutput, true, dx);
    return;
  }
  const MatrixRef<Real> dprojected = narrow(other, dsum.extent_int(0), dsum.extent_int(1));
  projection_->backward_parameters(pass, x, saved_of(pass, path_.size()), dsum, dprojected,
                                   accumulate);
  path_[0].backward_input(pass, doutput, false, dx);
  projection_->backward_input(pass, dprojected, true, dx);
}

template class ResidualBlock<float>;
template class ResidualBlock<double>;

}  // namespace deltapipe
