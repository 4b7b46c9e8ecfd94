// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/gemm/gemv.hpp"
#include "models/blocks/transformer_branches.hpp"

namespace deltapipe {

template <class Real>
MlpBranch<Real>::MlpBranch(ParameterArena<Real>& parameters, const MlpNames& names,
                           const MlpOptions& options, int bucket)
    : options_(options),
      norm_(parameters, names.norm, options.channels, options.epsilon, bucket),
      up_(parameters, names.up, options.channels, options.hidden, bucket, options.layout),
      down_(parameters, names.down, options.hidden, options.channels, bucket, options.layout) {}

template <class Real>
SavedTensors MlpBranch<Real>::saved() const {
  return {{"deltapipe::MlpBranch::hidden", options_.hidden},
          {"deltapipe::MlpBranch::mean", 1},
          {"deltapipe::MlpBranch::rstd", 1}};
}

template <class Real>
SavedTensors MlpBranch<Real>::postponed() const {
  return {{"deltapipe::MlpBranch::hiddenGradient", options_.hidden},
          {"deltapipe::MlpBranch::downGradient", options_.channels}};
}

/// Returns the activation of the hidden layer in the form that the next layer takes.
template <class Real>
Operand<Real> MlpBranch<Real>::activated(const ExecSpace& exec, const MatrixRef<Real>& hidden,
                                         const Matrix<Real>& memory,
                                         const Workspace<Real>& w) const {
  return w.products.make_input(
      narrow(memory, hidden.extent_int(0), hidden.extent_int(1)),
      [&](const auto& y) { activation_forward<Real>(exec, options_.activation, hidden, y); });
}

template <class Real>
void MlpBranch<Real>::forward_saved(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                                    const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::MlpBranch::forward");
  const int rows = x.extent_int(0);
  up_.forward(pass.exec,
              norm_.normalized(pass.exec, x, column_of(saved[kMean], rows),
                               column_of(saved[kRstd], rows), pass.workspace),
              narrow(saved[kHidden], rows, options_.hidden), pass.workspace);
}

template <class Real>
void MlpBranch<Real>::forward_output(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                                     const MatrixRef<Real>& x, const MatrixRef<Real>& y) const {
  const Workspace<Real>& w = pass.workspace;
  const int rows = x.extent_int(0);
  const double drop = pass.training ? options_.dropout : 0;
  down_.residual_forward(
      pass.exec, activated(pass.exec, narrow(saved[kHidden], rows, options_.hidden), w.wide_NF, w),
      x, dropout_of(pass.batch, drop, options_.dropout_site),
      narrow(w.branch_NC, rows, options_.channels), y, w);
}

template <class Real>
void MlpBranch<Real>::backward(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                               const Matrix<Real>* postponed, const MatrixRef<Real>& x,
                               const MatrixRef<Real>& dx, bool accumulate) const {
  const ProfilingRegion region("deltapipe::MlpBranch::backward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int C = options_.channels;
  const int F = options_.hidden;
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, C);
  const MatrixRef<Real> dhidden =
      narrow(postponed ? postponed[kHiddenGradient] : w.wide_NF, rows, F);
  const bool drop = options_.dropout > 0;
  const MatrixRef<Real> dbranch = drop ? norm : dx;

  if (drop)
    apply_dropout<Real>(exec, dropout_of(pass.batch, options_.dropout, options_.dropout_site), dx,
                        dbranch);
  const Operand<Real> dbranch_operand = w.products.gradient(exec, dbranch);
  down_.input_gradient(exec, dbranch_operand, dhidden, w);
  const Operand<Real> activated =
      w.products.make_input(narrow(w.wide2_NF, rows, F), [&](const auto& y) {
        activation_backward<Real>(exec, options_.activation, narrow(saved[kHidden], rows, F),
                                  dhidden, y);
      });
  if (postponed)
    Kokkos::deep_copy(exec, narrow(postponed[kDownGradient], rows, C), dbranch);
  else
    down_.parameter_gradient(exec, activated, dbranch_operand, accumulate, w);
  backward_normalized_linear<Real>(exec, norm_, up_, x, column_of(saved[kMean], rows),
                                   column_of(saved[kRstd], rows), dhidden, dx, accumulate,
                                   postponed == nullptr, w);
}

template <class Real>
void MlpBranch<Real>::backward_parameters(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                                          const Matrix<Real>* postponed, const MatrixRef<Real>& x,
                                          bool accumulate) const {
  const ProfilingRegion region("deltapipe::MlpBranch::parametersBackward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const int F = options_.hidden;
  const Operand<Real> hidden = activated(exec, narrow(saved[kHidden], rows, F), w.wide2_NF, w);
  down_.parameter_gradient(
      exec, hidden,
      w.products.gradient(exec, narrow(postponed[kDownGradient], rows, options_.channels)),
      accumulate, w);
  const Operand<Real> normal =
      norm_.normalized(exec, x, column_of(saved[kMean], rows), column_of(saved[kRstd], rows), w);
  up_.parameter_gradient(exec, normal,
                         w.products.gradient(exec, narrow(postponed[kHiddenGradient], rows, F)),
                         accumulate, w);
}

template <class Real>
void MlpBranch<Real>::continue_text(const BlockPass<Real>& pass, const Matrix<Real>* saved,
                                    const MatrixRef<Real>& x, const MatrixRef<Real>& y) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0);
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, options_.channels);
  const MatrixRef<Real> hidden = narrow(saved[kHidden], rows, options_.hidden);
  const MatrixRef<Real> active = narrow(w.wide_NF, rows, options_.hidden);
  norm_.forward(exec, x, norm, column_of(saved[kMean], rows), column_of(saved[kRstd], rows));
  few_rows_linear<Real>(exec, norm, up_.matrix(), up_.bias(), hidden);
  activation_forward<Real>(exec, options_.activation, hidden, active);
  few_rows_linear_residual<Real>(exec, active, down_.matrix(), down_.bias(), x, y);
}

template class MlpBranch<float>;
template class MlpBranch<double>;

}  // namespace deltapipe
