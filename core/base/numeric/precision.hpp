// SPDX-License-Identifier: BSD-3-Clause
// Number formats of weights and of arithmetic.
#pragma once

#include <cstdint>

namespace deltapipe {

/// Bits of a bf16: the upper half of a float's.
using Bf16 = std::uint16_t;

enum class Precision { fp32, fp16, bf16 };

/// Precision of matrix products. tf32: the GPU's tensor cores round fp32 operands to 10 bits of
/// mantissa. bf16: operands are rounded to bf16. Sums are fp32. Everything else is fp32, including
/// parameters and the values that cross boundaries.
enum class ProductPrecision { fp32, tf32, bf16 };

}  // namespace deltapipe
