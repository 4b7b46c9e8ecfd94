// SPDX-License-Identifier: BSD-3-Clause
// The settings to begin with where bytes are dear.
#pragma once

#include "core/base/crossing.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Activations: changes in steps of 1.1 RMS, entropy coded, with a refined first visit. Gradients:
/// steps of 0.5 RMS, entropy coded, with error feedback. About 2.2 and 3.3 bits per value of later
/// visits at nearly the quality of uncompressed training (docs/codecs.md).
CodecSettings recommended_settings(Direction direction);

}  // namespace deltapipe
