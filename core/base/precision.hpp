// SPDX-License-Identifier: BSD-3-Clause
// Number formats of weights.
#pragma once

namespace deltapipe {

enum class Precision { fp32, fp16, bf16 };

}  // namespace deltapipe
