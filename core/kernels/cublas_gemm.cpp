// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/cublas_gemm.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

#include <cublas_v2.h>

#include <string>

#include "core/base/error.hpp"

namespace deltapipe::cublas {

namespace {

void check(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw UserError(
        {.what = std::string(call) + " failed", .value = cublasGetStatusString(status)});
}

cublasOperation_t operation(Transpose op) {
  return op == Transpose::yes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

struct Gemm::Handle {
  cublasHandle_t cublas = nullptr;
  Handle() { check(cublasCreate(&cublas), "cublasCreate"); }
  ~Handle() { cublasDestroy(cublas); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
};

Gemm::Gemm() : handle_(std::make_unique<Handle>()) {}
Gemm::~Gemm() = default;

bool has_bf16_instructions() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 8;
}

void Gemm::operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b, int K,
                      const MatrixRef<const Bf16>& a, const MatrixRef<const Bf16>& b, float beta,
                      const MatrixRef<float>& c) const {
  const float one = 1;
  const auto row_of = [](const auto& matrix) { return static_cast<int>(matrix.stride(0)); };
  check(cublasSetStream(handle_->cublas, exec.cuda_stream()), "cublasSetStream");
  // cuBLAS takes matrices by columns: what it sees are the transposed ones, c^T = op(b)^T op(a)^T.
  check(cublasGemmEx(handle_->cublas, operation(op_b), operation(op_a), c.extent_int(1),
                     c.extent_int(0), K, &one, b.data(), CUDA_R_16BF, row_of(b), a.data(),
                     CUDA_R_16BF, row_of(a), &beta, c.data(), CUDA_R_32F, row_of(c),
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

}  // namespace deltapipe::cublas

#endif
