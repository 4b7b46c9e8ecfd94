// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/gemm/gemv.hpp"
#include "models/blocks/transformer_block.hpp"

namespace deltapipe {

template <class Real>
MlpBlock<Real>::MlpBlock(ParameterArena<Real>& parameters, const MlpNames& names,
                         const MlpOptions& options, int bucket)
    : options_(options),
      norm_(parameters, names.norm, options.channels, options.epsilon, bucket),
      up_(parameters, names.up, options.channels, options.hidden, bucket, options.layout),
      down_(parameters, names.down, options.hidden, options.channels, bucket, options.layout) {}

template <class Real>
SavedTensors MlpBlock<Real>::saved() const {
  return {{"deltapipe::MlpBlock::hidden", options_.hidden}, {"deltapipe::MlpBlock::statistics", 2}};
}

template <class Real>
SavedTensors MlpBlock<Real>::gradients_to_keep() const {
  return {{"deltapipe::MlpBlock::hiddenGradient", options_.hidden},
          {"deltapipe::MlpBlock::downGradient", options_.channels}};
}

template <class Real>
void MlpBlock<Real>::forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::MlpBlock::forward");
  const int rows = x.extent_int(0);
  up_.forward(pass.exec,
              norm_.normalized(pass.exec, x, {pass.saved[kStatistics], rows}, pass.workspace),
              hidden(pass, rows), pass.workspace);
}

template <class Real>
void MlpBlock<Real>::forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                    const MatrixRef<Real>& y) const {
  const Workspace<Real>& w = pass.workspace;
  const int rows = x.extent_int(0);
  down_.residual_forward(pass.exec,
                         activated(pass, options_.activation, hidden(pass, rows), w.wide_NF), x,
                         pass.dropout(options_.dropout, options_.dropout_site),
                         narrow(w.branch_NC, rows, options_.channels), y, w);
}

template <class Real>
void MlpBlock<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                              const MatrixRef<Real>& dx, bool accumulate) const {
  const ProfilingRegion region("deltapipe::MlpBlock::backward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int C = options_.channels;
  const int F = options_.hidden;
  const MatrixRef<Real> dhidden =
      narrow(pass.postponed ? pass.postponed[kHiddenGradient] : w.wide_NF, rows, F);
  const MatrixRef<Real> dbranch =
      branch_gradient(pass, options_.dropout, options_.dropout_site, dx);
  const Operand<Real> dbranch_operand = w.products.gradient(exec, dbranch);
  down_.input_gradient(exec, dbranch_operand, dhidden, w);
  const Operand<Real> active =
      w.products.make_input(narrow(w.wide2_NF, rows, F), [&](const auto& y) {
        activation_backward<Real>(exec, options_.activation, hidden(pass, rows), dhidden, y);
      });
  if (pass.postponed)
    Kokkos::deep_copy(exec, narrow(pass.postponed[kDownGradient], rows, C), dbranch);
  else
    down_.parameter_gradient(exec, active, dbranch_operand, accumulate, w);
  backward_normalized_linear<Real>(exec, norm_, up_, x, {pass.saved[kStatistics], rows}, dhidden,
                                   dx, accumulate, pass.postponed == nullptr, w);
}

template <class Real>
void MlpBlock<Real>::backward_parameters(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                         bool accumulate) const {
  const ProfilingRegion region("deltapipe::MlpBlock::parametersBackward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int F = options_.hidden;
  down_.parameter_gradient(
      exec, activated(pass, options_.activation, hidden(pass, rows), w.wide2_NF),
      w.products.gradient(exec, narrow(pass.postponed[kDownGradient], rows, options_.channels)),
      accumulate, w);
  const Operand<Real> normal = norm_.normalized(exec, x, {pass.saved[kStatistics], rows}, w);
  up_.parameter_gradient(
      exec, normal, w.products.gradient(exec, narrow(pass.postponed[kHiddenGradient], rows, F)),
      accumulate, w);
}

template <class Real>
void MlpBlock<Real>::forward_few(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                 const MatrixRef<Real>& y) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, options_.channels);
  const MatrixRef<Real> hidden = this->hidden(pass, rows);
  const MatrixRef<Real> active = narrow(w.wide_NF, rows, options_.hidden);
  norm_.forward(exec, x, norm, {pass.saved[kStatistics], rows});
  few_rows_linear<Real>(exec, norm, up_.matrix(), up_.bias(), hidden);
  activation_forward<Real>(exec, options_.activation, hidden, active);
  few_rows_linear_residual<Real>(exec, active, down_.matrix(), down_.bias(), x, y);
}

template class MlpBlock<float>;
template class MlpBlock<double>;

}  // namespace deltapipe
