// SPDX-License-Identifier: BSD-3-Clause
// Images as sequences of patches, for vision transformers (arXiv 2010.11929, section 3.1). A sample
// has P patches in rows from the top left, and T = P + 1 rows: the class token, then the patches.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/image_shape.hpp"
#include "core/base/parallel/row.hpp"

namespace deltapipe {

/// y_MF = the pixels of each patch, channel by channel and row by row, as the weights of
/// a convolution have them. values: images [H, W, C]; M = B P, F = C patch^2.
template <class Real>
void patches_of_images(const ExecSpace& exec, const VectorRef<const float>& values,
                       const ImageShape& image, int patch, const MatrixRef<Real>& y_MF) {
  const int width = image.width, channels = image.channels, across = image.width / patch;
  const int patches = across * (image.height / patch);
  const auto pixels = static_cast<std::size_t>(image.height) * width * channels;
  const int values_of_patch = y_MF.extent_int(1);
  for_rows(
      "deltapipe::Patches::forward", row_policy(exec, y_MF.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int m = team.league_rank();
        const int top = m % patches / across * patch, left = m % across * patch;
        const float* const pixel = values.data() + m / patches * pixels;
        row_for(team, values_of_patch, [&](int f) {
          const int x = left + f % patch, y = top + f / patch % patch, c = f / (patch * patch);
          y_MF(m, f) =
              static_cast<Real>(pixel[(static_cast<std::size_t>(y) * width + x) * channels + c]);
        });
      });
}

/// x_NC = the class token or a row of patches_MC, plus the row's position.
template <class Real>
void place_patches(const ExecSpace& exec, const MatrixRef<const Real>& patches_MC,
                   const VectorRef<const Real>& class_C, const MatrixRef<const Real>& position_TC,
                   const MatrixRef<Real>& x_NC) {
  const int channels = x_NC.extent_int(1), tokens = position_TC.extent_int(0);
  for_rows(
      "deltapipe::Patches::place", row_policy(exec, x_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank(), t = n % tokens;
        const Real* const from =
            t == 0 ? class_C.data() : &patches_MC(n / tokens * (tokens - 1) + t - 1, 0);
        const Real* const position = &position_TC(t, 0);
        Real* const x = &x_NC(n, 0);
        row_for(team, channels, [&](int c) { x[c] = from[c] + position[c]; });
      });
}

/// dpatches_MC = the rows of dx_NC that are patches.
template <class Real>
void patch_rows(const ExecSpace& exec, const MatrixRef<const Real>& dx_NC, int tokens,
                const MatrixRef<Real>& dpatches_MC) {
  const int channels = dx_NC.extent_int(1);
  for_rows(
      "deltapipe::Patches::rows", row_policy(exec, dpatches_MC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int m = team.league_rank();
        const int n = m / (tokens - 1) * tokens + m % (tokens - 1) + 1;
        row_for(team, channels, [&](int c) { dpatches_MC(m, c) = dx_NC(n, c); });
      });
}

/// dclass_C = sum of the samples' first rows of dx_NC, added to dclass_C if `accumulate` is set.
template <class Real>
void class_token_gradient(const ExecSpace& exec, const MatrixRef<const Real>& dx_NC, int tokens,
                          bool accumulate, const VectorRef<Real>& dclass_C) {
  const int samples = dx_NC.extent_int(0) / tokens, channels = dx_NC.extent_int(1);
  for_elements(
      "deltapipe::Patches::classGradient", exec, 1, channels, DELTAPIPE_LAMBDA(int, int c) {
        Real sum = 0;
        for (int b = 0; b < samples; ++b) sum += dx_NC(b * tokens, c);
        dclass_C(c) = accumulate ? dclass_C(c) + sum : sum;
      });
}

}  // namespace deltapipe
