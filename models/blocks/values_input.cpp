// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/values_input.hpp"

#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/layers/pooling.hpp"

namespace deltapipe {

template <class Real>
void ValuesInput<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  values_NF_ =
      memory.uninitialized<Matrix<Real>>(MemoryUse::workspace, "deltapipe::ValuesInput::values",
                                         capacity.samples * capacity.tokens, width_);
}

template <class Real>
Operand<Real> ValuesInput<Real>::rows(const BlockPass<Real>& pass) const {
  const MatrixRef<Real> values = narrow(values_NF_, pass.batch.rows(), width_);
  values_of_rows<Real>(pass.exec, pass.batch.fields.reals(Field::values), values);
  return pass.workspace.products.input(pass.exec, values);
}

template <class Real>
void ValuesInput<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const {
  const ProfilingRegion region("deltapipe::ValuesInput::forward");
  linear_forward<Real>(pass.exec, rows(pass), layer_.weight(), layer_.bias(), x,
                       pass.workspace.products);
}

template <class Real>
void ValuesInput<Real>::backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                                 bool accumulate) const {
  const ProfilingRegion region("deltapipe::ValuesInput::backward");
  const Workspace<Real>& w = pass.workspace;
  layer_.parameter_gradient(pass.exec, rows(pass), w.products.gradient(pass.exec, gradient),
                            accumulate, w);
}

template class ValuesInput<float>;
template class ValuesInput<double>;

}  // namespace deltapipe
