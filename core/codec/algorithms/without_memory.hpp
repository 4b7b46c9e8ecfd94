// SPDX-License-Identifier: BSD-3-Clause
// Codecs without memories of samples, for evaluations and generation.
#pragma once

#include "core/codec/settings.hpp"

namespace deltapipe {

/// Values that codecs of changes send without memory. first_visit: those of a sample's first visit.
/// direct: C(x), the values themselves in the format of changes, by directq or topk.
enum class ChangesWithoutMemory { first_visit, direct };

/// Returns the settings without memory and warm-up. none, fp16 and bf16 are unchanged; directq and
/// topk with error feedback send C(x). One step for a message becomes one for each token, the same
/// fraction of the token's RMS.
CodecSettings without_memory(const CodecSettings& settings, ChangesWithoutMemory changes);

/// Returns true if a codec of without_memory() treats each token independently of the others, so
/// that tokens may cross one at a time.
bool sends_tokens_alone(const CodecSettings& settings);

}  // namespace deltapipe
