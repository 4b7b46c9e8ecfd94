// SPDX-License-Identifier: BSD-3-Clause
// Codecs without memories of samples, for evaluations and generation.
#pragma once

#include "core/codec/settings.hpp"

namespace deltapipe {

/// Values that codecs of changes send then. first_visit: those of a sample that they see for the
/// first time. direct: C(x), the values themselves as changes are sent, quantize or topk.
enum class ChangesWithoutMemory { first_visit, direct };

/// A codec without memory and warm-up. none, fp16 and bf16 stay; quantize and topk with
/// error feedback send C(x).
CodecSettings without_memory(const CodecSettings& settings, ChangesWithoutMemory changes);

/// True if a codec without memory treats each token by itself, independent of the others, so
/// that they may cross one by one.
bool sends_tokens_alone(const CodecSettings& settings);

}  // namespace deltapipe
