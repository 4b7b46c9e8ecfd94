// SPDX-License-Identifier: BSD-3-Clause
// Visits the trained parameters of a stage, in either storage.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/base/parallel/floating_point.hpp"
#include "core/kernels/halves.hpp"
#include "core/stage/parameters.hpp"

namespace deltapipe {

/// Calls pass(index, MutableValues or MutableHalves) for each trained parameter. Denormal numbers
/// are flushed meanwhile: moments and velocities of parameters whose gradients have vanished become
/// denormal, and remain so.
template <class Real, class Pass>
void for_each_trained(const ParameterArena<Real>& parameters, const Pass& pass) {
  const FlushedDenormals flushed;
  for (std::size_t i = 0; i < parameters.info().size(); ++i) {
    if (parameters.info()[i].frozen) continue;
    const int index = static_cast<int>(i);
    if constexpr (std::is_same_v<Real, float>)
      if (parameters.in_halves(index)) {
        pass(index, mutable_halves(parameters.halves(index)));
        continue;
      }
    pass(index, MutableValues<Real>{parameters.value(index).data()});
  }
}

}  // namespace deltapipe
