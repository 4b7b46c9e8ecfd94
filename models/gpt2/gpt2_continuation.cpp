// SPDX-License-Identifier: BSD-3-Clause
// Gpt2Stage's TextContinuation: passes of a text's newest tokens.
#include "core/base/error.hpp"
#include "core/kernels/attention/cached_attention.hpp"
#include "core/kernels/gemm/gemv.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "core/kernels/layers/layer_norm.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/gpt2/workspace.hpp"

namespace deltapipe {

template <class Real>
void Gpt2Stage<Real>::reserve_text(const StageCapacity& capacity, const ViewAllocator& memory) {
  DELTAPIPE_ASSERT(!capacity.training && capacity.samples == 1, "a text is one sample");
  DELTAPIPE_ASSERT(capacity.products == ProductPrecision::fp32, "products of one row are of fp32");
  const AttentionShape shape{1, capacity.tokens, config_.n_head, channels() / config_.n_head};
  kept_T2C_ = memory.uninitialized<Matrix<Real>>(
      MemoryUse::activations, "deltapipe::Gpt2Stage::keysAndValues",
      static_cast<std::size_t>(part_.blocks) * capacity.tokens, 2 * channels());
  kept_scores_ = memory.uninitialized<Vector<Real>>(
      MemoryUse::workspace, "deltapipe::Gpt2Stage::keptScores", cached_attention_workspace(shape));
}

template <class Real>
void Gpt2Stage<Real>::continue_text(const ExecSpace& exec, const MicroBatch& batch, int kept,
                                    int slot) {
  DELTAPIPE_ASSERT(capacity_.keeps_text, "reserved without keys and values");
  DELTAPIPE_ASSERT(batch.samples == 1 && kept >= 0 && kept + batch.tokens <= capacity_.tokens,
                   std::to_string(kept) + " + " + std::to_string(batch.tokens) + " tokens");
  const int rows = batch.tokens;
  if (part_.first) {
    embedding_forward<Real>(exec, batch.row_N, rows, token_table(),
                            rows_of<Real>(parameters_.matrix(position_table_), kept, rows),
                            input(slot, rows));
  }
  for (int i = 0; i < part_.blocks; ++i) continue_block(exec, rows, kept, slot, i);
}

template <class Real>
void Gpt2Stage<Real>::continue_block(const ExecSpace& exec, int rows, int kept, int slot,
                                     int block) {
  const int C = channels();
  const Block& b = blocks_[block];
  BlockState& s = state(slot, block);
  const MatrixRef<Real> x = narrow(slots_[slot].x_NC[block], rows, C);
  const MatrixRef<Real> norm = narrow(norm_NC_, rows, C);
  const MatrixRef<Real> qkv = narrow(s.qkv_N3C, rows, 3 * C);
  const MatrixRef<Real> attention = narrow(s.attention_NC, rows, C);
  const MatrixRef<Real> residual = narrow(s.residual_NC, rows, C);
  const MatrixRef<Real> hidden = narrow(s.hidden_NF, rows, config_.n_inner);
  const MatrixRef<Real> activated = narrow(wide_NF_, rows, config_.n_inner);
  const Real epsilon = Real(config_.layer_norm_epsilon);
  const AttentionShape shape{1, capacity_.tokens, config_.n_head, C / config_.n_head};
  const MatrixRef<Real> keys_and_values = rows_of<Real>(
      kept_T2C_, static_cast<std::size_t>(block) * capacity_.tokens, capacity_.tokens);

  layer_norm_forward<Real>(exec, x, value(b.ln1_weight), value(b.ln1_bias), epsilon, norm,
                           head_of(s.mean1_N, rows), head_of(s.rstd1_N, rows));
  few_rows_linear<Real>(exec, norm, parameters_.matrix(b.qkv_weight), value(b.qkv_bias), qkv);
  keep_keys_and_values<Real>(exec, qkv, kept, keys_and_values);
  cached_attention_forward<Real>(exec, shape, kept, qkv, keys_and_values, kept_scores_, attention,
                                 s.log_sum_BHT, head_products_);
  few_rows_linear_residual<Real>(exec, attention, parameters_.matrix(b.out_weight),
                                 value(b.out_bias), x, residual);
  layer_norm_forward<Real>(exec, residual, value(b.ln2_weight), value(b.ln2_bias), epsilon, norm,
                           head_of(s.mean2_N, rows), head_of(s.rstd2_N, rows));
  few_rows_linear<Real>(exec, norm, parameters_.matrix(b.up_weight), value(b.up_bias), hidden);
  gelu_forward<Real>(exec, hidden, activated);
  few_rows_linear_residual<Real>(exec, activated, parameters_.matrix(b.down_weight),
                                 value(b.down_bias), residual,
                                 narrow(slots_[slot].x_NC[block + 1], rows, C));
}

template void Gpt2Stage<float>::reserve_text(const StageCapacity&, const ViewAllocator&);
template void Gpt2Stage<double>::reserve_text(const StageCapacity&, const ViewAllocator&);
template void Gpt2Stage<float>::continue_text(const ExecSpace&, const MicroBatch&, int, int);
template void Gpt2Stage<double>::continue_text(const ExecSpace&, const MicroBatch&, int, int);

}  // namespace deltapipe
