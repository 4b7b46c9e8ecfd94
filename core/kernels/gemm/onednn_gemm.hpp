// SPDX-License-Identifier: BSD-3-Clause
// Products of bf16 matrices by oneDNN, which is loaded at the first call.
#pragma once

#include <string>

#include "core/base/numeric/number_formats.hpp"
#include "core/kernels/gemm/gemm.hpp"

namespace deltapipe::onednn {

/// Returns true if the processor has instructions for bf16; false without oneDNN as well.
bool has_bf16_instructions();
/// Returns the reason why it has no such instructions; empty if it has.
std::string obstacle();

/// Returns "oneDNN 2.6.3"; empty without oneDNN.
std::string version();

/// c = op(a) * op(b) + beta * c, with sums in fp32, shared by the threads of a HostTeam. Operands
/// are in host memory; rows may have gaps. beta is 0 or 1. Requires has_bf16_instructions().
void gemm_bf16(Transpose op_a, Transpose op_b, const MatrixRef<const Bf16>& a,
               const MatrixRef<const Bf16>& b, float beta, const MatrixRef<float>& c);

}  // namespace deltapipe::onednn
