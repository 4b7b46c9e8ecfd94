// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/post_norm_block.hpp"

#include <utility>

#include "core/base/parallel/profiling_region.hpp"

namespace deltapipe {

template <class Real>
PostNormBlock<Real>::PostNormBlock(ParameterArena<Real>& parameters,
                                   std::unique_ptr<SelfAttention<Real>> attention,
                                   const PostNormNames& names, const AttentionOptions& options,
                                   const MlpOptions& mlp, int bucket)
    : attention_(std::move(attention)),
      attention_saved_(attention_->saved().size()),
      attention_postponed_(attention_->postponed().size()),
      options_(options),
      mlp_(mlp),
      out_(parameters, names.out, options.channels, options.channels, bucket, options.layout),
      norm1_(parameters, names.attention_norm, options.channels, options.epsilon, bucket),
      up_(parameters, names.mlp.up, mlp.channels, mlp.hidden, bucket, mlp.layout),
      down_(parameters, names.mlp.down, mlp.hidden, mlp.channels, bucket, mlp.layout),
      norm2_(parameters, names.mlp.norm, mlp.channels, mlp.epsilon, bucket) {}

template <class Real>
SavedTensors PostNormBlock<Real>::saved() const {
  const int C = mlp_.channels;
  SavedTensors tensors = attention_->saved();
  tensors.insert(tensors.end(), {{"deltapipe::PostNormBlock::attention", C},
                                 {"deltapipe::PostNormBlock::sum1", C},
                                 {"deltapipe::PostNormBlock::statistics1", 2},
                                 {"deltapipe::PostNormBlock::hidden", mlp_.hidden},
                                 {"deltapipe::PostNormBlock::sum2", C},
                                 {"deltapipe::PostNormBlock::statistics2", 2}});
  return tensors;
}

template <class Real>
SavedTensors PostNormBlock<Real>::postponed() const {
  if (!trains_linear()) return {};
  const int C = mlp_.channels;
  SavedTensors tensors = attention_->postponed();
  tensors.insert(tensors.end(), {{"deltapipe::PostNormBlock::outGradient", C},
                                 {"deltapipe::PostNormBlock::hiddenGradient", mlp_.hidden},
                                 {"deltapipe::PostNormBlock::downGradient", C}});
  return tensors;
}

template <class Real>
void PostNormBlock<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  attention_->require(capacity, size);
  size.raise(mlp_.channels, mlp_.hidden);
}

template <class Real>
void PostNormBlock<Real>::forward_saved(const BlockPass<Real>& pass,
                                        const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::PostNormBlock::forward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = mlp_.channels, F = mlp_.hidden;
  const MatrixRef<Real> attention = narrow(saved(pass, kAttention), rows, C);
  const MatrixRef<Real> a = narrow(saved(pass, kSum1), rows, C);
  const MatrixRef<Real> hidden = narrow(saved(pass, kHidden), rows, F);
  const MatrixRef<Real> h = narrow(w.norm_NC, rows, C);
  const MatrixRef<Real> branch = narrow(w.branch_NC, rows, C);
  attention_->forward(pass, x, attention);
  out_.residual_forward(exec, w.products.input(exec, attention), x,
                        pass.dropout(options_.dropout, options_.dropout_site + 1), branch, a, w);
  norm1_.forward(exec, a, h, {saved(pass, kStatistics1), rows});
  up_.forward(exec, w.products.input(exec, h), hidden, w);
  down_.residual_forward(exec, activated(pass, mlp_.activation, hidden, w.wide_NF), h,
                         pass.dropout(mlp_.dropout, mlp_.dropout_site), branch,
                         narrow(saved(pass, kSum2), rows, C), w);
}

template <class Real>
void PostNormBlock<Real>::forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                         const MatrixRef<Real>& y) const {
  const int rows = x.extent_int(0);
  norm2_.forward(pass.exec, narrow(saved(pass, kSum2), rows, mlp_.channels), y,
                 {saved(pass, kStatistics2), rows});
}

template <class Real>
void PostNormBlock<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                   const MatrixRef<Real>& gradient, bool accumulate) const {
  const ProfilingRegion region("deltapipe::PostNormBlock::backward");
  backward_mlp(pass, gradient, accumulate);
  backward_attention(pass, x, gradient, accumulate);
}

template <class Real>
void PostNormBlock<Real>::backward_mlp(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                                       bool accumulate) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = gradient.extent_int(0), C = mlp_.channels, F = mlp_.hidden;
  const MatrixRef<Real> a = narrow(saved(pass, kSum1), rows, C);
  const MatrixRef<Real> b = narrow(saved(pass, kSum2), rows, C);
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, C);
  const MatrixRef<Real> dhidden =
      narrow(pass.postponed ? postponed(pass, kHiddenGradient) : w.wide_NF, rows, F);
  const NormStatistics<Real> statistics1(saved(pass, kStatistics1), rows);
  const NormStatistics<Real> statistics2(saved(pass, kStatistics2), rows);

  // After a recomputation, which ends before norm2, its statistics are those of another block.
  norm2_.forward(exec, b, norm, statistics2);
  norm2_.parameter_gradient(exec, gradient, b, statistics2, accumulate, w);
  norm2_.backward_in_place(exec, gradient, b, statistics2, norm);

  const MatrixRef<Real> dbranch = branch_gradient(pass, mlp_.dropout, mlp_.dropout_site, gradient);
  const Operand<Real> dbranch_operand = w.products.gradient(exec, dbranch);
  down_.input_gradient(exec, dbranch_operand, dhidden, w);
  const Operand<Real> active =
      w.products.make_input(narrow(w.wide2_NF, rows, F), [&](const auto& y) {
        activation_backward<Real>(exec, mlp_.activation, narrow(saved(pass, kHidden), rows, F),
                                  dhidden, y);
      });
  if (pass.postponed)
    Kokkos::deep_copy(exec, narrow(postponed(pass, kDownGradient), rows, C), dbranch);
  else
    down_.parameter_gradient(exec, active, dbranch_operand, accumulate, w);

  const Operand<Real> dhidden_operand = w.products.gradient(exec, dhidden);
  up_.input_gradient(exec, dhidden_operand, gradient, w, true);
  norm1_.parameter_gradient(exec, gradient, a, statistics1, accumulate, w);
  const Operand<Real> h = w.products.make_input(
      norm, [&](const auto& y) { norm1_.backward_in_place(exec, gradient, a, statistics1, y); });
  if (!pass.postponed) up_.parameter_gradient(exec, h, dhidden_operand, accumulate, w);
}

template <class Real>
void PostNormBlock<Real>::backward_attention(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                             const MatrixRef<Real>& gradient,
                                             bool accumulate) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = mlp_.channels;
  const MatrixRef<Real> attention = narrow(saved(pass, kAttention), rows, C);
  const MatrixRef<Real> dattention = narrow(w.branch_NC, rows, C);

  const MatrixRef<Real> dbranch =
      branch_gradient(pass, options_.dropout, options_.dropout_site + 1, gradient);
  const Operand<Real> dbranch_operand = w.products.gradient(exec, dbranch);
  if (pass.postponed)
    Kokkos::deep_copy(exec, narrow(postponed(pass, kOutGradient), rows, C), dbranch);
  else
    out_.parameter_gradient(exec, w.products.input(exec, attention), dbranch_operand, accumulate,
                            w);
  out_.input_gradient(exec, dbranch_operand, dattention, w);
  attention_->backward(pass, x, attention, dattention, gradient, accumulate);
}

template <class Real>
void PostNormBlock<Real>::backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                              bool accumulate) const {
  const ProfilingRegion region("deltapipe::PostNormBlock::parametersBackward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = mlp_.channels, F = mlp_.hidden;
  const auto gradient = [&](Postponed tensor, int columns) {
    return w.products.gradient(exec, narrow(postponed(pass, tensor), rows, columns));
  };
  const MatrixRef<Real> hidden = narrow(saved(pass, kHidden), rows, F);
  down_.parameter_gradient(exec, activated(pass, mlp_.activation, hidden, w.wide2_NF),
                           gradient(kDownGradient, C), accumulate, w);
  const Operand<Real> h = norm1_.normalized(exec, narrow(saved(pass, kSum1), rows, C),
                                            {saved(pass, kStatistics1), rows}, w);
  up_.parameter_gradient(exec, h, gradient(kHiddenGradient, F), accumulate, w);
  const Operand<Real> attention = w.products.input(exec, narrow(saved(pass, kAttention), rows, C));
  out_.parameter_gradient(exec, attention, gradient(kOutGradient, C), accumulate, w);
  attention_->backward_parameters(pass, x, accumulate);
}

template class PostNormBlock<float>;
template class PostNormBlock<double>;

}  // namespace deltapipe
