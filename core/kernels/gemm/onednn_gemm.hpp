// SPDX-License-Identifier: BSD-3-Clause
// Products by oneDNN, where it was built for it: of bf16 matrices and, where DELTAPIPE_SGEMM asks
// for it, of fp32 ones. Loaded at the first question.
#pragma once

#include <string>

#include "core/base/numeric/number_formats.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe::onednn {

/// Why oneDNN is not there; empty where it is.
std::string load_obstacle();

/// False without oneDNN as well.
bool has_bf16_instructions();
/// Why not; empty where it has.
std::string obstacle();

/// "oneDNN 2.6.3"; empty where it is not there.
std::string version();

/// c = op(a) * op(b) + beta * c, with sums in fp32, shared by the threads of a HostTeam. Operands
/// are in host memory; rows may have gaps. beta is 0 or 1. Only where has_bf16_instructions().
void gemm_bf16(Transpose op_a, Transpose op_b, const MatrixRef<const Bf16>& a,
               const MatrixRef<const Bf16>& b, float beta, const MatrixRef<float>& c);

/// c = alpha * op(a) * op(b) + beta * c by the calling thread, on matrices of rows that are so many
/// elements apart. Only where load_obstacle() is empty.
void sgemm(Transpose op_a, Transpose op_b, int M, int N, int K, float alpha, const float* a,
           int row_a, const float* b, int row_b, float beta, float* c, int row_c);

}  // namespace deltapipe::onednn
