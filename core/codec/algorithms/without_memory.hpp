// SPDX-License-Identifier: BSD-3-Clause
// Codecs without memories of samples, for evaluations and generation.
#pragma once

#include "core/codec/settings.hpp"

namespace deltapipe {

/// Values that codecs of changes send then. first_visit: those of a sample that they see for the
/// first time. direct: C(x), the values themselves as changes are sent, directq or topk.
enum class ChangesWithoutMemory { first_visit, direct };

/// A codec without memory and warm-up. none, fp16 and bf16 stay; directq and topk with error
/// feedback send C(x). A step of the message becomes one of each token, with the same fraction of
/// its RMS.
CodecSettings without_memory(const CodecSettings& settings, ChangesWithoutMemory changes);

/// True if a codec of without_memory() treats each token by itself, independent of the others, so
/// that they may cross one by one.
bool sends_tokens_alone(const CodecSettings& settings);

}  // namespace deltapipe
