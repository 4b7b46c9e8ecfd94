// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of fp32 images in host memory by oneDNN.
#pragma once

#include "core/kernels/convolution/convolution_shape.hpp"

namespace deltapipe::onednn {

/// Returns true if kernels run on a processor for which oneDNN can be loaded.
bool has_convolutions();

/// y = the convolution of x with `weights`. Threads of a HostTeam share the images. These functions
/// require has_convolutions().
void convolve(const ConvolutionShape& shape, int images, const float* x, const float* weights,
              float* y);
/// dx from dy.
void convolve_back(const ConvolutionShape& shape, int images, const float* dy, const float* weights,
                   float* dx);
/// dweights from x and dy, on one thread: their sum over the images has one order.
void convolve_weights(const ConvolutionShape& shape, int images, const float* x, const float* dy,
                      float* dweights);

}  // namespace deltapipe::onednn
