// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/convolution/onednn_convolution.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/parallel/kokkos_compat.hpp"
#include "core/kernels/gemm/onednn_library.hpp"

namespace deltapipe::onednn {

namespace {

enum Pass { kForward, kInputGradient, kWeightGradient };

void run(const ConvolutionShape& shape, int images, Pass pass, const float* x, const float* weights,
         const float* y) {
  const DeltapipeOnednnConvolution kind = {
      images,        shape.input.height, shape.input.width, shape.input.channels,
      shape.outputs, shape.kernel,       shape.stride,      shape.padding,
      pass};
  const OneThread one;
  // The library writes only the one that the pass computes.
  const char* const problem = module().convolve(&kind, const_cast<float*>(x),
                                                const_cast<float*>(weights), const_cast<float*>(y));
  if (problem == nullptr) return;
  throw UserError({.what = fmt::format(
                       "oneDNN cannot compute a convolution of images of {} with a kernel of {}",
                       text_of(shape.input), shape.kernel),
                   .value = problem,
                   .remedy = "build deltapipe with -DDELTAPIPE_ONEDNN=OFF"});
}

/// Calls run() for parts of the images, which the threads share.
void run_in_parts(const ConvolutionShape& shape, int images, Pass pass, const float* x,
                  const float* weights, const float* y) {
  HostTeam& team = HostTeam::instance();
  team.share(images, 1, [&](int first, int end) {
    run(shape, end - first, pass, x + first * shape.input.values(), weights,
        y + first * shape.output().values());
  });
}

}  // namespace

bool has_convolutions() {
  return kTeamExecution && module().is_there();
}

void convolve(const ConvolutionShape& shape, int images, const float* x, const float* weights,
              float* y) {
  run_in_parts(shape, images, kForward, x, weights, y);
}

void convolve_back(const ConvolutionShape& shape, int images, const float* dy, const float* weights,
                   float* dx) {
  run_in_parts(shape, images, kInputGradient, dx, weights, dy);
}

void convolve_weights(const ConvolutionShape& shape, int images, const float* x, const float* dy,
                      float* dweights) {
  run(shape, images, kWeightGradient, x, dweights, dy);
}

}  // namespace deltapipe::onednn
