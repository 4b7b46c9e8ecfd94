// SPDX-License-Identifier: BSD-3-Clause
// The places of a kernel that moves over an image, for kernels: convolutions and maxima.
#pragma once

#include "core/base/parallel/kokkos_compat.hpp"
#include "core/kernels/convolution/convolution_shape.hpp"

namespace deltapipe {

/// Places [top, bottom] x [left, right] of an output.
struct WindowRange {
  int top, bottom, left, right;
};

/// A ConvolutionShape as plain numbers. nvcc requires that lambdas with branches for hosts and
/// devices capture one object.
struct Windows {
  int height, width, channels, kernel, stride, padding;
  int down, across;  ///< height and width of the output

  explicit Windows(const ConvolutionShape& shape)
      : height(shape.input.height),
        width(shape.input.width),
        channels(shape.input.channels),
        kernel(shape.kernel),
        stride(shape.stride),
        padding(shape.padding),
        down(shape.output().height),
        across(shape.output().width) {}

  /// Returns the places whose kernel covers pixel (y, x) of the padded image: those with
  /// i * stride <= y < i * stride + kernel.
  KOKKOS_FORCEINLINE_FUNCTION WindowRange covering(int y, int x) const {
    return {y < kernel ? 0 : (y - kernel) / stride + 1,
            y / stride < down - 1 ? y / stride : down - 1,
            x < kernel ? 0 : (x - kernel) / stride + 1,
            x / stride < across - 1 ? x / stride : across - 1};
  }
};

}  // namespace deltapipe
