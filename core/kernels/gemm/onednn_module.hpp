// SPDX-License-Identifier: BSD-3-Clause
// Interface between onednn_library.cpp and the library that it loads.
#pragma once

#include <compare>
#include <cstdint>

extern "C" {

/// c = op(a) * op(b) or c += op(a) * op(b). a is M x K or, transposed, K x M; b is K x N or,
/// transposed, N x K.
struct DeltapipeOnednnProduct {
  int M, N, K;
  int row_a, row_b, row_c;  ///< elements from one row to the next
  bool turns_a, turns_b, accumulates;
  auto operator<=>(const DeltapipeOnednnProduct&) const = default;  // NOLINT(modernize-use-nullptr)
};

/// A convolution of images [images, height, width, channels] with weights [outputs, channels,
/// kernel, kernel].
struct DeltapipeOnednnConvolution {
  int images, height, width, channels;
  int outputs, kernel, stride, padding;
  /// 0: the output from input and weights; 1: the input's gradient from the output's and weights;
  /// 2: the weights' gradient from the input and the output's gradient.
  int pass;
  /// Images that are read are bf16, and products round the weights. Weights, gradients of weights,
  /// and images that are written are fp32.
  bool in_bf16;
  // NOLINTNEXTLINE(modernize-use-nullptr)
  auto operator<=>(const DeltapipeOnednnConvolution&) const = default;
};

/// Returns the version of oneDNN, "2.6.3".
const char* deltapipe_onednn_version();
/// Returns true if the processor has instructions for products of bf16.
int deltapipe_onednn_has_bf16();
/// Computes a product. Returns null or the text of an error, valid until the thread's next call.
const char* deltapipe_onednn_multiply(const DeltapipeOnednnProduct* product, const std::uint16_t* a,
                                      const std::uint16_t* b, float* c);
/// Computes a pass of a convolution: of `x`, `weights` and `y`, values or gradients, one is written
/// and the others are read. Returns as deltapipe_onednn_multiply().
const char* deltapipe_onednn_convolve(const DeltapipeOnednnConvolution* convolution, void* x,
                                      float* weights, void* y);
}
