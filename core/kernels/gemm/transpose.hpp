// SPDX-License-Identifier: BSD-3-Clause
// Transposition of a product's operands.
#pragma once

namespace deltapipe {

enum class Transpose { no, yes };

}  // namespace deltapipe
