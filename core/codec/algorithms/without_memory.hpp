// SPDX-License-Identifier: BSD-3-Clause
// What is left of a codec where there is no memory of samples: in evaluations and generation.
#pragma once

#include "core/codec/settings.hpp"

namespace deltapipe {

/// What codecs of changes send then. first_visit: what they send of a sample that they see for the
/// first time. direct: C(x), the values themselves as changes are sent, quantize or topk.
enum class ChangesWithoutMemory { first_visit, direct };

/// A codec without memory and warm-up. none, fp16 and bf16 stay; quantize and topk with
/// error feedback send C(x).
CodecSettings without_memory(const CodecSettings& settings, ChangesWithoutMemory changes);

/// Of a codec without memory: what it makes of a token does not depend on the sample's others, so
/// that they may cross one by one.
bool sends_tokens_alone(const CodecSettings& settings);

}  // namespace deltapipe
