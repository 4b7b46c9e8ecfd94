// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/gemm/cublas_gemm.hpp"

#if defined(KOKKOS_ENABLE_CUDA)

#include <cublas_v2.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/numeric/number_formats.hpp"

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

template <class T>
constexpr cudaDataType_t data_type() {
  if constexpr (std::is_same_v<T, Bf16>)
    return CUDA_R_16BF;
  else
    return std::is_same_v<T, float> ? CUDA_R_32F : CUDA_R_64F;
}

/// Returns the elements from row to row; cuBLAS requires at least one even without a second row.
template <class T>
int row_of(const MatrixRef<T>& matrix) {
  return std::max({1, static_cast<int>(matrix.stride(0)), matrix.extent_int(1)});
}

/// Reports a call as a kernel to Kokkos' tools.
class ToolKernel {
 public:
  ToolKernel(const char* label, const ExecSpace& exec)
      : on_(Kokkos::Tools::profileLibraryLoaded()) {
    if (on_)
      Kokkos::Tools::beginParallelFor(label, Kokkos::Tools::Experimental::device_id(exec), &id_);
  }
  ~ToolKernel() {
    if (on_) Kokkos::Tools::endParallelFor(id_);
  }
  ToolKernel(const ToolKernel&) = delete;
  ToolKernel& operator=(const ToolKernel&) = delete;

 private:
  bool on_;
  std::uint64_t id_ = 0;
};

struct Shape {
  int M, N, K;
};

template <class Factor, class Real>
Shape shape_of(Transpose op_a, Transpose op_b, const MatrixRef<const Factor>& a,
               const MatrixRef<const Factor>& b, const MatrixRef<Real>& c) {
  const int M = c.extent_int(0), N = c.extent_int(1);
  const int K = a.extent_int(op_a == Transpose::yes ? 0 : 1);
  DELTAPIPE_ASSERT(a.extent_int(op_a == Transpose::yes ? 1 : 0) == M &&
                       b.extent_int(op_b == Transpose::yes ? 0 : 1) == N &&
                       b.extent_int(op_b == Transpose::yes ? 1 : 0) == K,
                   "operands do not fit");
  return {M, N, K};
}

}  // namespace

struct Gemm::Handle {
  cublasHandle_t cublas = nullptr;
  ProductPrecision products;
  explicit Handle(ProductPrecision products_of_fp32) : products(products_of_fp32) {
    check(cublasCreate(&cublas), "cublasCreate");
  }
  ~Handle() { cublasDestroy(cublas); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  template <class Factor, class Real>
  cublasComputeType_t compute_type() const {
    if constexpr (std::is_same_v<Real, double>)
      return CUBLAS_COMPUTE_64F;
    else
      return std::is_same_v<Factor, float> && products == ProductPrecision::tf32
                 ? CUBLAS_COMPUTE_32F_FAST_TF32
                 : CUBLAS_COMPUTE_32F;
  }
};

Gemm::Gemm(ProductPrecision products) : handle_(std::make_unique<Handle>(products)) {}
Gemm::~Gemm() = default;

bool has_bf16_and_tf32() {
  int device = 0, major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 8;
}

// cuBLAS stores matrices by columns: it computes the transposed product, c^T = op(b)^T op(a)^T.

template <class Factor, class Real>
void Gemm::operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                      const MatrixRef<const Factor>& a, const MatrixRef<const Factor>& b, Real beta,
                      const MatrixRef<Real>& c) const {
  const auto [M, N, K] = shape_of(op_a, op_b, a, b, c);
  if (M == 0 || N == 0) return;
  const Real one = 1;
  const ToolKernel kernel("deltapipe::Gemm::product", exec);
  check(cublasSetStream(handle_->cublas, exec.cuda_stream()), "cublasSetStream");
  check(cublasGemmEx(handle_->cublas, operation(op_b), operation(op_a), N, M, K, &one, b.data(),
                     data_type<Factor>(), row_of(b), a.data(), data_type<Factor>(), row_of(a),
                     &beta, c.data(), data_type<Real>(), row_of(c),
                     handle_->compute_type<Factor, Real>(), CUBLAS_GEMM_DEFAULT),
        "cublasGemmEx");
}

template <class Factor, class Real>
void Gemm::batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                   const MatrixGrid<const Factor>& a, const MatrixGrid<const Factor>& b, Real beta,
                   const MatrixGrid<Real>& c, int outer, int inner) const {
  const int count = outer * inner;
  if (count == 1) return (*this)(exec, op_a, op_b, a.first, b.first, beta, c.first);
  const auto [M, N, K] = shape_of(op_a, op_b, a.first, b.first, c.first);
  if (M == 0 || N == 0 || count == 0) return;
  const Real one = 1;
  const ToolKernel kernel("deltapipe::Gemm::products", exec);
  check(cublasSetStream(handle_->cublas, exec.cuda_stream()), "cublasSetStream");
  if (a.is_evenly_spaced(outer, inner) && b.is_evenly_spaced(outer, inner) &&
      c.is_evenly_spaced(outer, inner)) {
    const auto stride = [&](const auto& grid) {
      return static_cast<long long>(grid.stride(inner));
    };
    check(cublasGemmStridedBatchedEx(
              handle_->cublas, operation(op_b), operation(op_a), N, M, K, &one, b.first.data(),
              data_type<Factor>(), row_of(b.first), stride(b), a.first.data(), data_type<Factor>(),
              row_of(a.first), stride(a), &beta, c.first.data(), data_type<Real>(), row_of(c.first),
              stride(c), count, handle_->compute_type<Factor, Real>(), CUBLAS_GEMM_DEFAULT),
          "cublasGemmStridedBatchedEx");
    return;
  }
  DELTAPIPE_ASSERT(a.addresses != nullptr && b.addresses != nullptr && c.addresses != nullptr,
                   "no addresses of matrices that are not evenly spaced");
  const auto addresses = [](const auto& grid) {
    return reinterpret_cast<void* const*>(grid.addresses);
  };
  check(cublasGemmBatchedEx(handle_->cublas, operation(op_b), operation(op_a), N, M, K, &one,
                            addresses(b), data_type<Factor>(), row_of(b.first), addresses(a),
                            data_type<Factor>(), row_of(a.first), &beta, addresses(c),
                            data_type<Real>(), row_of(c.first), count,
                            handle_->compute_type<Factor, Real>(), CUBLAS_GEMM_DEFAULT),
        "cublasGemmBatchedEx");
}

#define DELTAPIPE_CUBLAS_GEMM(Factor, Real)                                                      \
  template void Gemm::operator()(const ExecSpace&, Transpose, Transpose,                         \
                                 const MatrixRef<const Factor>&, const MatrixRef<const Factor>&, \
                                 Real, const MatrixRef<Real>&) const;                            \
  template void Gemm::batched(const ExecSpace&, Transpose, Transpose,                            \
                              const MatrixGrid<const Factor>&, const MatrixGrid<const Factor>&,  \
                              Real, const MatrixGrid<Real>&, int, int) const;
DELTAPIPE_CUBLAS_GEMM(Bf16, float)
DELTAPIPE_CUBLAS_GEMM(float, float)
DELTAPIPE_CUBLAS_GEMM(double, double)
#undef DELTAPIPE_CUBLAS_GEMM

}  // namespace deltapipe::cublas

#endif
