// SPDX-License-Identifier: BSD-3-Clause
// Two-dimensional convolution without bias, as torch.nn.Conv2d has it, by oneDNN on processors;
// elsewhere products of the values under the kernel with the weights ("im2col"). Products may be
// those of bf16, which are added in fp32. Rows of images are pixels, with a column for each
// channel.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/kernels/convolution/convolution_shape.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "core/kernels/gemm/real_gemm.hpp"

namespace deltapipe {

/// Largest sizes of several convolutions, in elements.
struct ConvolutionCapacity {
  std::size_t inputs = 0, outputs = 0;  ///< of all images
  std::size_t patches = 0;              ///< of the images that are in memory at a time
  std::size_t weights = 0;

  /// Raises the sizes to those of a convolution of `images` images.
  void raise(const ConvolutionShape& shape, int images);
};

/// Memory that convolutions share within a call.
template <class Real>
class ConvolutionWorkspace {
 public:
  ConvolutionWorkspace() = default;
  ConvolutionWorkspace(const RealGemm& gemm, const ConvolutionCapacity& capacity, bool training,
                       const ViewAllocator& memory);
  /// Products of bf16 if Real is float. `emulated`: see Bf16Gemm.
  ConvolutionWorkspace(const ConvolutionCapacity& capacity, bool training,
                       const ViewAllocator& memory, bool emulated = !has_fast_bf16_gemm());

  bool rounds() const { return rounds_; }
  bool uses_onednn() const { return uses_onednn_; }

  /// Return the operands of products of bf16; valid until the next call.
  MatrixRef<const Bf16> round_input(const ExecSpace& exec,
                                    const MatrixRef<const float>& x_NC) const;
  MatrixRef<const Bf16> round_gradient(const ExecSpace& exec,
                                       const MatrixRef<const float>& dy_NO) const;

  /// c = op(a) * op(b) + beta * c.
  void multiply(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                const MatrixRef<const Real>& a, const MatrixRef<const Real>& b, Real beta,
                const MatrixRef<Real>& c) const {
    gemm_(exec, op_a, op_b, a, b, beta, c);
  }
  void multiply(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                const MatrixRef<const Bf16>& a, const MatrixRef<const Bf16>& b, float beta,
                const MatrixRef<float>& c) const {
    gemm_bf16_(exec, op_a, op_b, a, b, beta, c);
  }

  /// T: Real or Bf16.
  template <class T>
  MatrixRef<T> patches_MF(const ConvolutionShape& shape, int images) const {
    return part(patches_.template of<T>(), images * shape.output_rows(), shape.patch_values());
  }
  template <class T>
  MatrixRef<T> weight_OF(const ConvolutionShape& shape) const {
    return part(weight_.template of<T>(), shape.outputs, shape.patch_values());
  }
  /// Returns an input's gradient that is added to another one. Shares memory with the patches.
  MatrixRef<Real> gradient_NC(const ConvolutionShape& shape, int images) const {
    return part(patches_.real, images * shape.input_rows(), shape.input.channels);
  }

 private:
  struct Memory {
    Vector<Real> real;
    Vector<Bf16> rounded;

    template <class T>
    const Vector<T>& of() const {
      if constexpr (std::is_same_v<T, Real>)
        return real;
      else
        return rounded;
    }
  };
  template <class T>
  static MatrixRef<T> part(const Vector<T>& memory, int rows, int columns) {
    DELTAPIPE_ASSERT(static_cast<std::size_t>(rows) * columns <= memory.extent(0),
                     "a larger convolution than reserved");
    return MatrixRef<T>(memory.data(), rows, columns);
  }

  /// Allocates what gradients and, without rounding, outputs require.
  void reserve(const ConvolutionCapacity& capacity, const ViewAllocator& memory);

  bool rounds_ = false, uses_onednn_ = false;
  RealGemm gemm_;
  Bf16Gemm gemm_bf16_;
  Memory patches_, weight_;
  Vector<Bf16> input_, gradient_;
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
