// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/workspace.hpp"

#include <type_traits>

#include "core/base/error.hpp"
#include "core/kernels/attention/cached_attention.hpp"

namespace deltapipe {

template <class Real>
void StageAttention<Real>::reserve(const AttentionShape& shape, const StageCapacity& capacity,
                                   bool as_on_device, const ViewAllocator& memory) {
  const auto vector = [&](const char* label, std::size_t size) {
    return memory.uninitialized<Vector<Real>>(MemoryUse::workspace, label, size);
  };
  shape_ = shape;
  as_on_device_ = as_on_device;
  const bool in_bf16 = capacity.products == ProductPrecision::bf16 && has_fast_bf16_gemm();
  grouping_ = as_on_device_ ? AttentionGrouping::of_device(shape)
              : in_bf16     ? AttentionGrouping::of_host(shape, false)
                            : AttentionGrouping::of_host(shape);
  // Tensor cores require aligned addresses in a table; addresses given by strides need no
  // alignment.
  if (!kHostExecution && capacity.products != ProductPrecision::fp32 && shape.head_width % 8 != 0)
    grouping_.samples = 1;
  const std::size_t scores = attention_workspace(shape, grouping_);
  if (as_on_device_ && (kHostExecution || needs_attention_addresses(grouping_)))
    addresses_ = memory.uninitialized<Vector<std::uintptr_t>>(
        MemoryUse::workspace, "deltapipe::StageAttention::addresses",
        attention_addresses(shape, grouping_));
  scores_ = vector("deltapipe::StageAttention::scores", scores);
  if (capacity.training) scores2_ = vector("deltapipe::StageAttention::scores2", scores);
  if (capacity.keeps_text)
    kept_scores_ =
        vector("deltapipe::StageAttention::keptScores", cached_attention_workspace(shape));
}

template <class Real>
void StageAttention<Real>::reserve_products_bf16(bool training, const ViewAllocator& memory) {
  const std::size_t scores = attention_workspace(shape_, grouping_);
  const auto factors = [&](const char* label) {
    return memory.uninitialized<Vector<Bf16>>(MemoryUse::workspace, label, scores);
  };
  factors_ = factors("deltapipe::StageAttention::factors");
  if (training) factors2_ = factors("deltapipe::StageAttention::factors2");
  products_bf16_ = HeadProducts<Real, Bf16>(Bf16Gemm(memory));
}

template <class Real>
AttentionPlan StageAttention<Real>::plan(const AttentionShape& shape) const {
  return {as_on_device_ ? grouping_ : AttentionGrouping::of_host(shape, grouping_.in_tiles),
          addresses_};
}

template <class Real>
void StageAttention<Real>::forward(const ExecSpace& exec, const AttentionShape& shape,
                                   const MatrixRef<Real>& qkv_N3C, const Dropout& dropout,
                                   const VectorRef<const std::int32_t>& length_B,
                                   const MatrixRef<Real>& attention_NC,
                                   const VectorRef<Real>& log_sum_BHT,
                                   const Products<Real>& products) const {
  if constexpr (std::is_same_v<Real, float>) {
    if (factors_.extent(0) > 0) {
      attention_forward<float, Bf16>(
          exec, shape, plan(shape), products.input(exec, qkv_N3C).rounded, dropout,
          {scores_, factors_}, attention_NC, log_sum_BHT, products_bf16_, length_B);
      return;
    }
  }
  attention_forward<Real, Real>(exec, shape, plan(shape), qkv_N3C, dropout, {scores_, scores_},
                                attention_NC, log_sum_BHT, products_, length_B);
}

template <class Real>
void StageAttention<Real>::backward(const ExecSpace& exec, const AttentionShape& shape,
                                    const MatrixRef<Real>& qkv_N3C, const Dropout& dropout,
                                    const VectorRef<const std::int32_t>& length_B,
                                    const MatrixRef<Real>& attention_NC,
                                    const VectorRef<Real>& log_sum_BHT,
                                    const MatrixRef<Real>& dattention_NC,
                                    const MatrixRef<Real>& dqkv_N3C,
                                    const Products<Real>& products) const {
  if constexpr (std::is_same_v<Real, float>) {
    if (factors_.extent(0) > 0) {
      attention_backward<float, Bf16>(
          exec, shape, plan(shape), products.input(exec, qkv_N3C).rounded, dropout, attention_NC,
          log_sum_BHT, dattention_NC, products.gradient(exec, dattention_NC).rounded,
          {scores_, factors_}, {scores2_, factors2_}, dqkv_N3C, products_bf16_, length_B);
      return;
    }
  }
  attention_backward<Real, Real>(exec, shape, plan(shape), qkv_N3C, dropout, attention_NC,
                                 log_sum_BHT, dattention_NC, dattention_NC, {scores_, scores_},
                                 {scores2_, scores2_}, dqkv_N3C, products_, length_B);
}

template <class Real>
void Workspace<Real>::reserve(const WorkspaceSize& size, const StageCapacity& capacity,
                              bool as_on_device, const ViewAllocator& memory) {
  const auto matrix = [&](const char* label, std::size_t elements) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::workspace, label, elements, 1);
  };
  const bool attends = size.attention.heads > 0;
  norm_NC = matrix("deltapipe::Workspace::norm", size.normal);
  branch_NC = matrix("deltapipe::Workspace::branch", size.normal);
  wide_NF = matrix("deltapipe::Workspace::wide", size.wide);
  if (attends) attention.reserve(size.attention, capacity, as_on_device, memory);
  if (capacity.training) {
    wide2_NF = matrix("deltapipe::Workspace::wide2", size.wide);
    if (as_on_device)
      column_sums = memory.uninitialized<Vector<Real>>(
          MemoryUse::workspace, "deltapipe::Workspace::columnSums", size.column_sums);
  }
  const bool in_bf16 = std::is_same_v<Real, float> && capacity.products == ProductPrecision::bf16;
  const bool convolves = size.images.channels > 0;
  const bool is_relative = size.relative.shape.heads > 0;
  RealGemm gemm;
  // Disentangled attention has products of fp32 in bf16 as well.
  if (!in_bf16 || is_relative)
    gemm = RealGemm(memory, capacity.products == ProductPrecision::tf32 ? ProductPrecision::tf32
                                                                        : ProductPrecision::fp32);
  if (convolves)
    images.reserve(size.images, in_bf16 ? nullptr : &gemm, capacity.training, as_on_device, memory);
  if (is_relative) relative.reserve(size.relative, gemm, capacity.training, as_on_device, memory);
  if (!in_bf16) {
    products = Products<Real>(gemm);
    attention.reserve_products(gemm);
    return;
  }
  products = Products<Real>(memory, size.wide,
                            capacity.training ? std::max(size.wide, size.gradient_elements) : 0);
  if (!attends) return;
  if (has_fast_bf16_gemm())
    attention.reserve_products_bf16(capacity.training, memory);
  else
    attention.reserve_products(RealGemm(memory));
}

template class StageAttention<float>;
template class StageAttention<double>;
template struct Workspace<float>;
template struct Workspace<double>;

}  // namespace deltapipe
