// SPDX-License-Identifier: BSD-3-Clause
// Linear systems with a symmetric positive definite matrix, blocked around matrix products, on the
// instance that is given: nothing waits, and nothing is needed beyond BLAS.
#pragma once

#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// b_CK := a_CC^-1 b_CK. Only the lower triangle of a_CC is read; afterwards it is the Cholesky
/// factor, and what lies above it is of no use. Where a_CC is not positive definite, NaN reach
/// b_CK.
void cholesky_solve(const ExecSpace& exec, const MatrixRef<float>& a_CC,
                    const MatrixRef<float>& b_CK);

}  // namespace deltapipe
