// SPDX-License-Identifier: BSD-3-Clause
// Rows of samples in matrices that have different numbers of rows for each sample.
#pragma once

#include "core/base/parallel/row.hpp"

namespace deltapipe {

/// Copies the first rows of each sample: y(b * y_tokens + t) = x(b * x_tokens + t) for t below both
/// numbers of tokens. Other rows of y keep their values.
template <class Real>
void copy_sample_rows(const ExecSpace& exec, int samples, const MatrixRef<const Real>& x_NC,
                      int x_tokens, const MatrixRef<Real>& y_MC, int y_tokens) {
  const int channels = x_NC.extent_int(1);
  const int tokens = x_tokens < y_tokens ? x_tokens : y_tokens;
  for_rows(
      "deltapipe::SampleRows::copy", row_policy(exec, samples * tokens),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int b = team.league_rank() / tokens, t = team.league_rank() % tokens;
        const Real* const x = &x_NC(b * x_tokens + t, 0);
        Real* const y = &y_MC(b * y_tokens + t, 0);
        row_for(team, channels, [=](int c) { y[c] = x[c]; });
      });
}

}  // namespace deltapipe
