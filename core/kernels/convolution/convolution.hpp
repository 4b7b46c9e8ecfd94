// SPDX-License-Identifier: BSD-3-Clause
// Two-dimensional convolution without bias, as torch.nn.Conv2d has it, by oneDNN where processors
// compute in fp32; elsewhere products of the values under the kernel with the weights ("im2col").
// Rows of images are pixels, with a column for each channel.
#pragma once

#include <cstddef>

#include "core/base/error.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/kernels/convolution/convolution_shape.hpp"
#include "core/kernels/gemm/real_gemm.hpp"

namespace deltapipe {

/// Return the elements of the memory that a convolution of `images` images requires.
template <class Real>
std::size_t convolution_patch_elements(const ConvolutionShape& shape, int images);
template <class Real>
std::size_t convolution_weight_elements(const ConvolutionShape& shape);

/// Memory that convolutions share within a call.
template <class Real>
class ConvolutionWorkspace {
 public:
  ConvolutionWorkspace() = default;
  /// Allocates memory for the largest of several convolutions.
  ConvolutionWorkspace(const RealGemm& gemm, std::size_t patch_elements,
                       std::size_t weight_elements, const ViewAllocator& memory);

  const RealGemm& gemm() const { return gemm_; }
  MatrixRef<Real> patches_MF(const ConvolutionShape& shape, int images) const {
    return part(patches_, images * shape.output_rows(), shape.patch_values());
  }
  /// Returns an input's gradient that is added to another one. Shares memory with the patches.
  MatrixRef<Real> gradient_NC(const ConvolutionShape& shape, int images) const {
    return part(patches_, images * shape.input_rows(), shape.input.channels);
  }
  MatrixRef<Real> weight_OF(const ConvolutionShape& shape) const {
    return part(weight_, shape.outputs, shape.patch_values());
  }

 private:
  static MatrixRef<Real> part(const Vector<Real>& memory, int rows, int columns) {
    DELTAPIPE_ASSERT(static_cast<std::size_t>(rows) * columns <= memory.extent(0),
                     "a larger convolution than reserved");
    return MatrixRef<Real>(memory.data(), rows, columns);
  }

  RealGemm gemm_;
  Vector<Real> patches_, weight_;
};

/// y_NO = the convolution of images x_NC with weights [O, C, kernel, kernel].
template <class Real>
void convolution_forward(const ExecSpace& exec, const ConvolutionShape& shape,
                         const MatrixRef<const Real>& x_NC, const VectorRef<const Real>& weight,
                         const MatrixRef<Real>& y_NO, const ConvolutionWorkspace<Real>& workspace);

/// dx_NC from dy_NO, added to dx_NC if `add` is set.
template <class Real>
void convolution_input_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                                const MatrixRef<const Real>& dy_NO,
                                const VectorRef<const Real>& weight, bool add,
                                const MatrixRef<Real>& dx_NC,
                                const ConvolutionWorkspace<Real>& workspace);

/// The gradient of the weights, added to `gradient` if `accumulate` is set. Does nothing if
/// `gradient` is empty.
template <class Real>
void convolution_weight_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                                 const MatrixRef<const Real>& x_NC,
                                 const MatrixRef<const Real>& dy_NO, bool accumulate,
                                 const VectorRef<Real>& gradient,
                                 const ConvolutionWorkspace<Real>& workspace);

}  // namespace deltapipe
