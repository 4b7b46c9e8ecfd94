// SPDX-License-Identifier: BSD-3-Clause
// How a product takes a matrix.
#pragma once

namespace deltapipe {

enum class Transpose { no, yes };

}  // namespace deltapipe
