// SPDX-License-Identifier: BSD-3-Clause
// The shape of a convolution over the height and width of images.
#pragma once

#include "core/base/image_shape.hpp"

namespace deltapipe {

/// A square kernel of `kernel` pixels a side, moved by `stride` pixels over an image that `padding`
/// rows and columns of zeros surround. The kernel fits into the padded image.
struct ConvolutionShape {
  ImageShape input;
  int outputs = 0;  ///< channels of the output
  int kernel = 1;
  int stride = 1;
  int padding = 0;

  ImageShape output() const {
    return {(input.height + 2 * padding - kernel) / stride + 1,
            (input.width + 2 * padding - kernel) / stride + 1, outputs};
  }
  int input_rows() const { return input.height * input.width; }
  int output_rows() const { return output().height * output().width; }
  /// Returns F, the values under the kernel.
  int patch_values() const { return kernel * kernel * input.channels; }
  /// Returns true if a row of the output depends on the same row of the input alone.
  bool is_pointwise() const { return kernel == 1 && stride == 1 && padding == 0; }
  /// Returns the floating-point operations of the forward pass for one image.
  double operations() const { return 2.0 * output_rows() * patch_values() * outputs; }
  bool operator==(const ConvolutionShape&) const = default;
};

}  // namespace deltapipe
