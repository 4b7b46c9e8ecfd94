// SPDX-License-Identifier: BSD-3-Clause
// Number formats of weights and of what is computed.
#pragma once

#include <cstdint>

namespace deltapipe {

/// Bits of a bf16: those of a float without the lower half.
using Bf16 = std::uint16_t;

enum class Precision { fp32, fp16, bf16 };

/// Precision of matrix products. tf32: operands of fp32 are rounded to 10 bits of mantissa by the
/// GPU's tensor cores; bf16: operands are rounded to it; sums are fp32. Parameters, what crosses
/// boundaries and everything else stay fp32.
enum class ProductPrecision { fp32, tf32, bf16 };

}  // namespace deltapipe
