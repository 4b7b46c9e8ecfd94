// SPDX-License-Identifier: BSD-3-Clause
// y = x W + b, and the operations fused after the product: bias, GELU, dropout, residual. W is
// stored [in, out], as Hugging Face's GPT-2 stores it, or [out, in], as torch.nn.Linear does; the
// product's `op_w` is Transpose::yes then.
#pragma once

#include "core/base/numeric/random.hpp"
#include "core/base/parallel/row.hpp"
#include "core/kernels/gemm/products.hpp"
#include "core/kernels/layers/activations.hpp"
#include "core/kernels/layers/column_sums.hpp"
#include "core/kernels/layers/math.hpp"

namespace deltapipe {

/// Inverted dropout of one site in the network: an element survives with probability
/// 1 - probability and is then scaled by its inverse. Rows belong to samples of `tokens` rows.
struct Dropout {
  float probability = 0;
  RandomStream stream;
  VectorRef<const std::uint64_t> sample_id_B;
  int tokens = 0;
  int most_tokens = 0;  ///< attention: tokens that a sample may have in any micro-batch
};

/// Computes the factors (0 or 1/(1-p)) of elements 4*block ... 4*block+3 of the micro-batch's
/// sample b.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION void dropout_factors_at(const Dropout& dropout, int b,
                                                    std::uint32_t block, Real factor[4]) {
  std::uint32_t bits[4];
  dropout.stream.draw(dropout.sample_id_B(b), block, bits);
  const float threshold = dropout.probability * 16777216.0f;
  const Real kept = Real(1) / Real(1.0f - dropout.probability);
  for (int i = 0; i < 4; ++i)
    factor[i] = static_cast<float>(bits[i] >> 8) < threshold ? Real(0) : kept;
}

/// The same for elements 4*block ... of row n, which has `channels` elements.
template <class Real>
KOKKOS_FORCEINLINE_FUNCTION void dropout_factors(const Dropout& dropout, int n, int channels,
                                                 int block, Real factor[4]) {
  const std::uint32_t blocks_a_row = static_cast<std::uint32_t>((channels + 3) / 4);
  const std::uint32_t row = static_cast<std::uint32_t>(n % dropout.tokens);
  dropout_factors_at(dropout, n / dropout.tokens, row * blocks_a_row + block, factor);
}

/// y_NF = b_F in every row.
template <class Real>
void fill_rows(const ExecSpace& exec, const VectorRef<const Real>& b_F,
               const MatrixRef<Real>& y_NF) {
  for_elements(
      "deltapipe::Linear::fillRows", exec, y_NF.extent_int(0), y_NF.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int f) { y_NF(n, f) = b_F(f); });
}

/// y_NF = x_NF + b_F
template <class Real>
void add_bias(const ExecSpace& exec, const MatrixRef<const Real>& x_NF,
              const VectorRef<const Real>& b_F, const MatrixRef<Real>& y_NF) {
  for_elements(
      "deltapipe::Linear::addBias", exec, y_NF.extent_int(0), y_NF.extent_int(1),
      DELTAPIPE_LAMBDA(int n, int f) { y_NF(n, f) = x_NF(n, f) + b_F(f); });
}

/// y_NO = x_NI op(W) + b_O. The product is added to the bias: a BLAS on a processor would otherwise
/// clear y first, and the bias would need another pass.
template <class Real>
void linear_forward(const ExecSpace& exec, const Operand<Real>& x_NI, const Operand<Real>& w,
                    const VectorRef<const Real>& b_O, const MatrixRef<Real>& y_NO,
                    const Products<Real>& product = {}, Transpose op_w = Transpose::no) {
  fill_rows<Real>(exec, b_O, y_NO);
  product(exec, Transpose::no, op_w, x_NI, w, Real(1), y_NO);
}

/// db_F = sum over rows of dy_NF, added to db_F if `accumulate` is set. Does nothing if db_F is
/// empty. Sums are those of sum_columns().
template <class Real>
void bias_gradient(const ExecSpace& exec, const MatrixRef<const Real>& dy_NF, bool accumulate,
                   const VectorRef<Real>& db_F, const VectorRef<Real>& tree_workspace = {}) {
  if (db_F.extent(0) == 0) return;
  const int rows = dy_NF.extent_int(0);
  const int width = dy_NF.extent_int(1);
  sum_columns<Real>(
      "deltapipe::Linear::biasGradient", exec, rows, width, tree_workspace,
      DELTAPIPE_LAMBDA(int n, int c) { return dy_NF(n, c); },
      DELTAPIPE_LAMBDA(int c, Real sum) { db_F(c) = accumulate ? db_F(c) + sum : sum; });
}

/// Computes weight and bias gradients of y = x op(W) + b. Skips frozen parameters, whose gradients
/// have no elements.
template <class Real>
void linear_parameter_gradient(const ExecSpace& exec, const Operand<Real>& x_NI,
                               const Operand<Real>& dy_NO, bool accumulate,
                               const MatrixRef<Real>& dw, const VectorRef<Real>& db_O,
                               const Products<Real>& product = {},
                               const VectorRef<Real>& tree_workspace = {},
                               Transpose op_w = Transpose::no) {
  const bool is_transposed = op_w == Transpose::yes;
  if (dw.size() > 0)
    product(exec, Transpose::yes, Transpose::no, is_transposed ? dy_NO : x_NI,
            is_transposed ? x_NI : dy_NO, Real(accumulate ? 1 : 0), dw);
  bias_gradient<Real>(exec, dy_NO.values, accumulate, db_O, tree_workspace);
}

/// out_NC = residual_NC + dropout(branch_NC + b_C)
template <class Real>
void bias_dropout_residual(const ExecSpace& exec, const MatrixRef<const Real>& residual_NC,
                           const MatrixRef<const Real>& branch_NC, const VectorRef<const Real>& b_C,
                           const Dropout& dropout, const MatrixRef<Real>& out_NC) {
  const int channels = out_NC.extent_int(1);
  for_rows(
      "deltapipe::Residual::dropout", row_policy(exec, out_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        const Real* const residual = &residual_NC(n, 0);
        const Real* const branch = &branch_NC(n, 0);
        const Real* const b = b_C.data();
        Real* const out = &out_NC(n, 0);
        row_for(team, (channels + 3) / 4, [&](int block) {
          Real factor[4];
          dropout_factors(dropout, n, channels, block, factor);
          for (int i = 0, c = 4 * block; i < 4 && c < channels; ++i, ++c)
            out[c] = residual[c] + factor[i] * (branch[c] + b[c]);
        });
      });
}

/// out_NC = residual_NC + dropout(x_NI op(W) + b_C). `branch_NC` is workspace, used with dropout.
template <class Real>
void linear_residual_forward(const ExecSpace& exec, const Operand<Real>& x_NI,
                             const Operand<Real>& w, const VectorRef<const Real>& b_C,
                             const MatrixRef<const Real>& residual_NC, const Dropout& dropout,
                             const MatrixRef<Real>& branch_NC, const MatrixRef<Real>& out_NC,
                             const Products<Real>& product = {}, Transpose op_w = Transpose::no) {
  if (dropout.probability > 0) {
    product(exec, Transpose::no, op_w, x_NI, w, Real(0), branch_NC);
    bias_dropout_residual<Real>(exec, residual_NC, branch_NC, b_C, dropout, out_NC);
    return;
  }
  add_bias<Real>(exec, residual_NC, b_C, out_NC);
  product(exec, Transpose::no, op_w, x_NI, w, Real(1), out_NC);
}

/// y_NC = x_NC times the dropout factors of its site: the forward pass of embeddings and the
/// backward pass of every site. x and y may be the same memory.
template <class Real>
void apply_dropout(const ExecSpace& exec, const Dropout& dropout, const MatrixRef<const Real>& x_NC,
                   const MatrixRef<Real>& y_NC) {
  const int channels = x_NC.extent_int(1);
  for_rows(
      "deltapipe::Dropout::apply", row_policy(exec, x_NC.extent_int(0)),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        const Real* const x = &x_NC(n, 0);
        Real* const y = &y_NC(n, 0);
        row_for(team, (channels + 3) / 4, [&](int block) {
          Real factor[4];
          dropout_factors(dropout, n, channels, block, factor);
          for (int i = 0, c = 4 * block; i < 4 && c < channels; ++i, ++c) y[c] = factor[i] * x[c];
        });
      });
}

}  // namespace deltapipe
