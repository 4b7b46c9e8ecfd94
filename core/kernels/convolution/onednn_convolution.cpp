// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/convolution/onednn_convolution.hpp"

#include <fmt/format.h>

#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/parallel/kokkos_compat.hpp"
#include "core/kernels/gemm/onednn_library.hpp"

namespace deltapipe::onednn {

namespace {

enum Pass { kForward, kInputGradient, kWeightGradient };

/// The library writes only the operand that the pass computes, which is fp32. T is the type of the
/// others, except that weights are always passed as fp32.
template <class T>
void run(const ConvolutionShape& shape, int images, Pass pass, const void* x, const float* weights,
         const void* y) {
  const DeltapipeOnednnConvolution kind = {
      images,        shape.input.height,     shape.input.width, shape.input.channels,
      shape.outputs, shape.kernel,           shape.stride,      shape.padding,
      pass,          std::is_same_v<T, Bf16>};
  const OneThread one;
  const char* const problem = module().convolve(&kind, const_cast<void*>(x),
                                                const_cast<float*>(weights), const_cast<void*>(y));
  if (problem == nullptr) return;
  Mistake mistake = {
      .what = fmt::format("oneDNN cannot compute a convolution of images of {} with a kernel of {}",
                          text_of(shape.input), shape.kernel),
      .value = problem};
  if (std::is_same_v<T, Bf16>) {
    mistake.remedy = "set training.precision = \"fp32\"";
    mistake.keys = {"training.precision"};
  } else {
    mistake.remedy = "build deltapipe with -DDELTAPIPE_ONEDNN=OFF";
  }
  throw UserError(mistake);
}

/// Calls body(first, images) for parts of the images, which the threads share.
template <class Body>
void share_images(int images, const Body& body) {
  HostTeam::instance().share(images, 1, [&](int first, int end) { body(first, end - first); });
}

}  // namespace

bool has_convolutions() {
  return kTeamExecution && module().is_there();
}

template <class T>
void convolve(const ConvolutionShape& shape, int images, const T* x, const float* weights,
              float* y) {
  share_images(images, [&](int first, int count) {
    run<T>(shape, count, kForward, x + first * shape.input.values(), weights,
           y + first * shape.output().values());
  });
}

template <class T>
void convolve_back(const ConvolutionShape& shape, int images, const T* dy, const float* weights,
                   float* dx) {
  share_images(images, [&](int first, int count) {
    run<T>(shape, count, kInputGradient, dx + first * shape.input.values(), weights,
           dy + first * shape.output().values());
  });
}

template <class T>
void convolve_weights(const ConvolutionShape& shape, int images, const T* x, const T* dy,
                      float* dweights) {
  run<T>(shape, images, kWeightGradient, x, dweights, dy);
}

#define DELTAPIPE_INSTANTIATE(T)                                                                \
  template void convolve<T>(const ConvolutionShape&, int, const T*, const float*, float*);      \
  template void convolve_back<T>(const ConvolutionShape&, int, const T*, const float*, float*); \
  template void convolve_weights<T>(const ConvolutionShape&, int, const T*, const T*, float*)

DELTAPIPE_INSTANTIATE(float);
DELTAPIPE_INSTANTIATE(Bf16);

#undef DELTAPIPE_INSTANTIATE

}  // namespace deltapipe::onednn
