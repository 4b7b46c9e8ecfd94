// SPDX-License-Identifier: BSD-3-Clause
// Memory that all blocks and ends of a stage share within a pass.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/kernels/attention/attention.hpp"
#include "core/kernels/gemm/products.hpp"
#include "core/kernels/layers/linear.hpp"
#include "core/stage/stage.hpp"
#include "models/blocks/image_workspace.hpp"
#include "models/blocks/relative_workspace.hpp"

namespace deltapipe {

/// Sizes that the blocks and ends of a stage require. Each of them raises what it needs.
struct WorkspaceSize {
  int rows = 0;                             ///< most rows of a block's input or output
  std::size_t normal = 0;                   ///< elements of normalized rows
  std::size_t wide = 0;                     ///< elements of the widest rows inside a block
  std::size_t column_sums = 0;              ///< elements of a tree of column sums
  std::size_t gradient_elements = 0;        ///< largest gradient that is rounded, beside `wide`
  AttentionShape attention = {0, 0, 0, 0};  ///< heads 0: no attention
  ImageWorkspaceSize images = {};
  RelativeWorkspaceSize relative = {};

  /// Raises the sizes to `of_rows` rows of these widths.
  void raise(int of_rows, int channels, int wide_channels) {
    const auto elements = [&](int width) { return static_cast<std::size_t>(of_rows) * width; };
    normal = std::max(normal, elements(channels));
    wide = std::max(wide, elements(wide_channels));
    column_sums = std::max(column_sums, column_tree_workspace(of_rows, wide_channels));
  }
  void raise(int channels, int wide_channels) { raise(rows, channels, wide_channels); }
};

/// Attention in the precision of the stage's products. Blocks of a stage have one number of heads.
template <class Real>
class StageAttention {
 public:
  /// Chooses how heads are grouped and allocates. `shape` is the largest micro-batch's.
  void reserve(const AttentionShape& shape, const StageCapacity& capacity, bool as_on_device,
               const ViewAllocator& memory);
  /// Allocates what products in bf16 require, or uses `gemm`.
  void reserve_products(const RealGemm& gemm) { products_ = HeadProducts<Real, Real>(gemm); }
  void reserve_products_bf16(bool training, const ViewAllocator& memory);

  /// attention_NC and log_sum_BHT from qkv_N3C = [q k v]. `shape` may be smaller than reserved. For
  /// length_B see attention_forward().
  void forward(const ExecSpace& exec, const AttentionShape& shape, const MatrixRef<Real>& qkv_N3C,
               const Dropout& dropout, const VectorRef<const std::int32_t>& length_B,
               const MatrixRef<Real>& attention_NC, const VectorRef<Real>& log_sum_BHT,
               const Products<Real>& products) const;
  void backward(const ExecSpace& exec, const AttentionShape& shape, const MatrixRef<Real>& qkv_N3C,
                const Dropout& dropout, const VectorRef<const std::int32_t>& length_B,
                const MatrixRef<Real>& attention_NC, const VectorRef<Real>& log_sum_BHT,
                const MatrixRef<Real>& dattention_NC, const MatrixRef<Real>& dqkv_N3C,
                const Products<Real>& products) const;

  const HeadProducts<Real, Real>& products() const { return products_; }
  /// Scores of continued texts.
  const Vector<Real>& kept_scores() const { return kept_scores_; }

 private:
  AttentionPlan plan(const AttentionShape& shape) const;

  bool as_on_device_ = false;
  AttentionShape shape_;
  AttentionGrouping grouping_;  ///< grouping of the largest micro-batch
  Vector<Real> scores_, scores2_, kept_scores_;
  Vector<std::uintptr_t> addresses_;  ///< addresses of attention's operands
  HeadProducts<Real, Real> products_;
  /// Factors of attention in bf16, which requires instructions for it.
  Vector<Bf16> factors_, factors2_;
  HeadProducts<Real, Bf16> products_bf16_;
};

template <class Real>
struct Workspace {
  Products<Real> products;
  Matrix<Real> norm_NC, branch_NC;  ///< rows of one width
  Matrix<Real> wide_NF, wide2_NF;   ///< wide2_NF: in training only
  Vector<Real> column_sums;         ///< sums of parts of the rows; empty on hosts
  StageAttention<Real> attention;
  ImageWorkspace<Real> images;
  RelativeWorkspace<Real> relative;

  void reserve(const WorkspaceSize& size, const StageCapacity& capacity, bool as_on_device,
               const ViewAllocator& memory);
};

}  // namespace deltapipe
