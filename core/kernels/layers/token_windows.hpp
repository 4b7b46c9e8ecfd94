// SPDX-License-Identifier: BSD-3-Clause
// Windows of neighbouring tokens: a convolution along a text, as a product. Tokens before the
// first and after the last valid one of a sample are zero.
#pragma once

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// Shape of windows of `width` tokens around each token; width is odd.
struct TokenWindows {
  int tokens = 0;                               ///< T
  int width = 3;                                ///< K
  VectorRef<const std::int32_t> length_B = {};  ///< valid tokens; empty: all

  KOKKOS_FORCEINLINE_FUNCTION int length(int sample) const {
    return length_B.extent(0) > 0 ? length_B(sample) : tokens;
  }
};

/// w(n, c * K + k) = x(n + k - K / 2, c), the order of torch.nn.Conv1d's weights [C', C, K].
/// [N, C * K]
template <class Real, class Output>
void gather_windows(const ExecSpace& exec, const TokenWindows& windows,
                    const MatrixRef<const Real>& x_NC, const MatrixRef<Output>& w) {
  const int channels = x_NC.extent_int(1), width = windows.width;
  for_rows(
      "deltapipe::TokenWindows::gather", row_policy(exec, x_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank(), token = n % windows.tokens;
        const int length = windows.length(n / windows.tokens);
        for (int k = 0; k < width; ++k) {
          const int from = token + k - width / 2;
          Output* const to = &w(n, k);
          if (from < 0 || from >= length) {
            row_for(team, channels, [=](int c) { to[c * width] = Output(0); });
            continue;
          }
          const Real* const x = &x_NC(n - token + from, 0);
          row_for(team, channels, [=](int c) { to[c * width] = rounded_to<Output>(x[c]); });
        }
      });
}

/// dx(n, c) += sum over the windows w with token n of their gradients dw. [N, C * K]
template <class Real>
void add_window_gradients(const ExecSpace& exec, const TokenWindows& windows,
                          const MatrixRef<const Real>& dw, const MatrixRef<Real>& dx_NC) {
  const int channels = dx_NC.extent_int(1), width = windows.width;
  for_rows(
      "deltapipe::TokenWindows::addGradients", row_policy(exec, dx_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank(), token = n % windows.tokens;
        if (token >= windows.length(n / windows.tokens)) return;
        Real* const dx = &dx_NC(n, 0);
        for (int k = 0; k < width; ++k) {
          const int window = token - (k - width / 2);
          if (window < 0 || window >= windows.tokens) continue;
          const Real* const d = &dw(n - token + window, k);
          row_for(team, channels, [=](int c) { dx[c] += d[c * width]; });
        }
      });
}

}  // namespace deltapipe
