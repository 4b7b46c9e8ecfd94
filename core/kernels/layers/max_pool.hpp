// SPDX-License-Identifier: BSD-3-Clause
// Maxima over the places of images, as torch.nn.MaxPool2d with padding has them. Of equal values
// the first one counts; NaN counts as the largest.
#pragma once

#include <cmath>
#include <cstddef>

#include "core/base/parallel/row.hpp"
#include "core/kernels/convolution/windows.hpp"

namespace deltapipe {

namespace max_pool_kernels {

struct Maxima : Windows {
  using Windows::Windows;

  /// Returns the pixel with the largest value of channel c at one place of an image's output.
  template <class Real>
  KOKKOS_FORCEINLINE_FUNCTION int largest(const Real* image, int i, int j, int c) const {
    const int top = i * stride - padding, left = j * stride - padding;
    int pixel = -1;
    Real most = 0;
    for (int y = top < 0 ? 0 : top; y < top + kernel && y < height; ++y)
      for (int x = left < 0 ? 0 : left; x < left + kernel && x < width; ++x) {
        const Real value = image[static_cast<std::size_t>(y * width + x) * channels + c];
        if (pixel >= 0 && !(value > most) && !std::isnan(value)) continue;
        pixel = y * width + x;
        most = value;
      }
    return pixel;
  }
};

}  // namespace max_pool_kernels

/// y_MC = the largest values under the kernel. shape.outputs is the number of channels, and padding
/// is at most half of the kernel.
template <class Real>
void max_pool(const ExecSpace& exec, const ConvolutionShape& shape,
              const MatrixRef<const Real>& x_NC, const MatrixRef<Real>& y_MC) {
  const max_pool_kernels::Maxima window(shape);
  const int places = shape.output_rows();
  const std::size_t values = shape.input.values();
  for_rows(
      "deltapipe::MaxPool::forward", row_policy(exec, y_MC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int m = team.league_rank(), place = m % places;
        const Real* const image = x_NC.data() + m / places * values;
        row_for(team, window.channels, [&](int c) {
          const int pixel = window.largest(image, place / window.across, place % window.across, c);
          y_MC(m, c) = image[static_cast<std::size_t>(pixel) * window.channels + c];
        });
      });
}

/// dx_NC from dy_MC and x_NC.
template <class Real>
void max_pool_backward(const ExecSpace& exec, const ConvolutionShape& shape,
                       const MatrixRef<const Real>& x_NC, const MatrixRef<const Real>& dy_MC,
                       const MatrixRef<Real>& dx_NC) {
  const max_pool_kernels::Maxima window(shape);
  const int pixels = shape.input_rows(), places = shape.output_rows();
  const std::size_t values = shape.input.values();
  for_rows(
      "deltapipe::MaxPool::backward", row_policy(exec, dx_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank(), image_index = n / pixels, pixel = n % pixels;
        const Real* const image = x_NC.data() + image_index * values;
        const WindowRange at = window.covering(pixel / window.width + window.padding,
                                               pixel % window.width + window.padding);
        row_for(team, window.channels, [&](int c) {
          Real sum = 0;
          for (int i = at.top; i <= at.bottom; ++i)
            for (int j = at.left; j <= at.right; ++j)
              if (window.largest(image, i, j, c) == pixel)
                sum += dy_MC(image_index * places + i * window.across + j, c);
          dx_NC(n, c) = sum;
        });
      });
}

}  // namespace deltapipe
