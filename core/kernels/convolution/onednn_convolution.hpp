// SPDX-License-Identifier: BSD-3-Clause
// Convolutions of images in host memory by oneDNN.
#pragma once

#include "core/base/numeric/precision.hpp"
#include "core/kernels/convolution/convolution_shape.hpp"

namespace deltapipe::onednn {

/// Returns true if kernels run on a processor for which oneDNN can be loaded.
bool has_convolutions();

/// y = the convolution of x with `weights`. Threads of a HostTeam share the images. These functions
/// require has_convolutions(). T: float, or Bf16 for products of bf16, which add in fp32 and round
/// the weights; they require has_fast_bf16_gemm().
template <class T>
void convolve(const ConvolutionShape& shape, int images, const T* x, const float* weights,
              float* y);
/// dx from dy.
template <class T>
void convolve_back(const ConvolutionShape& shape, int images, const T* dy, const float* weights,
                   float* dx);
/// dweights from x and dy, on one thread: their sum over the images has one order.
template <class T>
void convolve_weights(const ConvolutionShape& shape, int images, const T* x, const T* dy,
                      float* dweights);

}  // namespace deltapipe::onednn
