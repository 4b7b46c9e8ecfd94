// SPDX-License-Identifier: BSD-3-Clause
#include "models/gpt2/gpt2_stage.hpp"

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/parallel/profiling_region.hpp"
#include "core/kernels/gemm/gemv.hpp"
#include "core/kernels/layers/cross_entropy.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "core/kernels/layers/layer_norm.hpp"
#include "models/gpt2/workspace.hpp"

namespace deltapipe {

namespace {

constexpr std::uint32_t kEmbeddingSite = 0;
constexpr int kAttentionSite = 0, kAttentionOutputSite = 1, kMlpSite = 2, kSitesABlock = 3;

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

}  // namespace

template <class Real>
Gpt2Stage<Real>::Gpt2Stage(const Gpt2Config& config, const StagePart& part,
                           const std::set<std::string>& frozen)
    : config_(config), part_(part), parameters_(frozen) {
  const std::uint64_t C = config.n_embd, V = config.vocabulary_size, F = config.n_inner;
  const std::uint64_t positions = config.n_positions;
  int bucket = 0;
  if (part.first) {
    position_bucket_ = bucket;
    position_table_ = parameters_.add("wpe.weight", {positions, C}, false, bucket++);
    if (!config.tie_word_embeddings)
      wte_ = parameters_.add(kTokenTable, {V, C}, true, bucket++);
    else if (!part.last && frozen.contains(kTokenTable))
      wte_ = parameters_.add_copy(kTokenTable, {V, C}, bucket++);
  }
  for (int i = 0; i < part.blocks; ++i, ++bucket) {
    const std::string h = "h." + std::to_string(part.first_block + i) + ".";
    Block b;
    b.bucket = bucket;
    b.ln1_weight = parameters_.add(h + "ln_1.weight", {C}, false, bucket);
    b.ln1_bias = parameters_.add(h + "ln_1.bias", {C}, false, bucket);
    b.qkv_weight = parameters_.add(h + "attn.c_attn.weight", {C, 3 * C}, true, bucket);
    b.qkv_bias = parameters_.add(h + "attn.c_attn.bias", {3 * C}, false, bucket);
    b.out_weight = parameters_.add(h + "attn.c_proj.weight", {C, C}, true, bucket);
    b.out_bias = parameters_.add(h + "attn.c_proj.bias", {C}, false, bucket);
    b.ln2_weight = parameters_.add(h + "ln_2.weight", {C}, false, bucket);
    b.ln2_bias = parameters_.add(h + "ln_2.bias", {C}, false, bucket);
    b.up_weight = parameters_.add(h + "mlp.c_fc.weight", {C, F}, true, bucket);
    b.up_bias = parameters_.add(h + "mlp.c_fc.bias", {F}, false, bucket);
    b.down_weight = parameters_.add(h + "mlp.c_proj.weight", {F, C}, true, bucket);
    b.down_bias = parameters_.add(h + "mlp.c_proj.bias", {C}, false, bucket);
    parameters_.set_operands({b.qkv_weight, b.out_weight, b.up_weight, b.down_weight});
    blocks_.push_back(b);
  }
  if (part.last) {
    final_bucket_ = bucket++;
    final_weight_ = parameters_.add("ln_f.weight", {C}, false, final_bucket_);
    final_bias_ = parameters_.add("ln_f.bias", {C}, false, final_bucket_);
    if (config.tie_word_embeddings)
      output_matrix_ = wte_ = parameters_.add(kTokenTable, {V, C}, true, bucket);
    else
      output_matrix_ = parameters_.add("lm_head.weight", {V, C}, true, bucket);
    parameters_.set_operands({output_matrix_});
  }
}

ModelCost gpt2_cost(const Gpt2Config& config, int tokens) {
  const double C = config.n_embd, F = config.n_inner, V = config.vocabulary_size, T = tokens;
  ModelCost cost;
  // A multiply-add counts as two operations, and the backward pass as two forward passes.
  // Attention's two products run over half of T x T, and its scores are recomputed in the backward
  // pass.
  cost.block = 3 * 2 * T * (4 * C * C + 2 * C * F) + 2 * T * T / 2 * C * 7;
  cost.head = 3 * 2 * T * C * V;
  return cost;
}

template <class Real>
MemoryLedger Gpt2Stage<Real>::memory(const StageCapacity& capacity) const {
  MemoryLedger ledger;
  const ViewAllocator counting(ledger);
  Gpt2Stage stage(config_, part_, parameters_.frozen());
  stage.compute_as_on_device(as_on_device_);
  stage.parameters_.allocate(capacity.training, capacity.products, counting);
  stage.reserve(capacity, counting);
  return ledger;
}

template <class Real>
bool Gpt2Stage<Real>::trains_embeddings() const {
  return part_.first && (!wte_frozen() || !parameters_.info()[position_table_].frozen);
}

template <class Real>
int Gpt2Stage<Real>::first_backward_block(const StageCapacity& capacity) const {
  if (!capacity.training) return part_.blocks;
  if (trains_embeddings() || (!part_.first && capacity.input_gradient)) return 0;
  int block = 0;
  for (; block < part_.blocks; ++block) {
    const BucketRange& gradients = parameters_.buckets()[blocks_[block].bucket];
    if (gradients.begin < gradients.end) break;
  }
  return block;
}

template <class Real>
typename Gpt2Stage<Real>::BlockState Gpt2Stage<Real>::make_state(
    int rows, const ViewAllocator& memory) const {
  const int C = config_.n_embd;
  const auto matrix = [&](const char* label, int columns) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::activations, label, rows, columns);
  };
  const auto vector = [&](const char* label, std::size_t size) {
    return memory.uninitialized<Vector<Real>>(MemoryUse::activations, label, size);
  };
  BlockState s;
  s.qkv_N3C = matrix("deltapipe::Gpt2Stage::qkv", 3 * C);
  s.attention_NC = matrix("deltapipe::Gpt2Stage::attention", C);
  s.residual_NC = matrix("deltapipe::Gpt2Stage::residual", C);
  s.hidden_NF = matrix("deltapipe::Gpt2Stage::hidden", config_.n_inner);
  s.log_sum_BHT =
      vector("deltapipe::Gpt2Stage::logSum", static_cast<std::size_t>(rows) * config_.n_head);
  s.mean1_N = vector("deltapipe::Gpt2Stage::mean1", rows);
  s.rstd1_N = vector("deltapipe::Gpt2Stage::rstd1", rows);
  s.mean2_N = vector("deltapipe::Gpt2Stage::mean2", rows);
  s.rstd2_N = vector("deltapipe::Gpt2Stage::rstd2", rows);
  return s;
}

template <class Real>
bool Gpt2Stage<Real>::trains_linear(const Block& block) const {
  const auto trains = [&](int index) { return !parameters_.info()[index].frozen; };
  return trains(block.qkv_weight) || trains(block.qkv_bias) || trains(block.out_weight) ||
         trains(block.out_bias) || trains(block.up_weight) || trains(block.up_bias) ||
         trains(block.down_weight) || trains(block.down_bias);
}

template <class Real>
typename Gpt2Stage<Real>::OutputGradients Gpt2Stage<Real>::make_output_gradients(
    int rows, const ViewAllocator& memory) const {
  const auto matrix = [&](const char* label, int columns) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::activations, label, rows, columns);
  };
  const int C = config_.n_embd;
  return {matrix("deltapipe::Gpt2Stage::qkvGradient", 3 * C),
          matrix("deltapipe::Gpt2Stage::attentionGradient", C),
          matrix("deltapipe::Gpt2Stage::hiddenGradient", config_.n_inner),
          matrix("deltapipe::Gpt2Stage::mlpGradient", C)};
}

template <class Real>
void Gpt2Stage<Real>::reserve(const StageCapacity& capacity) {
  DELTAPIPE_ASSERT(capacity.tokens <= config_.n_positions, "longer samples than positions");
  capacity_ = capacity;
  reserve(capacity, ViewAllocator());
}

template <class Real>
void Gpt2Stage<Real>::reserve(const StageCapacity& capacity, const ViewAllocator& memory) {
  const int rows = capacity.samples * capacity.tokens;
  const std::size_t step_rows = static_cast<std::size_t>(rows) * capacity.micro_batches;
  const int C = config_.n_embd;
  const bool share_state = capacity.recompute || !capacity.training;
  const auto activation = [&](const char* label) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::activations, label, rows, C);
  };
  const auto matrix = [&](const char* label, std::size_t height, std::size_t columns) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::workspace, label, height, columns);
  };
  const auto vector = [&](const char* label, std::size_t size) {
    return memory.uninitialized<Vector<Real>>(MemoryUse::workspace, label, size);
  };
  const auto embedding = [&](const char* label) {
    return memory.uninitialized<Matrix<Real>>(MemoryUse::embeddings, label, capacity.embedding_rows,
                                              C);
  };

  slots_.clear();
  slots_.resize(capacity.slots);
  const int first_backward = first_backward_block(capacity);
  const BlockState passing =
      !share_state && first_backward > 0 ? make_state(rows, memory) : BlockState();
  for (Slot& slot : slots_) {
    for (int i = 0; i <= part_.blocks; ++i) {
      const bool passes = i > 0 && i <= first_backward && i < part_.blocks;
      slot.x_NC.push_back(passes ? slot.x_NC.front() : activation("deltapipe::Gpt2Stage::x"));
    }
    if (!share_state)
      for (int i = 0; i < part_.blocks; ++i)
        slot.states.push_back(i < first_backward ? passing : make_state(rows, memory));
    if (!share_state && capacity.splits_backward)
      for (int i = 0; i < part_.blocks; ++i)
        slot.output_gradients.push_back(i >= first_backward && trains_linear(blocks_[i])
                                            ? make_output_gradients(rows, memory)
                                            : OutputGradients());
    if (capacity.training && part_.last)
      slot.gradient_NC = activation("deltapipe::Gpt2Stage::headGradient");
  }
  if (share_state) {
    const BlockState shared = make_state(rows, memory);
    for (Slot& slot : slots_) slot.states = {shared};
  }

  const int F = std::max(config_.n_inner, 3 * C);
  norm_NC_ = matrix("deltapipe::Gpt2Stage::norm", rows, C);
  branch_NC_ = matrix("deltapipe::Gpt2Stage::branch", rows, C);
  wide_NF_ = matrix("deltapipe::Gpt2Stage::wide", rows, F);
  const AttentionShape shape = attention_shape(capacity.samples, capacity.tokens);
  const bool in_bf16 = capacity.products == ProductPrecision::bf16 && has_fast_bf16_gemm();
  grouping_ = as_on_device_ ? AttentionGrouping::of_device(shape)
              : in_bf16     ? AttentionGrouping::of_host(shape, false)
                            : AttentionGrouping::of_host(shape);
  // Tensor cores require aligned addresses in a table; addresses given by strides need no
  // alignment.
  if (!kHostExecution && capacity.products != ProductPrecision::fp32 && shape.head_width % 8 != 0)
    grouping_.samples = 1;
  const std::size_t scores = attention_workspace(shape, grouping_);
  if (as_on_device_ && (kHostExecution || needs_attention_addresses(grouping_)))
    addresses_ = memory.uninitialized<Vector<std::uintptr_t>>(
        MemoryUse::workspace, "deltapipe::Gpt2Stage::addresses",
        attention_addresses(shape, grouping_));
  scores_ = vector("deltapipe::Gpt2Stage::scores", scores);
  if (capacity.training) {
    if (!part_.last) gradient_NC_ = matrix("deltapipe::Gpt2Stage::gradient", rows, C);
    wide2_NF_ = matrix("deltapipe::Gpt2Stage::wide2", rows, F);
    scores2_ = vector("deltapipe::Gpt2Stage::scores2", scores);
    if (as_on_device_)
      column_sums_ = vector("deltapipe::Gpt2Stage::columnSums", column_tree_workspace(rows, F));
  }
  if (part_.last) {
    const std::size_t V = config_.vocabulary_size;
    const int block = logit_rows(rows, V);
    logits_ = matrix("deltapipe::Gpt2Stage::logits", block, V);
    score_ =
        memory.zeroed<Vector<Real>>(MemoryUse::workspace, "deltapipe::Gpt2Stage::loss", step_rows);
    final_mean_N_ = vector("deltapipe::Gpt2Stage::finalMean", rows);
    final_rstd_N_ = vector("deltapipe::Gpt2Stage::finalRstd", rows);
  }
  DELTAPIPE_ASSERT(parameters_.products() == capacity.products,
                   "parameters of another precision of products");
  reserve_products(capacity, memory);
  if (capacity.keeps_text) reserve_text(capacity, memory);
  if (part_.first) {
    if (wte_ < 0) embedding_rows_UC_ = embedding("deltapipe::Gpt2Stage::embeddingRows");
    if (capacity.training && !wte_frozen()) {
      embedding_gradient_UC_ = embedding("deltapipe::Gpt2Stage::embeddingGradient");
      embedding_gradient_NC_ = matrix("deltapipe::Gpt2Stage::embeddingGradient", step_rows, C);
    }
  }
}

template <class Real>
void Gpt2Stage<Real>::reserve_products(const StageCapacity& capacity, const ViewAllocator& memory) {
  if (!std::is_same_v<Real, float> || capacity.products != ProductPrecision::bf16) {
    const RealGemm gemm(memory, capacity.products == ProductPrecision::tf32
                                    ? ProductPrecision::tf32
                                    : ProductPrecision::fp32);
    products_ = Products<Real>(gemm);
    head_products_ = HeadProducts<Real, Real>(gemm);
    return;
  }
  const std::size_t rows = static_cast<std::size_t>(capacity.samples) * capacity.tokens;
  const std::size_t widest = std::max(config_.n_inner, 3 * config_.n_embd);
  const std::size_t vocabulary = config_.vocabulary_size;
  const std::size_t logits =
      part_.last ? logit_rows(static_cast<int>(rows), vocabulary) * vocabulary : 0;
  products_ = Products<Real>(memory, rows * widest,
                             capacity.training ? std::max(rows * widest, logits) : 0);
  if (!has_fast_bf16_gemm()) {
    head_products_ = HeadProducts<Real, Real>(RealGemm(memory));
  } else {
    const std::size_t scores =
        attention_workspace(attention_shape(capacity.samples, capacity.tokens), grouping_);
    const auto factors = [&](const char* label) {
      return memory.uninitialized<Vector<Bf16>>(MemoryUse::workspace, label, scores);
    };
    score_factors_ = factors("deltapipe::Gpt2Stage::scoreFactors");
    if (capacity.training) score_factors2_ = factors("deltapipe::Gpt2Stage::scoreFactors2");
    head_products_bf16_ = HeadProducts<Real, Bf16>(Bf16Gemm(memory));
  }
}

template <class Real>
typename Gpt2Stage<Real>::BlockState& Gpt2Stage<Real>::state(int slot, int block) {
  std::vector<BlockState>& states = slots_[slot].states;
  return states[states.size() == 1 ? 0 : block];
}

template <class Real>
typename Gpt2Stage<Real>::OutputGradients* Gpt2Stage<Real>::kept_gradients(int slot, int block) {
  std::vector<OutputGradients>& kept = slots_[slot].output_gradients;
  if (kept.empty() || kept[block].mlp_NC.size() == 0) return nullptr;
  return &kept[block];
}

template <class Real>
MatrixRef<Real> Gpt2Stage<Real>::input(int slot, int rows) {
  return narrow(slots_[slot].x_NC.front(), rows, channels());
}

template <class Real>
MatrixRef<Real> Gpt2Stage<Real>::output(int slot, int rows) {
  return narrow(slots_[slot].x_NC.back(), rows, channels());
}

template <class Real>
MatrixRef<Real> Gpt2Stage<Real>::gradient(int slot, int rows) {
  return narrow(part_.last ? slots_[slot].gradient_NC : gradient_NC_, rows, channels());
}

template <class Real>
MatrixRef<Real> Gpt2Stage<Real>::output_gradient(int slot, int rows) {
  return gradient(slot, rows);
}

template <class Real>
MatrixRef<Real> Gpt2Stage<Real>::input_gradient(int slot, int rows) {
  return gradient(slot, rows);
}

template <class Real>
Dropout Gpt2Stage<Real>::dropout(const MicroBatch& batch, double probability,
                                 std::uint32_t site) const {
  Dropout d;
  d.probability = static_cast<float>(probability);
  d.stream = RandomStream(batch.seed, batch.step, site);
  d.sample_id_B = batch.sample_id_B;
  d.tokens = batch.tokens;
  return d;
}

template <class Real>
Dropout Gpt2Stage<Real>::block_dropout(const MicroBatch& batch, double probability, int block,
                                       int site) const {
  return dropout(batch, probability,
                 kEmbeddingSite + 1 + (part_.first_block + block) * kSitesABlock + site);
}

template <class Real>
RowTable<Real> Gpt2Stage<Real>::token_table() const {
  if (wte_ >= 0) return parameters_.table(wte_);
  return narrow(embedding_rows_UC_, embedding_rows_UC_.extent_int(0), channels());
}

template <class Real>
void Gpt2Stage<Real>::embed(const ExecSpace& exec, const MicroBatch& batch, int slot) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::embedding");
  const MatrixRef<Real> x = input(slot, batch.rows());
  embedding_forward<Real>(exec, batch.row_N, batch.tokens, token_table(),
                          parameters_.matrix(position_table_), x);
}

template <class Real>
void Gpt2Stage<Real>::embed_backward(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                     bool accumulate) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::embeddingBackward");
  const int rows = batch.rows();
  const MatrixRef<Real> dx = gradient(slot, rows);
  const std::size_t first =
      static_cast<std::size_t>(batch.index) * capacity_.samples * capacity_.tokens;
  const MatrixRef<Real> kept =
      wte_frozen() ? dx : rows_of<Real>(embedding_gradient_NC_, first, rows);
  if (config_.embd_pdrop > 0)
    apply_dropout<Real>(exec, dropout(batch, config_.embd_pdrop, kEmbeddingSite), dx, kept);
  else if (!wte_frozen())
    Kokkos::deep_copy(exec, kept, dx);
  if (!parameters_.info()[position_table_].frozen)
    position_gradient<Real>(exec, kept, batch.tokens, accumulate,
                            parameters_.gradient_matrix(position_table_));
}

/// Returns a layer norm's output in the form that the next layer takes.
template <class Real>
Operand<Real> Gpt2Stage<Real>::normalised(const ExecSpace& exec, const MatrixRef<Real>& x,
                                          int weight, int bias, const Vector<Real>& mean,
                                          const Vector<Real>& rstd) {
  const int rows = x.extent_int(0);
  return products_.make_input(narrow(norm_NC_, rows, channels()), [&](const auto& y) {
    layer_norm_forward<Real>(exec, x, value(weight), value(bias), Real(config_.layer_norm_epsilon),
                             y, head_of(mean, rows), head_of(rstd, rows));
  });
}

/// Returns GELU of a hidden layer in the form that the next layer takes.
template <class Real>
Operand<Real> Gpt2Stage<Real>::activated(const ExecSpace& exec, const MatrixRef<Real>& hidden,
                                         const Matrix<Real>& workspace) {
  const int rows = hidden.extent_int(0);
  return products_.make_input(narrow(workspace, rows, hidden.extent_int(1)),
                              [&](const auto& y) { gelu_forward<Real>(exec, hidden, y); });
}

template <class Real>
AttentionPlan Gpt2Stage<Real>::attention_plan(const AttentionShape& shape) const {
  return {as_on_device_ ? grouping_ : AttentionGrouping::of_host(shape, grouping_.in_tiles),
          addresses_};
}

template <class Real>
void Gpt2Stage<Real>::attend(const ExecSpace& exec, const AttentionShape& shape,
                             const MatrixRef<Real>& qkv, const Dropout& dropout,
                             const MatrixRef<Real>& attention, const Vector<Real>& log_sum) {
  if constexpr (std::is_same_v<Real, float>) {
    if (score_factors_.extent(0) > 0) {
      attention_forward<float, Bf16>(
          exec, shape, attention_plan(shape), products_.input(exec, qkv).rounded, dropout,
          {scores_, score_factors_}, attention, log_sum, head_products_bf16_);
      return;
    }
  }
  attention_forward<Real, Real>(exec, shape, attention_plan(shape), qkv, dropout,
                                {scores_, scores_}, attention, log_sum, head_products_);
}

template <class Real>
void Gpt2Stage<Real>::attend_backward(const ExecSpace& exec, const AttentionShape& shape,
                                      const MatrixRef<Real>& qkv, const Dropout& dropout,
                                      const MatrixRef<Real>& attention, const Vector<Real>& log_sum,
                                      const MatrixRef<Real>& dattention,
                                      const MatrixRef<Real>& dqkv) {
  if constexpr (std::is_same_v<Real, float>) {
    if (score_factors_.extent(0) > 0) {
      attention_backward<float, Bf16>(
          exec, shape, attention_plan(shape), products_.input(exec, qkv).rounded, dropout,
          attention, log_sum, dattention, products_.gradient(exec, dattention).rounded,
          {scores_, score_factors_}, {scores2_, score_factors2_}, dqkv, head_products_bf16_);
      return;
    }
  }
  attention_backward<Real, Real>(exec, shape, attention_plan(shape), qkv, dropout, attention,
                                 log_sum, dattention, dattention, {scores_, scores_},
                                 {scores2_, scores2_}, dqkv, head_products_);
}

/// Computes from the block's input to the MLP's hidden layer before GELU: all that backward needs.
template <class Real>
void Gpt2Stage<Real>::block_inner(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                  int block, bool training) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::blockForward");
  const int rows = batch.rows();
  const int C = config_.n_embd;
  const Block& b = blocks_[block];
  BlockState& s = state(slot, block);
  const MatrixRef<Real> x = narrow(slots_[slot].x_NC[block], rows, C);
  const MatrixRef<Real> qkv = narrow(s.qkv_N3C, rows, 3 * C);
  const MatrixRef<Real> attention = narrow(s.attention_NC, rows, C);
  const MatrixRef<Real> residual = narrow(s.residual_NC, rows, C);
  const double attention_drop = training ? config_.attn_pdrop : 0;
  const double residual_drop = training ? config_.resid_pdrop : 0;

  linear_forward<Real>(exec, normalised(exec, x, b.ln1_weight, b.ln1_bias, s.mean1_N, s.rstd1_N),
                       weight(b.qkv_weight), value(b.qkv_bias), qkv, products_);
  attend(exec, attention_shape(batch.samples, batch.tokens), qkv,
         block_dropout(batch, attention_drop, block, kAttentionSite), attention, s.log_sum_BHT);
  linear_residual_forward<Real>(exec, products_.input(exec, attention), weight(b.out_weight),
                                value(b.out_bias), x,
                                block_dropout(batch, residual_drop, block, kAttentionOutputSite),
                                narrow(branch_NC_, rows, C), residual, products_);
  linear_forward<Real>(
      exec, normalised(exec, residual, b.ln2_weight, b.ln2_bias, s.mean2_N, s.rstd2_N),
      weight(b.up_weight), value(b.up_bias), narrow(s.hidden_NF, rows, config_.n_inner), products_);
}

/// Computes the rest of the block after block_inner.
template <class Real>
void Gpt2Stage<Real>::block_output(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                   int block, bool training) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::blockForward");
  const int rows = batch.rows();
  const int C = config_.n_embd;
  const Block& b = blocks_[block];
  BlockState& s = state(slot, block);
  linear_residual_forward<Real>(
      exec, activated(exec, narrow(s.hidden_NF, rows, config_.n_inner), wide_NF_),
      weight(b.down_weight), value(b.down_bias), narrow(s.residual_NC, rows, C),
      block_dropout(batch, training ? config_.resid_pdrop : 0, block, kMlpSite),
      narrow(branch_NC_, rows, C), narrow(slots_[slot].x_NC[block + 1], rows, C), products_);
}

template <class Real>
void Gpt2Stage<Real>::forward(const ExecSpace& exec, const MicroBatch& batch, int slot,
                              bool training, bool accumulate) {
  DELTAPIPE_ASSERT(batch.samples <= capacity_.samples && batch.tokens <= capacity_.tokens,
                   "micro-batch larger than reserved");
  if (part_.first) {
    embed(exec, batch, slot);
    const MatrixRef<Real> x = input(slot, batch.rows());
    if (training && config_.embd_pdrop > 0)
      apply_dropout<Real>(exec, dropout(batch, config_.embd_pdrop, kEmbeddingSite), x, x);
  }
  for (int i = 0; i < part_.blocks; ++i) {
    block_inner(exec, batch, slot, i, training);
    block_output(exec, batch, slot, i, training);
  }
  if (part_.last) head(exec, batch, slot, training, accumulate);
}

/// Computes the score of every row and, in training, the gradients of the output matrix, the final
/// norm and the last block's output.
template <class Real>
void Gpt2Stage<Real>::head(const ExecSpace& exec, const MicroBatch& batch, int slot, bool training,
                           bool accumulate) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::head");
  const int rows = batch.rows();
  const int C = config_.n_embd;
  const int V = config_.vocabulary_size;
  const MatrixRef<Real> x = narrow(slots_[slot].x_NC.back(), rows, C);
  const MatrixRef<Real> norm = narrow(norm_NC_, rows, C);
  const MatrixRef<Real> dnorm = narrow(branch_NC_, rows, C);
  const VectorRef<Real> mean = head_of(final_mean_N_, rows);
  const VectorRef<Real> rstd = head_of(final_rstd_N_, rows);
  const Operand<Real> matrix = weight(output_matrix_);
  const std::size_t first_score =
      static_cast<std::size_t>(batch.index) * capacity_.samples * capacity_.tokens;

  const Operand<Real> normal =
      normalised(exec, x, final_weight_, final_bias_, final_mean_N_, final_rstd_N_);
  const int step = logits_.extent_int(0);
  for (int first = 0; first < rows; first += step) {
    const int count = std::min(step, rows - first);
    const Operand<Real> normal_part = normal.rows(first, count);
    const MatrixRef<Real> logits = narrow(logits_, count, V);
    const VectorRef<const std::int32_t> target(batch.target_N.data() + first, count);
    const VectorRef<Real> score(score_.data() + first_score + first, count);
    products_(exec, Transpose::no, Transpose::yes, normal_part, matrix, Real(0), logits);
    if (batch.score == RowScore::miss) {
      greedy_misses<Real>(exec, target, logits, score);
      continue;
    }
    const Operand<Real> dlogits = products_.make_gradient(logits, [&](const auto& gradient) {
      cross_entropy<Real>(exec, target, Real(batch.loss_scale), training, logits, gradient, score);
    });
    if (!training) continue;
    products_(exec, Transpose::no, Transpose::no, dlogits, matrix, Real(0),
              rows_of<Real>(dnorm, first, count));
    if (!parameters_.info()[output_matrix_].frozen)
      products_(exec, Transpose::yes, Transpose::no, dlogits, normal_part,
                Real(accumulate || first > 0 ? 1 : 0), parameters_.gradient_matrix(output_matrix_));
  }
  if (!training) return;
  const MatrixRef<Real> dx = gradient(slot, rows);
  Kokkos::deep_copy(exec, dx, Real(0));
  layer_norm_parameter_gradient<Real>(exec, dnorm, x, mean, rstd, accumulate,
                                      parameters_.gradient(final_weight_),
                                      parameters_.gradient(final_bias_), column_sums_);
  layer_norm_backward<Real>(exec, dnorm, x, value(final_weight_), value(final_bias_), mean, rstd,
                            dx, norm);
}

template <class Real>
void Gpt2Stage<Real>::mlp_backward(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                   int block, bool accumulate) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::mlpBackward");
  const int rows = batch.rows();
  const int C = config_.n_embd;
  const int F = config_.n_inner;
  const Block& b = blocks_[block];
  BlockState& s = state(slot, block);
  const MatrixRef<Real> dx = gradient(slot, rows);
  const MatrixRef<Real> norm = narrow(norm_NC_, rows, C);
  const MatrixRef<Real> dnorm = narrow(branch_NC_, rows, C);
  OutputGradients* const kept = kept_gradients(slot, block);
  const MatrixRef<Real> dhidden = narrow(kept ? kept->hidden_NF : wide_NF_, rows, F);
  const MatrixRef<Real> residual = narrow(s.residual_NC, rows, C);
  const bool drop = config_.resid_pdrop > 0;
  const MatrixRef<Real> dbranch = drop ? norm : dx;

  if (drop)
    apply_dropout<Real>(exec, block_dropout(batch, config_.resid_pdrop, block, kMlpSite), dx,
                        dbranch);
  const Operand<Real> dbranch_operand = products_.gradient(exec, dbranch);
  products_(exec, Transpose::no, Transpose::yes, dbranch_operand, weight(b.down_weight), Real(0),
            dhidden);
  const Operand<Real> activated = products_.make_input(
      narrow(wide2_NF_, rows, F),
      [&](const auto& y) { gelu_backward<Real>(exec, narrow(s.hidden_NF, rows, F), dhidden, y); });
  if (kept)
    Kokkos::deep_copy(exec, narrow(kept->mlp_NC, rows, C), dbranch);
  else
    linear_parameter_gradient<Real>(exec, activated, dbranch_operand, accumulate,
                                    parameters_.gradient_matrix(b.down_weight),
                                    parameters_.gradient(b.down_bias), products_, column_sums_);
  const Operand<Real> dhidden_operand = products_.gradient(exec, dhidden);
  products_(exec, Transpose::no, Transpose::yes, dhidden_operand, weight(b.up_weight), Real(0),
            dnorm);
  const VectorRef<Real> mean = head_of(s.mean2_N, rows);
  const VectorRef<Real> rstd = head_of(s.rstd2_N, rows);
  layer_norm_parameter_gradient<Real>(exec, dnorm, residual, mean, rstd, accumulate,
                                      parameters_.gradient(b.ln2_weight),
                                      parameters_.gradient(b.ln2_bias), column_sums_);
  const Operand<Real> normal = products_.make_input(norm, [&](const auto& y) {
    layer_norm_backward<Real>(exec, dnorm, residual, value(b.ln2_weight), value(b.ln2_bias), mean,
                              rstd, dx, y);
  });
  if (kept) return;
  linear_parameter_gradient<Real>(exec, normal, dhidden_operand, accumulate,
                                  parameters_.gradient_matrix(b.up_weight),
                                  parameters_.gradient(b.up_bias), products_, column_sums_);
}

template <class Real>
void Gpt2Stage<Real>::attention_block_backward(const ExecSpace& exec, const MicroBatch& batch,
                                               int slot, int block, bool accumulate) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::attentionBackward");
  const int rows = batch.rows();
  const int C = config_.n_embd;
  const Block& b = blocks_[block];
  BlockState& s = state(slot, block);
  const MatrixRef<Real> x = narrow(slots_[slot].x_NC[block], rows, C);
  const MatrixRef<Real> dx = gradient(slot, rows);
  const MatrixRef<Real> norm = narrow(norm_NC_, rows, C);
  const MatrixRef<Real> branch = narrow(branch_NC_, rows, C);
  OutputGradients* const kept = kept_gradients(slot, block);
  const MatrixRef<Real> dqkv = narrow(kept ? kept->qkv_N3C : wide_NF_, rows, 3 * C);
  const MatrixRef<Real> attention = narrow(s.attention_NC, rows, C);
  const bool drop = config_.resid_pdrop > 0;
  const MatrixRef<Real> dbranch = drop ? norm : dx;

  if (drop)
    apply_dropout<Real>(
        exec, block_dropout(batch, config_.resid_pdrop, block, kAttentionOutputSite), dx, dbranch);
  const Operand<Real> dbranch_operand = products_.gradient(exec, dbranch);
  if (kept)
    Kokkos::deep_copy(exec, narrow(kept->attention_NC, rows, C), dbranch);
  else
    linear_parameter_gradient<Real>(exec, products_.input(exec, attention), dbranch_operand,
                                    accumulate, parameters_.gradient_matrix(b.out_weight),
                                    parameters_.gradient(b.out_bias), products_, column_sums_);
  products_(exec, Transpose::no, Transpose::yes, dbranch_operand, weight(b.out_weight), Real(0),
            branch);
  attend_backward(exec, attention_shape(batch.samples, batch.tokens),
                  narrow(s.qkv_N3C, rows, 3 * C),
                  block_dropout(batch, config_.attn_pdrop, block, kAttentionSite), attention,
                  s.log_sum_BHT, branch, dqkv);
  const Operand<Real> dqkv_operand = products_.gradient(exec, dqkv);
  products_(exec, Transpose::no, Transpose::yes, dqkv_operand, weight(b.qkv_weight), Real(0),
            branch);
  const VectorRef<Real> mean = head_of(s.mean1_N, rows);
  const VectorRef<Real> rstd = head_of(s.rstd1_N, rows);
  layer_norm_parameter_gradient<Real>(exec, branch, x, mean, rstd, accumulate,
                                      parameters_.gradient(b.ln1_weight),
                                      parameters_.gradient(b.ln1_bias), column_sums_);
  const Operand<Real> normal = products_.make_input(norm, [&](const auto& y) {
    layer_norm_backward<Real>(exec, branch, x, value(b.ln1_weight), value(b.ln1_bias), mean, rstd,
                              dx, y);
  });
  if (kept) return;
  linear_parameter_gradient<Real>(exec, normal, dqkv_operand, accumulate,
                                  parameters_.gradient_matrix(b.qkv_weight),
                                  parameters_.gradient(b.qkv_bias), products_, column_sums_);
}

/// Computes the gradients of the linear layers. Recomputes their inputs if the forward pass did not
/// keep them.
template <class Real>
void Gpt2Stage<Real>::block_parameters_backward(const ExecSpace& exec, const MicroBatch& batch,
                                                int slot, int block, bool accumulate) {
  const ProfilingRegion region("deltapipe::Gpt2Stage::parametersBackward");
  const int rows = batch.rows();
  const int C = config_.n_embd;
  const int F = config_.n_inner;
  const Block& b = blocks_[block];
  BlockState& s = state(slot, block);
  const OutputGradients& kept = *kept_gradients(slot, block);
  const auto add = [&](const Operand<Real>& x, const Matrix<Real>& dy, int weight, int bias) {
    linear_parameter_gradient<Real>(
        exec, x, products_.gradient(exec, narrow(dy, rows, dy.extent_int(1))), accumulate,
        parameters_.gradient_matrix(weight), parameters_.gradient(bias), products_, column_sums_);
  };
  add(activated(exec, narrow(s.hidden_NF, rows, F), wide2_NF_), kept.mlp_NC, b.down_weight,
      b.down_bias);
  add(normalised(exec, narrow(s.residual_NC, rows, C), b.ln2_weight, b.ln2_bias, s.mean2_N,
                 s.rstd2_N),
      kept.hidden_NF, b.up_weight, b.up_bias);
  add(products_.input(exec, narrow(s.attention_NC, rows, C)), kept.attention_NC, b.out_weight,
      b.out_bias);
  add(normalised(exec, narrow(slots_[slot].x_NC[block], rows, C), b.ln1_weight, b.ln1_bias,
                 s.mean1_N, s.rstd1_N),
      kept.qkv_N3C, b.qkv_weight, b.qkv_bias);
}

template <class Real>
void Gpt2Stage<Real>::backward_parameters(const ExecSpace& exec, const MicroBatch& batch, int slot,
                                          bool accumulate,
                                          const typename Stage<Real>::BucketFinal& bucket_final) {
  int end = static_cast<int>(parameters_.buckets().size());
  for (int i = part_.blocks - 1; i >= 0; --i) {
    const int bucket = blocks_[i].bucket;
    this->finish_buckets(bucket_final, end, bucket + 1);
    if (kept_gradients(slot, i) != nullptr)
      block_parameters_backward(exec, batch, slot, i, accumulate);
    this->finish_buckets(bucket_final, bucket + 1, bucket);
    end = bucket;
  }
  this->finish_buckets(bucket_final, end, 0);
}

template <class Real>
void Gpt2Stage<Real>::backward(const ExecSpace& exec, const MicroBatch& batch, int slot,
                               bool accumulate,
                               const typename Stage<Real>::BucketFinal& bucket_final) {
  if (part_.last && bucket_final) {
    if (!shared()) bucket_final(parameters_.info()[output_matrix_].bucket);
    bucket_final(final_bucket_);
  }
  const int first_backward = first_backward_block(capacity_);
  for (int i = part_.blocks - 1; i >= 0; --i) {
    if (i >= first_backward) {
      if (capacity_.recompute) block_inner(exec, batch, slot, i, true);
      mlp_backward(exec, batch, slot, i, accumulate);
      attention_block_backward(exec, batch, slot, i, accumulate);
    }
    if (bucket_final) bucket_final(blocks_[i].bucket);
  }
  if (!part_.first) return;
  if (trains_embeddings()) embed_backward(exec, batch, slot, accumulate);
  if (bucket_final) bucket_final(position_bucket_);
}

template <class Real>
VectorRef<const Real> Gpt2Stage<Real>::scores(int micro_batch, int rows) {
  const std::size_t first =
      static_cast<std::size_t>(micro_batch) * capacity_.samples * capacity_.tokens;
  return VectorRef<const Real>(score_.data() + first, rows);
}

template <class Real>
VectorRef<const Real> Gpt2Stage<Real>::logits(const ExecSpace& exec, int slot, int row) {
  const int C = config_.n_embd;
  const MatrixRef<Real> x = rows_of<Real>(slots_[slot].x_NC.back(), row, 1);
  const MatrixRef<Real> norm = narrow(norm_NC_, 1, C);
  const VectorRef<Real> logits(logits_.data(), config_.vocabulary_size);
  layer_norm_forward<Real>(exec, x, value(final_weight_), value(final_bias_),
                           Real(config_.layer_norm_epsilon), norm, head_of(final_mean_N_, 1),
                           head_of(final_rstd_N_, 1));
  if (parameters_.in_halves(output_matrix_))
    products_(exec, Transpose::no, Transpose::yes, products_.input(exec, norm),
              weight(output_matrix_), Real(0), narrow(logits_, 1, config_.vocabulary_size));
  else
    gemv(exec, Transpose::no, parameters_.matrix(output_matrix_), first_row(norm), Real(0), logits);
  return logits;
}

template <class Real>
MatrixRef<Real> Gpt2Stage<Real>::embedding_rows(int rows) {
  return narrow(embedding_rows_UC_, rows, channels());
}

template <class Real>
MatrixRef<Real> Gpt2Stage<Real>::embedding_gradient(const ExecSpace& exec,
                                                    const VectorRef<const std::int32_t>& first_of_U,
                                                    const VectorRef<const std::int32_t>& row_of,
                                                    int rows) {
  const MatrixRef<Real> sums = narrow(embedding_gradient_UC_, rows, channels());
  token_gradient<Real>(
      exec, narrow(embedding_gradient_NC_, embedding_gradient_NC_.extent_int(0), channels()),
      first_of_U, row_of, sums);
  return sums;
}

template class Gpt2Stage<float>;
template class Gpt2Stage<double>;

}  // namespace deltapipe
