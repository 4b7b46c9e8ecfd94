// SPDX-License-Identifier: BSD-3-Clause
// Probabilities of classes for the samples of a set.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "app/training/evaluation.hpp"

namespace deltapipe {

/// Samples `first`, first + 1 ... of a set.
struct Predictions {
  std::uint64_t first = 0;
  std::vector<float> probabilities;  ///< [samples, classes]
};

/// Passes over `data` once and calls `take` on rank 0 with the probabilities of `classes` classes,
/// for all samples in their order. All ranks call it together. `context.data` is not used. Throws
/// UserError for probabilities that are not finite.
void predict(const EvaluationContext& context, const Dataset& data, EvaluationMode mode,
             int classes, const std::function<void(const Predictions&)>& take);

}  // namespace deltapipe
