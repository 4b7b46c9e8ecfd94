// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/post_norm_block.hpp"

#include <algorithm>

#include "core/base/parallel/profiling_region.hpp"

namespace deltapipe {

namespace {

/// Saved matrices. kSum1 is a, kSum2 is b.
enum Saved { kQkv, kAttention, kLogSum, kSum1, kMean1, kRstd1, kHidden, kSum2, kMean2, kRstd2 };
enum Postponed { kQkvGradient, kOutGradient, kHiddenGradient, kDownGradient };

}  // namespace

template <class Real>
PostNormBlock<Real>::PostNormBlock(ParameterArena<Real>& parameters,
                                   const AttentionNames& attention_names,
                                   const AttentionOptions& attention, const MlpNames& mlp_names,
                                   const MlpOptions& mlp, int bucket)
    : attention_(attention),
      mlp_(mlp),
      qkv_(parameters, attention_names.qkv, attention.channels,
           3 * std::uint64_t(attention.channels), bucket, attention.layout),
      out_(parameters, attention_names.out, attention.channels, attention.channels, bucket,
           attention.layout),
      norm1_(parameters, attention_names.norm, attention.channels, attention.epsilon, bucket),
      up_(parameters, mlp_names.up, mlp.channels, mlp.hidden, bucket, mlp.layout),
      down_(parameters, mlp_names.down, mlp.hidden, mlp.channels, bucket, mlp.layout),
      norm2_(parameters, mlp_names.norm, mlp.channels, mlp.epsilon, bucket) {}

template <class Real>
SavedTensors PostNormBlock<Real>::saved() const {
  const int C = mlp_.channels;
  return {{"deltapipe::PostNormBlock::qkv", 3 * C},
          {"deltapipe::PostNormBlock::attention", C},
          {"deltapipe::PostNormBlock::logSum", attention_.heads},
          {"deltapipe::PostNormBlock::sum1", C},
          {"deltapipe::PostNormBlock::mean1", 1},
          {"deltapipe::PostNormBlock::rstd1", 1},
          {"deltapipe::PostNormBlock::hidden", mlp_.hidden},
          {"deltapipe::PostNormBlock::sum2", C},
          {"deltapipe::PostNormBlock::mean2", 1},
          {"deltapipe::PostNormBlock::rstd2", 1}};
}

template <class Real>
SavedTensors PostNormBlock<Real>::postponed() const {
  if (!trains_linear()) return {};
  const int C = mlp_.channels;
  return {{"deltapipe::PostNormBlock::qkvGradient", 3 * C},
          {"deltapipe::PostNormBlock::outGradient", C},
          {"deltapipe::PostNormBlock::hiddenGradient", mlp_.hidden},
          {"deltapipe::PostNormBlock::downGradient", C}};
}

template <class Real>
void PostNormBlock<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  size.raise(mlp_.channels, std::max(3 * mlp_.channels, mlp_.hidden));
  size.attention = shape(capacity.samples, capacity.tokens);
}

template <class Real>
void PostNormBlock<Real>::forward_saved(const BlockPass<Real>& pass,
                                        const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::PostNormBlock::forward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = mlp_.channels, F = mlp_.hidden;
  const MatrixRef<Real> qkv = narrow(pass.saved[kQkv], rows, 3 * C);
  const MatrixRef<Real> attention = narrow(pass.saved[kAttention], rows, C);
  const MatrixRef<Real> a = narrow(pass.saved[kSum1], rows, C);
  const MatrixRef<Real> hidden = narrow(pass.saved[kHidden], rows, F);
  const MatrixRef<Real> h = narrow(w.norm_NC, rows, C);
  const MatrixRef<Real> branch = narrow(w.branch_NC, rows, C);
  const auto dropout = [&](double probability, std::uint32_t site) {
    return dropout_of(pass.batch, pass.training ? probability : 0, site);
  };
  qkv_.forward(exec, w.products.input(exec, x), qkv, w);
  w.attention.forward(exec, shape(pass.batch.samples, pass.batch.tokens), qkv,
                      dropout(attention_.attention_dropout, attention_.dropout_site),
                      pass.batch.length_B, attention, elements_of(pass.saved[kLogSum]), w.products);
  out_.residual_forward(exec, w.products.input(exec, attention), x,
                        dropout(attention_.dropout, attention_.dropout_site + 1), branch, a, w);
  norm1_.forward(exec, a, h, column_of(pass.saved[kMean1], rows),
                 column_of(pass.saved[kRstd1], rows));
  up_.forward(exec, w.products.input(exec, h), hidden, w);
  const Operand<Real> activated = w.products.make_input(
      narrow(w.wide_NF, rows, F),
      [&](const auto& y) { activation_forward<Real>(exec, mlp_.activation, hidden, y); });
  down_.residual_forward(exec, activated, h, dropout(mlp_.dropout, mlp_.dropout_site), branch,
                         narrow(pass.saved[kSum2], rows, C), w);
}

template <class Real>
void PostNormBlock<Real>::forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                         const MatrixRef<Real>& y) const {
  const int rows = x.extent_int(0);
  norm2_.forward(pass.exec, narrow(pass.saved[kSum2], rows, mlp_.channels), y,
                 column_of(pass.saved[kMean2], rows), column_of(pass.saved[kRstd2], rows));
}

template <class Real>
void PostNormBlock<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                   const MatrixRef<Real>& gradient, bool accumulate) const {
  const ProfilingRegion region("deltapipe::PostNormBlock::backward");
  backward_mlp(pass, gradient, accumulate);
  backward_attention(pass, x, gradient, accumulate);
}

template <class Real>
MatrixRef<Real> PostNormBlock<Real>::branch_gradient(const BlockPass<Real>& pass, double dropout,
                                                     std::uint32_t site,
                                                     const MatrixRef<Real>& gradient) const {
  if (dropout == 0) return gradient;
  const MatrixRef<Real> dropped =
      narrow(pass.workspace.norm_NC, gradient.extent_int(0), gradient.extent_int(1));
  apply_dropout<Real>(pass.exec, dropout_of(pass.batch, dropout, site), gradient, dropped);
  return dropped;
}

template <class Real>
void PostNormBlock<Real>::backward_mlp(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                                       bool accumulate) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const Matrix<Real>* const postponed = pass.postponed;
  const int rows = gradient.extent_int(0), C = mlp_.channels, F = mlp_.hidden;
  const MatrixRef<Real> a = narrow(pass.saved[kSum1], rows, C);
  const MatrixRef<Real> b = narrow(pass.saved[kSum2], rows, C);
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, C);
  const MatrixRef<Real> dhidden =
      narrow(postponed ? postponed[kHiddenGradient] : w.wide_NF, rows, F);
  const VectorRef<Real> mean1 = column_of(pass.saved[kMean1], rows);
  const VectorRef<Real> rstd1 = column_of(pass.saved[kRstd1], rows);
  const VectorRef<Real> mean2 = column_of(pass.saved[kMean2], rows);
  const VectorRef<Real> rstd2 = column_of(pass.saved[kRstd2], rows);

  // After a recomputation, which ends before norm2, its statistics are those of another block.
  norm2_.forward(exec, b, norm, mean2, rstd2);
  norm2_.parameter_gradient(exec, gradient, b, mean2, rstd2, accumulate, w);
  norm2_.backward_in_place(exec, gradient, b, mean2, rstd2, norm);

  const MatrixRef<Real> dbranch = branch_gradient(pass, mlp_.dropout, mlp_.dropout_site, gradient);
  const Operand<Real> dbranch_operand = w.products.gradient(exec, dbranch);
  down_.input_gradient(exec, dbranch_operand, dhidden, w);
  const Operand<Real> activated =
      w.products.make_input(narrow(w.wide2_NF, rows, F), [&](const auto& y) {
        activation_backward<Real>(exec, mlp_.activation, narrow(pass.saved[kHidden], rows, F),
                                  dhidden, y);
      });
  if (postponed)
    Kokkos::deep_copy(exec, narrow(postponed[kDownGradient], rows, C), dbranch);
  else
    down_.parameter_gradient(exec, activated, dbranch_operand, accumulate, w);

  const Operand<Real> dhidden_operand = w.products.gradient(exec, dhidden);
  up_.input_gradient(exec, dhidden_operand, gradient, w, true);
  norm1_.parameter_gradient(exec, gradient, a, mean1, rstd1, accumulate, w);
  const Operand<Real> h = w.products.make_input(
      norm, [&](const auto& y) { norm1_.backward_in_place(exec, gradient, a, mean1, rstd1, y); });
  if (!postponed) up_.parameter_gradient(exec, h, dhidden_operand, accumulate, w);
}

template <class Real>
void PostNormBlock<Real>::backward_attention(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                             const MatrixRef<Real>& gradient,
                                             bool accumulate) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const Matrix<Real>* const postponed = pass.postponed;
  const int rows = x.extent_int(0), C = attention_.channels;
  const MatrixRef<Real> attention = narrow(pass.saved[kAttention], rows, C);
  const MatrixRef<Real> dattention = narrow(w.branch_NC, rows, C);
  const MatrixRef<Real> dqkv = narrow(postponed ? postponed[kQkvGradient] : w.wide_NF, rows, 3 * C);

  const MatrixRef<Real> dbranch =
      branch_gradient(pass, attention_.dropout, attention_.dropout_site + 1, gradient);
  const Operand<Real> dbranch_operand = w.products.gradient(exec, dbranch);
  if (postponed)
    Kokkos::deep_copy(exec, narrow(postponed[kOutGradient], rows, C), dbranch);
  else
    out_.parameter_gradient(exec, w.products.input(exec, attention), dbranch_operand, accumulate,
                            w);
  out_.input_gradient(exec, dbranch_operand, dattention, w);
  w.attention.backward(
      exec, shape(pass.batch.samples, pass.batch.tokens), narrow(pass.saved[kQkv], rows, 3 * C),
      dropout_of(pass.batch, attention_.attention_dropout, attention_.dropout_site),
      pass.batch.length_B, attention, elements_of(pass.saved[kLogSum]), dattention, dqkv,
      w.products);
  const Operand<Real> dqkv_operand = w.products.gradient(exec, dqkv);
  if (!postponed)
    qkv_.parameter_gradient(exec, w.products.input(exec, x), dqkv_operand, accumulate, w);
  qkv_.input_gradient(exec, dqkv_operand, gradient, w, true);
}

template <class Real>
void PostNormBlock<Real>::backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                              bool accumulate) const {
  const ProfilingRegion region("deltapipe::PostNormBlock::parametersBackward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = mlp_.channels, F = mlp_.hidden;
  const auto gradient = [&](int tensor, int columns) {
    return w.products.gradient(exec, narrow(pass.postponed[tensor], rows, columns));
  };
  const Operand<Real> activated =
      w.products.make_input(narrow(w.wide2_NF, rows, F), [&](const auto& y) {
        activation_forward<Real>(exec, mlp_.activation, narrow(pass.saved[kHidden], rows, F), y);
      });
  down_.parameter_gradient(exec, activated, gradient(kDownGradient, C), accumulate, w);
  const Operand<Real> h = norm1_.normalized(exec, narrow(pass.saved[kSum1], rows, C),
                                            column_of(pass.saved[kMean1], rows),
                                            column_of(pass.saved[kRstd1], rows), w);
  up_.parameter_gradient(exec, h, gradient(kHiddenGradient, F), accumulate, w);
  const Operand<Real> attention = w.products.input(exec, narrow(pass.saved[kAttention], rows, C));
  out_.parameter_gradient(exec, attention, gradient(kOutGradient, C), accumulate, w);
  qkv_.parameter_gradient(exec, w.products.input(exec, x), gradient(kQkvGradient, 3 * C),
                          accumulate, w);
}

template class PostNormBlock<float>;
template class PostNormBlock<double>;

}  // namespace deltapipe
