// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/convolution_stem.hpp"

#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/layers/max_pool.hpp"
#include "core/kernels/layers/pooling.hpp"

namespace deltapipe {

template <class Real>
void PixelInput<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::PixelInput::forward");
  values_of_rows<Real>(pass.exec, pass.batch.fields.reals(Field::values), x);
}

template <class Real>
BoundaryShape ConvolutionStem<Real>::output_shape(const BoundaryShape& input) const {
  const ConvolutionShape& shape = convolution_.shape();
  const ImageShape output = pools_ ? pooling_after(shape).output() : shape.output();
  const int stride = shape.stride * (pools_ ? pooling_after(shape).stride : 1);
  return {output.height * output.width, output.channels,
          input.grid.coarser(output.height, output.width, stride)};
}

template <class Real>
SavedTensors ConvolutionStem<Real>::saved() const {
  SavedTensors saved;
  convolution_.add_saved(saved);
  return saved;
}

template <class Real>
void ConvolutionStem<Real>::forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>&,
                                           const MatrixRef<Real>& y) const {
  const ProfilingRegion region("deltapipe::ConvolutionStem::forward");
  const MatrixRef<Real> output = convolution_.output(pass, pass.saved);
  const ColumnNorm<Real> norm = convolution_.norm(pass.saved);
  if (pools_) {
    const MatrixRef<Real> active =
        narrow(pass.workspace.images.a, output.extent_int(0), output.extent_int(1));
    norm_relu<Real>(pass.exec, output, norm, active);
    max_pool<Real>(pass.exec, pooling_after(convolution_.shape()), active, y);
  } else {
    norm_relu<Real>(pass.exec, output, norm, y);
  }
  if (pass.training) convolution_.update_statistics(pass, pass.saved);
}

template <class Real>
void ConvolutionStem<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                     const MatrixRef<Real>& gradient, bool accumulate) const {
  const ProfilingRegion region("deltapipe::ConvolutionStem::backward");
  const ConvolutionShape& shape = convolution_.shape();
  const MatrixRef<Real> output = convolution_.output(pass, pass.saved);
  const ColumnNorm<Real> norm = convolution_.norm(pass.saved);
  MatrixRef<Real> dy(gradient.data(), output.extent(0), output.extent(1));
  if (pools_) {
    const auto rows_in = [&](const Vector<Real>& memory) {
      return narrow(memory, output.extent_int(0), output.extent_int(1));
    };
    const MatrixRef<Real> active = rows_in(pass.workspace.images.a);
    norm_relu<Real>(pass.exec, output, norm, active);
    const int places = pass.batch.samples * pooling_after(shape).output_rows();
    dy = rows_in(pass.workspace.images.b);
    max_pool_backward<Real>(pass.exec, pooling_after(shape), active,
                            MatrixRef<const Real>(gradient.data(), places, shape.outputs), dy);
  }
  norm_relu_backward<Real>(pass.exec, output, norm, dy);
  convolution_.backward_parameters(pass, x, pass.saved, dy, dy, accumulate);
}

template class PixelInput<float>;
template class PixelInput<double>;
template class ConvolutionStem<float>;
template class ConvolutionStem<double>;

}  // namespace deltapipe
