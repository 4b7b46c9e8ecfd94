// SPDX-License-Identifier: BSD-3-Clause
// Shapes of the layers of residual networks, without their kernels.
#pragma once

#include <vector>

#include "core/kernels/convolution/convolution_shape.hpp"

namespace deltapipe {

struct BatchNormOptions {
  double epsilon = 1e-5;
  double momentum = 0.1;  ///< share of a batch in the running statistics
};

/// Returns the shape of the maxima that may follow a network's first convolution: 3 x 3 pixels at
/// every second place.
inline ConvolutionShape pooling_after(const ConvolutionShape& convolution) {
  return {convolution.output(), convolution.outputs, 3, 2, 1};
}

/// A block of a residual network (arXiv 1512.03385).
struct ResidualShape {
  ImageShape input;
  int outputs = 0;
  int stride = 1;
  bool bottleneck = false;    ///< three convolutions, the middle one over outputs / 4 channels
  bool early_stride = false;  ///< the first convolution of a bottleneck has the stride

  /// Returns true if the shortcut is a convolution, because its input and output differ.
  bool has_projection() const { return stride != 1 || input.channels != outputs; }
  ConvolutionShape projection() const { return {input, outputs, 1, stride, 0}; }
  ImageShape output() const { return path().back().output(); }
  /// Returns the convolutions on the main path.
  std::vector<ConvolutionShape> path() const {
    std::vector<ConvolutionShape> shapes;
    const auto add = [&](int channels, int kernel, int step) {
      const ImageShape from = shapes.empty() ? input : shapes.back().output();
      shapes.push_back({from, channels, kernel, step, kernel / 2});
    };
    if (bottleneck) {
      add(outputs / 4, 1, early_stride ? stride : 1);
      add(outputs / 4, 3, early_stride ? 1 : stride);
      add(outputs, 1, 1);
    } else {
      add(outputs, 3, stride);
      add(outputs, 3, 1);
    }
    return shapes;
  }
};

}  // namespace deltapipe
