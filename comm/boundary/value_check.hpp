// SPDX-License-Identifier: BSD-3-Clause
// Error message for values that a codec cannot carry.
#pragma once

#include "core/base/parallel/views.hpp"
#include "core/codec/crossing.hpp"

namespace deltapipe {

/// Throws UserError with the stage, the boundary, the step and the place of the first value that is
/// not finite, or else of the largest one. x_BTC has `tokens` rows per sample. keeps_halves: the
/// sender's memory holds magnitudes up to fp16's largest.
[[noreturn]] void refuse_values(const Crossing& crossing, const MatrixRef<float>& x_BTC, int tokens,
                                bool keeps_halves);

}  // namespace deltapipe
