// SPDX-License-Identifier: BSD-3-Clause
// Transposition of a product's operands.
#pragma once

namespace deltapipe {

enum class Transpose { no, yes };

/// Returns BLAS' name of the operation.
inline const char* blas_letter(Transpose op) {
  return op == Transpose::yes ? "T" : "N";
}

}  // namespace deltapipe
