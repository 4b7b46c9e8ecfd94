// SPDX-License-Identifier: BSD-3-Clause
// Softmax cross entropy of a block of rows and its gradient, in one pass over the logits.
#pragma once

#include <cmath>

#include "core/base/row.hpp"
#include "core/kernels/math.hpp"

namespace deltapipe {

/// loss_N(n) = -log softmax(logits)(target) and, with `gradient` set, logits become
/// scale * dloss/dlogits in place. Targets below 0 are padding: loss and gradient are 0.
template <class Real>
void cross_entropy(const ExecSpace& exec, const VectorRef<const std::int32_t>& target_N, Real scale,
                   bool gradient, const MatrixRef<Real>& logits_NV, const VectorRef<Real>& loss_N) {
  const int vocabulary = logits_NV.extent_int(1);
  for_rows(
      "deltapipe::CrossEntropy::lossAndGradient", row_policy(exec, logits_NV.extent_int(0)),
      KOKKOS_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        Real* const z = &logits_NV(n, 0);
        const int target = target_N(n);
        if (target < 0) {
          if (gradient) row_for(team, vocabulary, [&](int v) { z[v] = 0; });
          loss_N(n) = 0;
          return;
        }
        const Real target_logit = z[target];
        const Real top = row_max<Real>(team, vocabulary, z[0], [&](int v) { return z[v]; });
        team.team_barrier();
        const Real sum = row_sum<Real>(team, vocabulary, [&](int v) {
          const Real e = vector_exp(z[v] - top);
          z[v] = e;
          return e;
        });
        if (gradient) {
          const Real factor = scale / sum;
          row_for(team, vocabulary, [&](int v) { z[v] *= factor; });
          team.team_barrier();
          row_once(team, [&]() { z[target] -= scale; });
        }
        loss_N(n) = std::log(sum) + top - target_logit;
      });
}

}  // namespace deltapipe
