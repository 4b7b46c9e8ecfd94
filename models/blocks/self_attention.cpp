// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/self_attention.hpp"

namespace deltapipe {

template <class Real>
SavedTensors DotProductAttention<Real>::saved() const {
  return {{"deltapipe::DotProductAttention::qkv", 3 * options_.channels},
          {"deltapipe::DotProductAttention::logSum", options_.heads}};
}

template <class Real>
SavedTensors DotProductAttention<Real>::postponed() const {
  return {{"deltapipe::DotProductAttention::qkvGradient", 3 * options_.channels}};
}

template <class Real>
void DotProductAttention<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  size.raise(options_.channels, 3 * options_.channels);
  size.attention = shape(capacity.samples, capacity.tokens);
}

template <class Real>
void DotProductAttention<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                        const MatrixRef<Real>& attention) const {
  const Workspace<Real>& w = pass.workspace;
  const MatrixRef<Real> qkv = narrow(pass.saved[kQkv], x.extent_int(0), 3 * options_.channels);
  qkv_.forward(pass.exec, w.products.input(pass.exec, x), qkv, w);
  w.attention.forward(pass.exec, shape(pass.batch.samples, pass.batch.tokens), qkv,
                      pass.dropout(options_.attention_dropout, options_.dropout_site),
                      pass.batch.length_B, attention, elements_of(pass.saved[kLogSum]), w.products);
}

template <class Real>
void DotProductAttention<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                         const MatrixRef<Real>& attention,
                                         const MatrixRef<Real>& dattention,
                                         const MatrixRef<Real>& dx, bool accumulate) const {
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const int rows = x.extent_int(0), C = options_.channels;
  const MatrixRef<Real> dqkv =
      narrow(pass.postponed ? pass.postponed[kQkvGradient] : w.wide_NF, rows, 3 * C);
  w.attention.backward(
      exec, shape(pass.batch.samples, pass.batch.tokens), narrow(pass.saved[kQkv], rows, 3 * C),
      pass.dropout(options_.attention_dropout, options_.dropout_site), pass.batch.length_B,
      attention, elements_of(pass.saved[kLogSum]), dattention, dqkv, w.products);
  const Operand<Real> dqkv_operand = w.products.gradient(exec, dqkv);
  if (!pass.postponed)
    qkv_.parameter_gradient(exec, w.products.input(exec, x), dqkv_operand, accumulate, w);
  qkv_.input_gradient(exec, dqkv_operand, dx, w, true);
}

template <class Real>
void DotProductAttention<Real>::backward_parameters(const BlockPass<Real>& pass,
                                                    const MatrixRef<Real>& x,
                                                    bool accumulate) const {
  const Workspace<Real>& w = pass.workspace;
  qkv_.parameter_gradient(
      pass.exec, w.products.input(pass.exec, x),
      w.products.gradient(
          pass.exec, narrow(pass.postponed[kQkvGradient], x.extent_int(0), 3 * options_.channels)),
      accumulate, w);
}

template class DotProductAttention<float>;
template class DotProductAttention<double>;

}  // namespace deltapipe
