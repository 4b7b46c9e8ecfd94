// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/attention/cached_attention.hpp"
#include "core/kernels/gemm/gemv.hpp"
#include "models/blocks/transformer_branches.hpp"

namespace deltapipe {

template <class Real>
AttentionBranch<Real>::AttentionBranch(ParameterArena<Real>& parameters,
                                       const AttentionNames& names, const AttentionOptions& options,
                                       int bucket)
    : options_(options),
      norm_(parameters, names.norm, options.channels, options.epsilon, bucket),
      qkv_(parameters, names.qkv, options.channels, 3 * std::uint64_t(options.channels), bucket,
           options.layout),
      out_(parameters, names.out, options.channels, options.channels, bucket, options.layout) {}

template <class Real>
SavedTensors AttentionBranch<Real>::saved() const {
  return {{"deltapipe::AttentionBranch::qkv", 3 * options_.channels},
          {"deltapipe::AttentionBranch::attention", options_.channels},
          {"deltapipe::AttentionBranch::logSum", options_.heads},
          {"deltapipe::AttentionBranch::statistics", 2}};
}

template <class Real>
SavedTensors AttentionBranch<Real>::postponed() const {
  return {{"deltapipe::AttentionBranch::qkvGradient", 3 * options_.channels},
          {"deltapipe::AttentionBranch::outGradient", options_.channels}};
}

template <class Real>
void AttentionBranch<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  size.raise(options_.channels, 3 * options_.channels);
  size.attention = shape(capacity.samples, capacity.tokens);
}

template <class Real>
void AttentionBranch<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                    const MatrixRef<Real>& y) const {
  const ProfilingRegion region("deltapipe::AttentionBranch::forward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int C = options_.channels;
  const MatrixRef<Real> qkv = narrow(pass.saved[kQkv], rows, 3 * C);
  const MatrixRef<Real> attention = narrow(pass.saved[kAttention], rows, C);

  qkv_.forward(exec, norm_.normalized(exec, x, {pass.saved[kStatistics], rows}, w), qkv, w);
  w.attention.forward(exec, shape(pass.batch.samples, pass.batch.tokens), qkv,
                      pass.dropout(options_.attention_dropout, options_.dropout_site),
                      pass.batch.length_B, attention, elements_of(pass.saved[kLogSum]), w.products);
  out_.residual_forward(exec, w.products.input(exec, attention), x,
                        pass.dropout(options_.dropout, options_.dropout_site + 1),
                        narrow(w.branch_NC, rows, C), y, w);
}

template <class Real>
void AttentionBranch<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                     const MatrixRef<Real>& dx, bool accumulate) const {
  const ProfilingRegion region("deltapipe::AttentionBranch::backward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int C = options_.channels;
  const MatrixRef<Real> branch = narrow(w.branch_NC, rows, C);
  const MatrixRef<Real> dqkv =
      narrow(pass.postponed ? pass.postponed[kQkvGradient] : w.wide_NF, rows, 3 * C);
  const MatrixRef<Real> attention = narrow(pass.saved[kAttention], rows, C);
  const MatrixRef<Real> dbranch =
      branch_gradient(pass, options_.dropout, options_.dropout_site + 1, dx);
  const Operand<Real> dbranch_operand = w.products.gradient(exec, dbranch);
  if (pass.postponed)
    Kokkos::deep_copy(exec, narrow(pass.postponed[kOutGradient], rows, C), dbranch);
  else
    out_.parameter_gradient(exec, w.products.input(exec, attention), dbranch_operand, accumulate,
                            w);
  out_.input_gradient(exec, dbranch_operand, branch, w);
  w.attention.backward(
      exec, shape(pass.batch.samples, pass.batch.tokens), narrow(pass.saved[kQkv], rows, 3 * C),
      pass.dropout(options_.attention_dropout, options_.dropout_site), pass.batch.length_B,
      attention, elements_of(pass.saved[kLogSum]), branch, dqkv, w.products);
  backward_normalized_linear<Real>(exec, norm_, qkv_, x, {pass.saved[kStatistics], rows}, dqkv, dx,
                                   accumulate, pass.postponed == nullptr, w);
}

template <class Real>
void AttentionBranch<Real>::backward_parameters(const BlockPass<Real>& pass,
                                                const MatrixRef<Real>& x, bool accumulate) const {
  const ProfilingRegion region("deltapipe::AttentionBranch::parametersBackward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int C = options_.channels;
  const Operand<Real> attention = w.products.input(exec, narrow(pass.saved[kAttention], rows, C));
  out_.parameter_gradient(exec, attention,
                          w.products.gradient(exec, narrow(pass.postponed[kOutGradient], rows, C)),
                          accumulate, w);
  const Operand<Real> normal = norm_.normalized(exec, x, {pass.saved[kStatistics], rows}, w);
  qkv_.parameter_gradient(
      exec, normal, w.products.gradient(exec, narrow(pass.postponed[kQkvGradient], rows, 3 * C)),
      accumulate, w);
}

template <class Real>
void AttentionBranch<Real>::reserve_text(const StageCapacity& capacity,
                                         const ViewAllocator& memory) {
  kept_T2C_ = memory.uninitialized<Matrix<Real>>(MemoryUse::activations,
                                                 "deltapipe::AttentionBranch::keysAndValues",
                                                 capacity.tokens, 2 * options_.channels);
}

template <class Real>
void AttentionBranch<Real>::continue_text(const BlockPass<Real>& pass, int kept,
                                          const MatrixRef<Real>& x,
                                          const MatrixRef<Real>& y) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int C = options_.channels;
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, C);
  const MatrixRef<Real> qkv = narrow(pass.saved[kQkv], rows, 3 * C);
  const MatrixRef<Real> attention = narrow(pass.saved[kAttention], rows, C);
  const MatrixRef<Real> keys_and_values = narrow(kept_T2C_, kept_T2C_.extent_int(0), 2 * C);

  norm_.forward(exec, x, norm, {pass.saved[kStatistics], rows});
  few_rows_linear<Real>(exec, norm, qkv_.matrix(), qkv_.bias(), qkv);
  keep_keys_and_values<Real>(exec, qkv, kept, keys_and_values);
  cached_attention_forward<Real>(exec, shape(1, kept_T2C_.extent_int(0)), kept, qkv,
                                 keys_and_values, w.attention.kept_scores(), attention,
                                 elements_of(pass.saved[kLogSum]), w.attention.products());
  few_rows_linear_residual<Real>(exec, attention, out_.matrix(), out_.bias(), x, y);
}

template class AttentionBranch<float>;
template class AttentionBranch<double>;

}  // namespace deltapipe
