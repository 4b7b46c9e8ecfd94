// SPDX-License-Identifier: BSD-3-Clause
// Products of fp32 matrices by the calling thread, in tiles of registers
// (core/kernels/gemm/register_tiles.hpp). Blocks as in Goto and van de Geijn, "Anatomy of
// high-performance matrix multiplication", 2008, but that rows of an untransposed A are read where
// they are.
#pragma once

#include <cstddef>

#include "core/kernels/gemm/transpose.hpp"

namespace deltapipe::tiles {

/// c = alpha * op(a) * op(b) + beta * c, op(a) being M x K; rows begin so many elements apart. With
/// beta = 0 c is not read; a and b are, whatever alpha. Which bits a sum has depends on K and what
/// it adds, not on M and N.
void sgemm(Transpose op_a, Transpose op_b, int M, int N, int K, float alpha, const float* a,
           std::size_t row_a, const float* b, std::size_t row_b, float beta, float* c,
           std::size_t row_c);

/// Of a thread that multiplies, from its first product on.
std::size_t sgemm_memory_bytes();

}  // namespace deltapipe::tiles
