// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/real_gemm.hpp"

#include "core/base/error.hpp"

namespace deltapipe {

std::string tf32_obstacle() {
#if defined(KOKKOS_ENABLE_CUDA)
  if (cublas::has_bf16_and_tf32()) return "";
  return "the GPU has no tensor cores for TF32 (compute capability 8.0 and above)";
#else
  return "only NVIDIA GPUs compute in TF32, and this program was built for others";
#endif
}

RealGemm::RealGemm([[maybe_unused]] const ViewAllocator& memory,
                   [[maybe_unused]] ProductPrecision products) {
  DELTAPIPE_ASSERT(products != ProductPrecision::bf16, "operands of fp32");
#if defined(KOKKOS_ENABLE_CUDA)
  if (!memory.only_counts()) cublas_ = std::make_shared<const cublas::Gemm>(products);
#else
  DELTAPIPE_ASSERT(memory.only_counts() || products == ProductPrecision::fp32, tf32_obstacle());
#endif
}

}  // namespace deltapipe
