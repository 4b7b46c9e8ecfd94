// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/transformer_block.hpp"

namespace deltapipe {

namespace {

void append(SavedTensors& to, const SavedTensors& tensors) {
  to.insert(to.end(), tensors.begin(), tensors.end());
}

}  // namespace

template <class Real>
SavedTensors TransformerBlock<Real>::saved() const {
  SavedTensors tensors = attention_.saved();
  tensors.push_back({"deltapipe::TransformerBlock::residual", channels_});
  append(tensors, mlp_.saved());
  return tensors;
}

template <class Real>
SavedTensors TransformerBlock<Real>::postponed() const {
  if (!attention_.trains_linear() && !mlp_.trains_linear()) return {};
  SavedTensors tensors = attention_.postponed();
  append(tensors, mlp_.gradients_to_keep());
  return tensors;
}

template <class Real>
void TransformerBlock<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  attention_.require(capacity, size);
  mlp_.require(capacity, size);
}

template <class Real>
void TransformerBlock<Real>::forward_saved(const BlockPass<Real>& pass,
                                           const MatrixRef<Real>& x) const {
  attention_.forward(pass, x, residual(pass, x));
  mlp_.forward_saved(of_mlp(pass), residual(pass, x));
}

template <class Real>
void TransformerBlock<Real>::forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                            const MatrixRef<Real>& y) const {
  mlp_.forward_output(of_mlp(pass), residual(pass, x), y);
}

template <class Real>
void TransformerBlock<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                      const MatrixRef<Real>& gradient, bool accumulate) const {
  mlp_.backward(of_mlp(pass), residual(pass, x), gradient, accumulate);
  attention_.backward(pass, x, gradient, accumulate);
}

template <class Real>
void TransformerBlock<Real>::backward_parameters(const BlockPass<Real>& pass,
                                                 const MatrixRef<Real>& x, bool accumulate) const {
  mlp_.backward_parameters(of_mlp(pass), residual(pass, x), accumulate);
  attention_.backward_parameters(pass, x, accumulate);
}

template <class Real>
void TransformerBlock<Real>::continue_text(const BlockPass<Real>& pass, int kept,
                                           const MatrixRef<Real>& x,
                                           const MatrixRef<Real>& y) const {
  attention_.continue_text(pass, kept, x, residual(pass, x));
  mlp_.forward_few(of_mlp(pass), residual(pass, x), y);
}

template class TransformerBlock<float>;
template class TransformerBlock<double>;

}  // namespace deltapipe
