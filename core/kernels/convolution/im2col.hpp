// SPDX-License-Identifier: BSD-3-Clause
// Images as matrices of the values under a convolution's kernel ("im2col"), and back. Rows of
// images are pixels from the top left, with a column for each channel. A row of patches_MF has the
// values under the kernel at one place of the output: kernel row by kernel row, pixel by pixel,
// channel by channel.
#pragma once

#include <cstddef>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/kernels/convolution/windows.hpp"

namespace deltapipe {

namespace im2col_kernels {

struct Geometry : Windows {
  using Windows::Windows;

  /// Copies the values under the kernel at one place of an image's output.
  template <class Real, class Member>
  KOKKOS_FORCEINLINE_FUNCTION void copy_patch(const Member& team, const Real* image, int place,
                                              Real* patch) const {
    const int top = place / across * stride - padding, left = place % across * stride - padding;
    const int row = kernel * channels;  // values in a row of the kernel
    if constexpr (kHostExecution) {
      // A row of the kernel is contiguous in the image except where it is padding.
      const int first = (left < 0 ? -left : 0) * channels;
      const int end = left + kernel > width ? (width - left) * channels : row;
      for (int k = 0; k < kernel; ++k) {
        Real* const to = patch + k * row;
        const int y = top + k;
        const bool is_inside = y >= 0 && y < height && first < end;
        const int begin = is_inside ? first : row, stop = is_inside ? end : row;
        const std::ptrdiff_t pixel = static_cast<std::ptrdiff_t>(y) * width + left;
        for (int i = 0; i < begin; ++i) to[i] = 0;
        DELTAPIPE_INDEPENDENT_ITERATIONS
        for (int i = begin; i < stop; ++i) to[i] = image[pixel * channels + i];
        for (int i = stop; i < row; ++i) to[i] = 0;
      }
    } else {
      row_for(team, kernel * row, [&](int f) {
        const int y = top + f / row, x = left + f % row / channels;
        const bool is_inside = y >= 0 && y < height && x >= 0 && x < width;
        const std::size_t pixel = static_cast<std::size_t>(y) * width + x;
        patch[f] = is_inside ? image[pixel * channels + f % channels] : Real(0);
      });
    }
  }

  /// Sums the gradients of a pixel over the places whose kernel covers it. `patches` are those of
  /// the pixel's image.
  template <class Real, class Member>
  KOKKOS_FORCEINLINE_FUNCTION void sum_gradients(const Member& team, const Real* patches, int pixel,
                                                 bool add, Real* dx) const {
    const int y = pixel / width + padding, x = pixel % width + padding;
    const WindowRange at = covering(y, x);
    const std::size_t values = static_cast<std::size_t>(kernel) * kernel * channels;
    const auto gradients = [&](int i, int j) {
      return patches + (static_cast<std::size_t>(i) * across + j) * values +
             ((y - i * stride) * kernel + x - j * stride) * channels;
    };
    if constexpr (kHostExecution) {
      if (!add) row_for(team, channels, [&](int c) { dx[c] = 0; });
      for (int i = at.top; i <= at.bottom; ++i)
        for (int j = at.left; j <= at.right; ++j) {
          const Real* const from = gradients(i, j);
          row_for(team, channels, [&](int c) { dx[c] += from[c]; });
        }
    } else {
      row_for(team, channels, [&](int c) {
        Real sum = add ? dx[c] : Real(0);
        for (int i = at.top; i <= at.bottom; ++i)
          for (int j = at.left; j <= at.right; ++j) sum += gradients(i, j)[c];
        dx[c] = sum;
      });
    }
  }
};

}  // namespace im2col_kernels

/// patches_MF from images x_NC; M is the number of images times shape.output_rows().
template <class Real>
void im2col(const ExecSpace& exec, const ConvolutionShape& shape, const MatrixRef<const Real>& x_NC,
            const MatrixRef<Real>& patches_MF) {
  const im2col_kernels::Geometry geometry(shape);
  const int places = shape.output_rows();
  const std::size_t values = shape.input.values();
  for_rows(
      "deltapipe::Convolution::patches", row_policy(exec, patches_MF.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int m = team.league_rank();
        geometry.copy_patch(team, x_NC.data() + m / places * values, m % places, &patches_MF(m, 0));
      });
}

/// dx_NC = the sum of the gradients of each value's places in dpatches_MF, added to dx_NC if `add`
/// is set. The sum has one order.
template <class Real>
void col2im(const ExecSpace& exec, const ConvolutionShape& shape,
            const MatrixRef<const Real>& dpatches_MF, bool add, const MatrixRef<Real>& dx_NC) {
  const im2col_kernels::Geometry geometry(shape);
  const int pixels = shape.input_rows(), places = shape.output_rows();
  for_rows(
      "deltapipe::Convolution::imageGradient", row_policy(exec, dx_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        geometry.sum_gradients(team, &dpatches_MF(n / pixels * places, 0), n % pixels, add,
                               &dx_NC(n, 0));
      });
}

/// w_OF, whose rows are in the order of patches_MF, from the weights [O, C, kernel, kernel] of
/// torch.nn.Conv2d. T: Real or Bf16.
template <class Real, class T>
void pixel_major_weight(const ExecSpace& exec, const ConvolutionShape& shape,
                        const VectorRef<const Real>& weight, const MatrixRef<T>& w_OF) {
  const int channels = shape.input.channels, area = shape.kernel * shape.kernel;
  for_elements(
      "deltapipe::Convolution::weight", exec, w_OF.extent_int(0), channels * area,
      DELTAPIPE_LAMBDA(int o, int f) {
        const Real* const from = weight.data() + static_cast<std::size_t>(o) * channels * area;
        w_OF(o, f) = rounded_to<T>(from[f % channels * area + f / channels]);
      });
}

/// The same for gradients, in the other direction; added to `gradient` if `accumulate` is set.
template <class Real>
void channel_major_gradient(const ExecSpace& exec, const ConvolutionShape& shape,
                            const MatrixRef<const Real>& dw_OF, bool accumulate,
                            const VectorRef<Real>& gradient) {
  const int channels = shape.input.channels, area = shape.kernel * shape.kernel;
  for_elements(
      "deltapipe::Convolution::weightGradient", exec, dw_OF.extent_int(0), channels * area,
      DELTAPIPE_LAMBDA(int o, int f) {
        const Real value = dw_OF(o, f % area * channels + f / area);
        Real& to = gradient(static_cast<std::size_t>(o) * channels * area + f);
        to = accumulate ? to + value : value;
      });
}

}  // namespace deltapipe
