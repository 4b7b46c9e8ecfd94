// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/convolution/convolution.hpp"

#include <algorithm>
#include <type_traits>

#include "core/base/parallel/kernel.hpp"
#include "core/kernels/add_values.hpp"
#include "core/kernels/convolution/im2col.hpp"
#include "core/kernels/convolution/onednn_convolution.hpp"

namespace deltapipe {

namespace {

/// Elements of the patches in memory at a time. On processors they stay in a core's caches.
constexpr std::size_t kPatchElements = kHostExecution ? std::size_t{1} << 18 : std::size_t{1} << 26;

/// Returns the number of images whose patches are in memory at a time.
int images_at_once(const ConvolutionShape& shape, int images) {
  if (shape.is_pointwise()) return std::max(1, images);
  const std::size_t elements = static_cast<std::size_t>(shape.output_rows()) * shape.patch_values();
  return std::clamp(static_cast<int>(kPatchElements / elements), 1, std::max(1, images));
}

/// Calls body(first, count) for all images, as many at a time as images_at_once() returns.
template <class Body>
void for_images(const ConvolutionShape& shape, int images, const Body& body) {
  const int most = images_at_once(shape, images);
  for (int first = 0; first < images; first += most) body(first, std::min(most, images - first));
}

/// Returns the number of images in the rows of an input.
template <class Matrix>
int images_of(const ConvolutionShape& shape, const Matrix& x_NC) {
  DELTAPIPE_ASSERT(
      x_NC.extent_int(0) % shape.input_rows() == 0 && x_NC.extent_int(1) == shape.input.channels,
      "rows are not images of " + text_of(shape.input));
  return x_NC.extent_int(0) / shape.input_rows();
}

template <class Real>
MatrixRef<Real> input_rows(const ConvolutionShape& shape, const MatrixRef<Real>& x, int first,
                           int count) {
  return rows_of<Real>(x, static_cast<std::size_t>(first) * shape.input_rows(),
                       static_cast<std::size_t>(count) * shape.input_rows());
}

template <class Real>
MatrixRef<Real> output_rows(const ConvolutionShape& shape, const MatrixRef<Real>& y, int first,
                            int count) {
  return rows_of<Real>(y, static_cast<std::size_t>(first) * shape.output_rows(),
                       static_cast<std::size_t>(count) * shape.output_rows());
}

/// Returns the values under the kernel for images [first, first + count).
template <class T, class Real>
MatrixRef<const T> patches(const ExecSpace& exec, const ConvolutionShape& shape,
                           const MatrixRef<const T>& x_NC, int first, int count,
                           const ConvolutionWorkspace<Real>& workspace) {
  const MatrixRef<const T> images = input_rows<const T>(shape, x_NC, first, count);
  if (shape.is_pointwise()) return images;
  const MatrixRef<T> made = workspace.template patches_MF<T>(shape, count);
  im2col<T>(exec, shape, images, made);
  return made;
}

/// Returns the weights as a matrix of T whose rows are in the order of patches.
template <class T, class Real>
MatrixRef<const T> weight_rows(const ExecSpace& exec, const ConvolutionShape& shape,
                               const VectorRef<const Real>& weight,
                               const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<T, Real>)
    if (shape.kernel == 1)
      return MatrixRef<const T>(weight.data(), shape.outputs, shape.patch_values());
  const MatrixRef<T> made = workspace.template weight_OF<T>(shape);
  pixel_major_weight<Real>(exec, shape, weight, made);
  return made;
}

// The following functions multiply values of T: Real, or Bf16 where Real is float.

template <class T, class Real>
void forward(const ExecSpace& exec, const ConvolutionShape& shape, const MatrixRef<const T>& x_NC,
             const VectorRef<const Real>& weight, const MatrixRef<Real>& y_NO,
             const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<Real, float>)
    if (workspace.uses_onednn()) {
      as_kernel("deltapipe::Convolution::forward", exec, [&] {
        onednn::convolve(shape, images_of(shape, x_NC), x_NC.data(), weight.data(), y_NO.data());
      });
      return;
    }
  const MatrixRef<const T> w_OF = weight_rows<T>(exec, shape, weight, workspace);
  for_images(shape, images_of(shape, x_NC), [&](int first, int count) {
    workspace.multiply(exec, Transpose::no, Transpose::yes,
                       patches(exec, shape, x_NC, first, count, workspace), w_OF, Real(0),
                       output_rows<Real>(shape, y_NO, first, count));
  });
}

template <class T, class Real>
void input_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                    const MatrixRef<const T>& dy_NO, const VectorRef<const Real>& weight, bool add,
                    const MatrixRef<Real>& dx_NC, const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<Real, float>)
    if (workspace.uses_onednn()) {
      const VectorRef<float> all(dx_NC.data(), dx_NC.size());
      const int images = images_of(shape, dx_NC);
      const VectorRef<float> made =
          add ? VectorRef<float>(workspace.gradient_NC(shape, images).data(), dx_NC.size()) : all;
      as_kernel("deltapipe::Convolution::inputGradient", exec, [&] {
        onednn::convolve_back(shape, images, dy_NO.data(), weight.data(), made.data());
      });
      if (add) add_values<float>("deltapipe::Convolution::add", exec, made, all);
      return;
    }
  const MatrixRef<const T> w_OF = weight_rows<T>(exec, shape, weight, workspace);
  for_images(shape, images_of(shape, dx_NC), [&](int first, int count) {
    const MatrixRef<const T> dy = output_rows<const T>(shape, dy_NO, first, count);
    const MatrixRef<Real> dx = input_rows<Real>(shape, dx_NC, first, count);
    if (shape.is_pointwise()) {
      workspace.multiply(exec, Transpose::no, Transpose::no, dy, w_OF, Real(add ? 1 : 0), dx);
      return;
    }
    const MatrixRef<Real> dpatches = workspace.template patches_MF<Real>(shape, count);
    workspace.multiply(exec, Transpose::no, Transpose::no, dy, w_OF, Real(0), dpatches);
    col2im<Real>(exec, shape, dpatches, add, dx);
  });
}

template <class T, class Real>
void weight_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                     const MatrixRef<const T>& x_NC, const MatrixRef<const T>& dy_NO,
                     bool accumulate, const VectorRef<Real>& gradient,
                     const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<Real, float>)
    if (workspace.uses_onednn()) {
      const VectorRef<float> made =
          accumulate ? VectorRef<float>(workspace.template weight_OF<Real>(shape).data(),
                                        gradient.extent(0))
                     : gradient;
      as_kernel("deltapipe::Convolution::weightGradient", exec, [&] {
        onednn::convolve_weights(shape, images_of(shape, x_NC), x_NC.data(), dy_NO.data(),
                                 made.data());
      });
      if (accumulate) add_values<float>("deltapipe::Convolution::add", exec, made, gradient);
      return;
    }
  const bool is_separate = shape.kernel > 1;
  const MatrixRef<Real> dw_OF =
      is_separate ? workspace.template weight_OF<Real>(shape)
                  : MatrixRef<Real>(gradient.data(), shape.outputs, shape.patch_values());
  bool adds = accumulate && !is_separate;
  for_images(shape, images_of(shape, x_NC), [&](int first, int count) {
    workspace.multiply(
        exec, Transpose::yes, Transpose::no, output_rows<const T>(shape, dy_NO, first, count),
        patches(exec, shape, x_NC, first, count, workspace), Real(adds ? 1 : 0), dw_OF);
    adds = true;
  });
  if (is_separate) channel_major_gradient<Real>(exec, shape, dw_OF, accumulate, gradient);
}

/// Rounds a matrix without gaps between its rows.
MatrixRef<const Bf16> rounded(const ExecSpace& exec, const MatrixRef<const float>& x,
                              const Vector<Bf16>& memory) {
  DELTAPIPE_ASSERT(x.size() <= memory.extent(0), "a larger convolution than reserved");
  const MatrixRef<Bf16> made(memory.data(), x.extent(0), x.extent(1));
  round_to_bf16(exec, x, made);
  return made;
}

}  // namespace

void ConvolutionCapacity::raise(const ConvolutionShape& shape, int images) {
  inputs = std::max(inputs, images * shape.input.values());
  outputs = std::max(outputs, images * shape.output().values());
  weights = std::max(weights, static_cast<std::size_t>(shape.outputs) * shape.patch_values());
  if (!shape.is_pointwise())
    patches = std::max(patches, static_cast<std::size_t>(images_at_once(shape, images)) *
                                    shape.output_rows() * shape.patch_values());
}

template <class Real>
ConvolutionWorkspace<Real>::ConvolutionWorkspace(const RealGemm& gemm,
                                                 const ConvolutionCapacity& capacity, bool training,
                                                 const ViewAllocator& memory)
    : uses_onednn_(std::is_same_v<Real, float> && onednn::has_convolutions()), gemm_(gemm) {
  if (training || !uses_onednn_) reserve(capacity, memory);
}

template <class Real>
ConvolutionWorkspace<Real>::ConvolutionWorkspace(const ConvolutionCapacity& capacity, bool training,
                                                 const ViewAllocator& memory, bool emulated)
    : rounds_(true), uses_onednn_(!emulated && onednn::has_convolutions()) {
  if (training) reserve(capacity, memory);
  const auto rounded = [&](const char* label, std::size_t elements) {
    return memory.uninitialized<Vector<Bf16>>(MemoryUse::workspace, label, elements);
  };
  input_ = rounded("deltapipe::Convolution::roundedInput", capacity.inputs);
  if (training) gradient_ = rounded("deltapipe::Convolution::roundedGradient", capacity.outputs);
  if (uses_onednn_) return;
  gemm_bf16_ = Bf16Gemm(memory, emulated);
  patches_.rounded = rounded("deltapipe::Convolution::roundedPatches", capacity.patches);
  weight_.rounded = rounded("deltapipe::Convolution::roundedWeight", capacity.weights);
}

template <class Real>
void ConvolutionWorkspace<Real>::reserve(const ConvolutionCapacity& capacity,
                                         const ViewAllocator& memory) {
  const std::size_t patches = uses_onednn_ ? capacity.inputs : capacity.patches;
  patches_.real = memory.uninitialized<Vector<Real>>(MemoryUse::workspace,
                                                     "deltapipe::Convolution::patches", patches);
  weight_.real = memory.uninitialized<Vector<Real>>(
      MemoryUse::workspace, "deltapipe::Convolution::weight", capacity.weights);
}

template <class Real>
MatrixRef<const Bf16> ConvolutionWorkspace<Real>::round_input(
    const ExecSpace& exec, const MatrixRef<const float>& x_NC) const {
  return rounded(exec, x_NC, input_);
}

template <class Real>
MatrixRef<const Bf16> ConvolutionWorkspace<Real>::round_gradient(
    const ExecSpace& exec, const MatrixRef<const float>& dy_NO) const {
  return rounded(exec, dy_NO, gradient_);
}

template <class Real>
void convolution_forward(const ExecSpace& exec, const ConvolutionShape& shape,
                         const MatrixRef<const Real>& x_NC, const VectorRef<const Real>& weight,
                         const MatrixRef<Real>& y_NO, const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<Real, float>)
    if (workspace.rounds())
      return forward(exec, shape, workspace.round_input(exec, x_NC), weight, y_NO, workspace);
  forward(exec, shape, x_NC, weight, y_NO, workspace);
}

template <class Real>
void convolution_input_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                                const MatrixRef<const Real>& dy_NO,
                                const VectorRef<const Real>& weight, bool add,
                                const MatrixRef<Real>& dx_NC,
                                const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<Real, float>)
    if (workspace.rounds())
      return input_gradient(exec, shape, workspace.round_gradient(exec, dy_NO), weight, add, dx_NC,
                            workspace);
  input_gradient(exec, shape, dy_NO, weight, add, dx_NC, workspace);
}

template <class Real>
void convolution_weight_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                                 const MatrixRef<const Real>& x_NC,
                                 const MatrixRef<const Real>& dy_NO, bool accumulate,
                                 const VectorRef<Real>& gradient,
                                 const ConvolutionWorkspace<Real>& workspace) {
  if (gradient.extent(0) == 0) return;
  if constexpr (std::is_same_v<Real, float>)
    if (workspace.rounds())
      return weight_gradient(exec, shape, workspace.round_input(exec, x_NC),
                             workspace.round_gradient(exec, dy_NO), accumulate, gradient,
                             workspace);
  weight_gradient(exec, shape, x_NC, dy_NO, accumulate, gradient, workspace);
}

#define DELTAPIPE_INSTANTIATE(Real)                                                             \
  template class ConvolutionWorkspace<Real>;                                                    \
  template void convolution_forward<Real>(                                                      \
      const ExecSpace&, const ConvolutionShape&, const MatrixRef<const Real>&,                  \
      const VectorRef<const Real>&, const MatrixRef<Real>&, const ConvolutionWorkspace<Real>&); \
  template void convolution_input_gradient<Real>(                                               \
      const ExecSpace&, const ConvolutionShape&, const MatrixRef<const Real>&,                  \
      const VectorRef<const Real>&, bool, const MatrixRef<Real>&,                               \
      const ConvolutionWorkspace<Real>&);                                                       \
  template void convolution_weight_gradient<Real>(                                              \
      const ExecSpace&, const ConvolutionShape&, const MatrixRef<const Real>&,                  \
      const MatrixRef<const Real>&, bool, const VectorRef<Real>&,                               \
      const ConvolutionWorkspace<Real>&)

DELTAPIPE_INSTANTIATE(float);
DELTAPIPE_INSTANTIATE(double);

#undef DELTAPIPE_INSTANTIATE

}  // namespace deltapipe
