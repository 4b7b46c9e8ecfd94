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

template <class Real>
bool uses_onednn() {
  return std::is_same_v<Real, float> && onednn::has_convolutions();
}

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
template <class Real>
MatrixRef<const Real> patches(const ExecSpace& exec, const ConvolutionShape& shape,
                              const MatrixRef<const Real>& x_NC, int first, int count,
                              const ConvolutionWorkspace<Real>& workspace) {
  const MatrixRef<const Real> images = input_rows<const Real>(shape, x_NC, first, count);
  if (shape.is_pointwise()) return images;
  const MatrixRef<Real> made = workspace.patches_MF(shape, count);
  im2col<Real>(exec, shape, images, made);
  return made;
}

/// Returns the weights as a matrix whose rows are in the order of patches.
template <class Real>
MatrixRef<const Real> weight_rows(const ExecSpace& exec, const ConvolutionShape& shape,
                                  const VectorRef<const Real>& weight,
                                  const ConvolutionWorkspace<Real>& workspace) {
  if (shape.kernel == 1)
    return MatrixRef<const Real>(weight.data(), shape.outputs, shape.patch_values());
  const MatrixRef<Real> made = workspace.weight_OF(shape);
  pixel_major_weight<Real>(exec, shape, weight, made);
  return made;
}

}  // namespace

template <class Real>
std::size_t convolution_patch_elements(const ConvolutionShape& shape, int images) {
  if (uses_onednn<Real>()) return images * shape.input.values();  // a gradient that is added
  if (shape.is_pointwise()) return 0;
  return static_cast<std::size_t>(images_at_once(shape, images)) * shape.output_rows() *
         shape.patch_values();
}

template <class Real>
std::size_t convolution_weight_elements(const ConvolutionShape& shape) {
  return shape.kernel == 1 && !uses_onednn<Real>()
             ? 0
             : static_cast<std::size_t>(shape.outputs) * shape.patch_values();
}

template <class Real>
ConvolutionWorkspace<Real>::ConvolutionWorkspace(const RealGemm& gemm, std::size_t patch_elements,
                                                 std::size_t weight_elements,
                                                 const ViewAllocator& memory)
    : gemm_(gemm),
      patches_(memory.uninitialized<Vector<Real>>(
          MemoryUse::workspace, "deltapipe::Convolution::patches", patch_elements)),
      weight_(memory.uninitialized<Vector<Real>>(
          MemoryUse::workspace, "deltapipe::Convolution::weight", weight_elements)) {}

template <class Real>
void convolution_forward(const ExecSpace& exec, const ConvolutionShape& shape,
                         const MatrixRef<const Real>& x_NC, const VectorRef<const Real>& weight,
                         const MatrixRef<Real>& y_NO, const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<Real, float>)
    if (onednn::has_convolutions()) {
      as_kernel("deltapipe::Convolution::forward", exec, [&] {
        onednn::convolve(shape, images_of(shape, x_NC), x_NC.data(), weight.data(), y_NO.data());
      });
      return;
    }
  const MatrixRef<const Real> w_OF = weight_rows(exec, shape, weight, workspace);
  for_images(shape, images_of(shape, x_NC), [&](int first, int count) {
    workspace.gemm()(exec, Transpose::no, Transpose::yes,
                     patches(exec, shape, x_NC, first, count, workspace), w_OF, Real(0),
                     output_rows<Real>(shape, y_NO, first, count));
  });
}

template <class Real>
void convolution_input_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                                const MatrixRef<const Real>& dy_NO,
                                const VectorRef<const Real>& weight, bool add,
                                const MatrixRef<Real>& dx_NC,
                                const ConvolutionWorkspace<Real>& workspace) {
  if constexpr (std::is_same_v<Real, float>)
    if (onednn::has_convolutions()) {
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
  const MatrixRef<const Real> w_OF = weight_rows(exec, shape, weight, workspace);
  for_images(shape, images_of(shape, dx_NC), [&](int first, int count) {
    const MatrixRef<const Real> dy = output_rows<const Real>(shape, dy_NO, first, count);
    const MatrixRef<Real> dx = input_rows<Real>(shape, dx_NC, first, count);
    if (shape.is_pointwise()) {
      workspace.gemm()(exec, Transpose::no, Transpose::no, dy, w_OF, Real(add ? 1 : 0), dx);
      return;
    }
    const MatrixRef<Real> dpatches = workspace.patches_MF(shape, count);
    workspace.gemm()(exec, Transpose::no, Transpose::no, dy, w_OF, Real(0), dpatches);
    col2im<Real>(exec, shape, dpatches, add, dx);
  });
}

template <class Real>
void convolution_weight_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                                 const MatrixRef<const Real>& x_NC,
                                 const MatrixRef<const Real>& dy_NO, bool accumulate,
                                 const VectorRef<Real>& gradient,
                                 const ConvolutionWorkspace<Real>& workspace) {
  if (gradient.extent(0) == 0) return;
  if constexpr (std::is_same_v<Real, float>)
    if (onednn::has_convolutions()) {
      const VectorRef<float> made =
          accumulate ? VectorRef<float>(workspace.weight_OF(shape).data(), gradient.extent(0))
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
      is_separate ? workspace.weight_OF(shape)
                  : MatrixRef<Real>(gradient.data(), shape.outputs, shape.patch_values());
  bool adds = accumulate && !is_separate;
  for_images(shape, images_of(shape, x_NC), [&](int first, int count) {
    workspace.gemm()(
        exec, Transpose::yes, Transpose::no, output_rows<const Real>(shape, dy_NO, first, count),
        patches(exec, shape, x_NC, first, count, workspace), Real(adds ? 1 : 0), dw_OF);
    adds = true;
  });
  if (is_separate) channel_major_gradient<Real>(exec, shape, dw_OF, accumulate, gradient);
}

#define DELTAPIPE_INSTANTIATE(Real)                                                             \
  template std::size_t convolution_patch_elements<Real>(const ConvolutionShape&, int);          \
  template std::size_t convolution_weight_elements<Real>(const ConvolutionShape&);              \
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
