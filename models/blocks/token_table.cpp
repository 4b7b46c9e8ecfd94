// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/token_table.hpp"

#include "core/kernels/layers/embedding.hpp"

namespace deltapipe {

template <class Real>
void TokenTable<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  const auto rows = [&](const char* label) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::embeddings, label, capacity.embedding_rows,
                                              channels_);
  };
  batch_rows_ = static_cast<std::size_t>(capacity.samples) * capacity.tokens;
  if (index_ < 0) rows_UC_ = rows("deltapipe::TokenTable::rows");
  if (!capacity.training || wte_frozen()) return;
  gradient_UC_ = rows("deltapipe::TokenTable::gradient");
  gradient_NC_ = memory.uninitialized<Matrix<Real>>(
      MemoryUse::workspace, "deltapipe::TokenTable::storedGradients",
      batch_rows_ * capacity.micro_batches, channels_);
}

template <class Real>
RowTable<Real> TokenTable<Real>::rows() const {
  if (index_ >= 0) return parameters_.table(index_);
  return narrow(rows_UC_, rows_UC_.extent_int(0), channels_);
}

template <class Real>
MatrixRef<Real> TokenTable<Real>::stored_gradient(const MicroBatch& batch) const {
  return rows_of<Real>(gradient_NC_, batch.index * batch_rows_, batch.rows());
}

template <class Real>
MatrixRef<Real> TokenTable<Real>::embedding_gradient(
    const ExecSpace& exec, const VectorRef<const std::int32_t>& first_of_U,
    const VectorRef<const std::int32_t>& row_of, int rows) {
  const MatrixRef<Real> sums = narrow(gradient_UC_, rows, channels_);
  token_gradient<Real>(exec, narrow(gradient_NC_, gradient_NC_.extent_int(0), channels_),
                       first_of_U, row_of, sums);
  return sums;
}

template class TokenTable<float>;
template class TokenTable<double>;

}  // namespace deltapipe
