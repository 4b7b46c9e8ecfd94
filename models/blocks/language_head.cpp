// SPDX-License-Identifier: BSD-3-Clause
#include "models/blocks/language_head.hpp"

#include <algorithm>

#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/gemm/gemv.hpp"
#include "core/kernels/layers/cross_entropy.hpp"

namespace deltapipe {

namespace {

/// Elements of the logits that exist at the same time, approximately (128 MiB in fp32).
constexpr std::size_t kLogitElements = std::size_t{1} << 25;

/// Returns the number of rows whose logits are computed together. The blocks of rows have one size,
/// because each of them reads the output matrix twice and reads and writes its gradient, even if it
/// has few rows.
int logit_rows(int rows, std::size_t vocabulary) {
  const std::size_t elements = static_cast<std::size_t>(rows) * vocabulary;
  const std::size_t wanted = (elements + kLogitElements / 2) / kLogitElements;
  const int blocks = std::clamp<int>(static_cast<int>(wanted), 1, rows);
  return (rows + blocks - 1) / blocks;
}

/// Returns the elements from row to row of the logits. Tensor cores require rows of 16 bytes'
/// steps.
std::size_t logit_stride(std::size_t vocabulary) {
  constexpr std::size_t kAligned = 8;  // of Bf16, the narrowest gradient
  return (vocabulary + kAligned - 1) / kAligned * kAligned;
}

}  // namespace

template <class Real>
void LanguageHead<Real>::require(const StageCapacity& capacity, WorkspaceSize& size) const {
  const int rows = capacity.samples * capacity.tokens;
  size.raise(channels(), channels());
  size.gradient_elements =
      std::max(size.gradient_elements, logit_rows(rows, vocabulary()) * logit_stride(vocabulary()));
}

template <class Real>
void LanguageHead<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  const int rows = capacity.samples * capacity.tokens;
  batch_rows_ = rows;
  logits_ = memory.uninitialized<Matrix<Real>>(
      MemoryUse::workspace, "deltapipe::LanguageHead::logits", logit_rows(rows, vocabulary()),
      logit_stride(vocabulary()));
  score_ = memory.zeroed<Vector<Real>>(MemoryUse::workspace, "deltapipe::LanguageHead::score",
                                       batch_rows_ * capacity.micro_batches);
  statistics_ = memory.uninitialized<Vector<Real>>(
      MemoryUse::workspace, "deltapipe::LanguageHead::statistics", 2 * batch_rows_);
}

template <class Real>
void LanguageHead<Real>::forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                                 const MatrixRef<Real>& dx, bool accumulate) {
  const ProfilingRegion region("deltapipe::LanguageHead::forward");
  const Workspace<Real>& w = pass.workspace;
  const ExecSpace& exec = pass.exec;
  const MicroBatch& batch = pass.batch;
  const int rows = x.extent_int(0);
  const int C = channels();
  const int V = static_cast<int>(vocabulary());
  const MatrixRef<Real> norm = narrow(w.norm_NC, rows, C);
  const MatrixRef<Real> dnorm = narrow(w.branch_NC, rows, C);
  const NormStatistics<Real> statistics(statistics_, rows);
  const Operand<Real> matrix = operand_of(parameters_, matrix_);
  const VectorRef<const std::int32_t> targets = batch.fields.integers(Field::next_tokens);
  const std::size_t first_score = batch.index * batch_rows_;

  const Operand<Real> normal = norm_.normalized(exec, x, statistics, w);
  const int step = logits_.extent_int(0);
  for (int first = 0; first < rows; first += step) {
    const int count = std::min(step, rows - first);
    const Operand<Real> normal_part = normal.rows(first, count);
    const MatrixRef<Real> logits = strided_matrix(logits_.data(), count, V, logits_.extent(1));
    const VectorRef<const std::int32_t> target(targets.data() + first, count);
    const VectorRef<Real> score(score_.data() + first_score + first, count);
    w.products(exec, Transpose::no, Transpose::yes, normal_part, matrix, Real(0), logits);
    if (batch.score == RowScore::miss) {
      greedy_misses<Real>(exec, target, logits, score);
      continue;
    }
    const Operand<Real> dlogits = w.products.make_gradient(logits, [&](const auto& gradient) {
      cross_entropy<Real>(exec, target, Real(batch.loss_scale), pass.training, logits, gradient,
                          score);
    });
    if (!pass.training) continue;
    w.products(exec, Transpose::no, Transpose::no, dlogits, matrix, Real(0),
               rows_of<Real>(dnorm, first, count));
    if (!parameters_.info()[matrix_].frozen)
      w.products(exec, Transpose::yes, Transpose::no, dlogits, normal_part,
                 Real(accumulate || first > 0 ? 1 : 0), parameters_.gradient_matrix(matrix_));
  }
  if (!pass.training) return;
  Kokkos::deep_copy(exec, dx, Real(0));
  norm_.parameter_gradient(exec, dnorm, x, statistics, accumulate, w);
  norm_.backward(exec, dnorm, x, statistics, dx, norm);
}

template <class Real>
VectorRef<const Real> LanguageHead<Real>::logits(const ExecSpace& exec,
                                                 const Workspace<Real>& workspace,
                                                 const MatrixRef<Real>& x_1C) {
  const int V = static_cast<int>(vocabulary());
  const MatrixRef<Real> norm = narrow(workspace.norm_NC, 1, channels());
  const VectorRef<Real> logits(logits_.data(), V);
  norm_.forward(exec, x_1C, norm, {statistics_, 1});
  if (parameters_.in_halves(matrix_))
    workspace.products(exec, Transpose::no, Transpose::yes, workspace.products.input(exec, norm),
                       operand_of(parameters_, matrix_), Real(0), narrow(logits_, 1, V));
  else
    gemv(exec, Transpose::no, parameters_.matrix(matrix_), first_row(norm), Real(0), logits);
  return logits;
}

template class LanguageHead<float>;
template class LanguageHead<double>;

}  // namespace deltapipe
