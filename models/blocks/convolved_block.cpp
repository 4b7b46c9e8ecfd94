// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/convolved_block.hpp"

#include <utility>

#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/add_values.hpp"

namespace deltapipe {

template <class Real>
ConvolvedBlock<Real>::ConvolvedBlock(ParameterArena<Real>& parameters,
                                     std::unique_ptr<Block<Real>> block,
                                     const std::string& convolution, const std::string& norm,
                                     const TextConvolutionOptions& options, int bucket)
    : block_(std::move(block)),
      block_saved_(block_->saved().size()),
      options_(options),
      convolution_(parameters, convolution,
                   {std::uint64_t(options.channels), std::uint64_t(options.channels),
                    std::uint64_t(options.width)},
                   bucket),
      norm_(parameters, norm, options.channels, options.epsilon, bucket) {}

template <class Real>
SavedTensors ConvolvedBlock<Real>::saved() const {
  SavedTensors tensors = block_->saved();
  tensors.insert(tensors.end(), {{"deltapipe::ConvolvedBlock::convolved", options_.channels},
                                 {"deltapipe::ConvolvedBlock::sum", options_.channels},
                                 {"deltapipe::ConvolvedBlock::statistics", 2}});
  return tensors;
}

template <class Real>
void ConvolvedBlock<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  block_->require(capacity, size);
  size.raise(options_.channels, options_.width * options_.channels);
}

template <class Real>
Operand<Real> ConvolvedBlock<Real>::windows_of(const BlockPass<Real>& pass,
                                               const MatrixRef<Real>& x) const {
  const Workspace<Real>& w = pass.workspace;
  return w.products.make_input(
      narrow(w.wide_NF, x.extent_int(0), options_.width * options_.channels),
      [&](const auto& y) { gather_windows<Real>(pass.exec, windows(pass), x, y); });
}

template <class Real>
void ConvolvedBlock<Real>::forward_saved(const BlockPass<Real>& pass,
                                         const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::ConvolvedBlock::forward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = options_.channels;
  const MatrixRef<Real> sum = narrow(saved(pass, kSum), rows, C);
  const MatrixRef<Real> convolved = narrow(saved(pass, kConvolved), rows, C);
  block_->forward_saved(pass, x);
  block_->forward_output(pass, x, sum);
  convolution_.forward(exec, windows_of(pass, x), convolved, w);
  if (pass.training && options_.dropout > 0)
    apply_dropout<Real>(exec, pass.dropout(options_.dropout, options_.dropout_site), convolved,
                        convolved);
  const MatrixRef<Real> activated = narrow(w.branch_NC, rows, C);
  activation_forward<Real>(exec, options_.activation, convolved, activated);
  add_values<Real>("deltapipe::ConvolvedBlock::add", exec, elements_of(activated),
                   elements_of(sum));
}

template <class Real>
void ConvolvedBlock<Real>::forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                          const MatrixRef<Real>& y) const {
  const int rows = x.extent_int(0);
  norm_.forward(pass.exec, narrow(saved(pass, kSum), rows, options_.channels), y,
                {saved(pass, kStatistics), rows});
}

template <class Real>
void ConvolvedBlock<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                    const MatrixRef<Real>& gradient, bool accumulate) const {
  const ProfilingRegion region("deltapipe::ConvolvedBlock::backward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = options_.channels;
  const MatrixRef<Real> sum = narrow(saved(pass, kSum), rows, C);
  const MatrixRef<Real> convolved = narrow(saved(pass, kConvolved), rows, C);
  const MatrixRef<Real> branch = narrow(w.branch_NC, rows, C);
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, C);
  const NormStatistics<Real> statistics(saved(pass, kStatistics), rows);

  // A recomputation ends before the norm.
  norm_.forward(exec, sum, norm, statistics);
  norm_.parameter_gradient(exec, gradient, sum, statistics, accumulate, w);
  norm_.backward_in_place(exec, gradient, sum, statistics, norm);

  // The gradient of the convolution, which has to outlive the block's backward pass, takes the
  // place of the sum.
  const MatrixRef<Real> dconvolved = sum;
  Kokkos::deep_copy(exec, dconvolved, gradient);
  activation_backward<Real>(exec, options_.activation, convolved, dconvolved, branch);
  if (options_.dropout > 0)
    apply_dropout<Real>(exec, pass.dropout(options_.dropout, options_.dropout_site), dconvolved,
                        dconvolved);
  block_->backward(pass, x, gradient, accumulate);

  const Operand<Real> dconvolved_operand = w.products.gradient(exec, dconvolved);
  convolution_.parameter_gradient(exec, windows_of(pass, x), dconvolved_operand, accumulate, w);
  const MatrixRef<Real> dwindows = narrow(w.wide_NF, rows, options_.width * C);
  convolution_.input_gradient(exec, dconvolved_operand, dwindows, w);
  add_window_gradients<Real>(exec, windows(pass), dwindows, gradient);
}

template class ConvolvedBlock<float>;
template class ConvolvedBlock<double>;

}  // namespace deltapipe
