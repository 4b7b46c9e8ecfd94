// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/onednn_gemm.hpp"

#include <fmt/format.h>

#include <string>

#include "core/base/error.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/host_blas.hpp"
#include "core/kernels/gemm/onednn_library.hpp"

namespace deltapipe::onednn {

namespace {

void multiply_bf16(const DeltapipeOnednnProduct& product, const Bf16* a, const Bf16* b, float* c) {
  const char* const problem = module().multiply(&product, a, b, c);
  if (problem == nullptr) return;
  throw UserError(
      {.what = fmt::format("oneDNN cannot multiply matrices of {} x {} and {} x {} in bf16",
                           product.M, product.K, product.K, product.N),
       .value = problem,
       .remedy = "set training.precision = \"fp32\"",
       .keys = {"training.precision"}});
}

}  // namespace

bool has_bf16_instructions() {
  return module().is_there() && module().has_bf16() != 0;
}

std::string obstacle() {
  if (!module().is_there()) return "oneDNN cannot be loaded: " + module().problem;
  if (module().has_bf16() == 0)
    return "the processor has no instructions for bf16 (AVX-512 BF16 or AMX)";
  return "";
}

std::string version() {
  return module().is_there() ? std::string("oneDNN ") + module().version() : "";
}

void gemm_bf16(Transpose op_a, Transpose op_b, const MatrixRef<const Bf16>& a,
               const MatrixRef<const Bf16>& b, float beta, const MatrixRef<float>& c) {
  DELTAPIPE_ASSERT(beta == 0 || beta == 1, std::to_string(beta));
  const bool turns_a = op_a == Transpose::yes, turns_b = op_b == Transpose::yes;
  const int K = a.extent_int(turns_a ? 0 : 1);
  const auto row_of = [](const auto& matrix) { return static_cast<int>(matrix.stride(0)); };
  const int row_a = row_of(a), row_b = row_of(b), row_c = row_of(c);
  const host_blas::Slabs slabs(c.extent_int(0), c.extent_int(1), K);
  HostTeam::instance().run(slabs.count(), [&](int i) {
    const host_blas::Slab slab = slabs[i];
    if (slab.rows == 0 || slab.columns == 0) return;
    const std::size_t row = slab.row, column = slab.column;
    const OneThread one;
    multiply_bf16({slab.rows, slab.columns, K, row_a, row_b, row_c, turns_a, turns_b, beta == 1},
                  a.data() + (turns_a ? row : row * row_a),
                  b.data() + (turns_b ? column * row_b : column), c.data() + row * row_c + column);
  });
}

}  // namespace deltapipe::onednn
