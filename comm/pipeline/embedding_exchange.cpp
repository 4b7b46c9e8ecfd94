// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/embedding_exchange.hpp"

#include <algorithm>
#include <utility>

#include "comm/boundary/end_name.hpp"
#include "core/kernels/layers/embedding.hpp"

namespace deltapipe {

namespace {

/// Returns settings with eight bits that depend on no other values, since a crossing has few rows.
CodecSettings plain_codes(CodecSettings settings) {
  settings.bits = 8;
  settings.rms_step = 0;
  if (settings.scale == ScaleKind::message) settings.scale = ScaleKind::tile;
  settings.entropy_coding = false;
  settings.error_feedback = false;
  settings.positions = ChosenPositions::largest;
  return settings;
}

/// Returns the settings for rows. They change little from step to step. If activations are
/// compressed, 8 bits of each change are sent, with the same warm-up, scales, rounding and levels.
/// A row's memory is exact.
CodecSettings row_settings(const CodecSettings& forward) {
  if (!is_coarse(forward)) return forward;
  CodecSettings settings = plain_codes(forward);
  settings.kind = CodecKind::aqsgd;
  settings.first_visit = FirstVisit::quantize8;
  return settings;
}

/// Returns the settings for gradients: 8 bits if the boundaries' gradients are compressed, else the
/// same settings.
CodecSettings gradient_settings(const CodecSettings& backward) {
  if (!is_coarse(backward)) return backward;
  CodecSettings settings = plain_codes(backward);
  settings.kind = CodecKind::directq;
  return settings;
}

}  // namespace

EmbeddingExchangePlan plan_embedding_exchange(const PipelineOptions& options,
                                              const EmbeddingExchangeShape& shape, int stages,
                                              bool last_stage) {
  int slots = 0, largest = 0;
  for (int m = 0; m < shape.micro_batches; ++m) {
    const MicroBatchGroup group = row_group(m, shape.micro_batches);
    if (group.begin < group.end) ++slots;
    largest = std::max(largest, group.end - group.begin);
  }
  const int rows = std::min(shape.vocabulary, largest * shape.rows_per_micro_batch);
  EmbeddingExchangePlan plan;
  plan.boundary = stages - 1;
  plan.channels = shape.channels;
  const auto end = [&](const CodecSettings& codec, bool backward) {
    BoundaryEndPlan e;
    e.codec = {codec, {rows, 1, shape.channels}, MemoryStorage::fp32, shape.training};
    e.memory.samples = shape.vocabulary;
    e.memory.verify_every = options.cache.verify_every;
    e.boundary = static_cast<std::uint32_t>(plan.boundary);
    // All evaluations send rows, in fp32; none sends gradients.
    e.evaluation.modes.clear();
    if (backward) e.evaluation.modes = {EvaluationMode::plain};
    e.backward = backward;
    e.side = backward == last_stage ? BoundarySide::sender : BoundarySide::receiver;
    e.buffers = slots;
    e.payload_memory = options.pipeline.payload_memory();
    return e;
  };
  plan.rows = end(row_settings(options.forward), true);
  if (shape.training) plan.gradients = end(gradient_settings(options.backward), false);
  if (last_stage)
    plan.embedding_rows =
        std::min(shape.vocabulary, shape.micro_batches * shape.rows_per_micro_batch);
  return plan;
}

namespace {

Matrix<float> rows_of_step(const EmbeddingExchangePlan& plan, const ViewAllocator& memory) {
  return memory.uninitialized<Matrix<float>>(MemoryUse::embeddings,
                                             "deltapipe::EmbeddingExchange::rows",
                                             plan.embedding_rows, plan.channels);
}

}  // namespace

MemoryLedger embedding_exchange_memory(const EmbeddingExchangePlan& plan) {
  MemoryLedger ends = boundary_end_memory(plan.rows);
  if (plan.gradients) ends.add(boundary_end_memory(*plan.gradients));
  MemoryLedger ledger;
  ledger.add_host(MemoryUse::embeddings, ends.host_bytes());
  ledger.add_device(MemoryUse::embeddings, ends.device_bytes());
  rows_of_step(plan, ViewAllocator(ledger));
  return ledger;
}

EmbeddingExchange::EmbeddingExchange(const EmbeddingExchangePlan& plan, const ProcessGrid& grid,
                                     ProgressThread& progress, std::shared_ptr<EmulatedLink> link,
                                     const ExecutionInstances& instances)
    : boundary_(plan.boundary) {
  const MPI_Comm comm = grid.pipeline_comm();
  const bool last_stage = plan.rows.side == BoundarySide::sender;
  const int peer = last_stage ? 0 : grid.pipeline_ranks() - 1;
  if (last_stage) {
    rows_UC_ = rows_of_step(plan, {});
    sender_.emplace(progress, comm, peer, kTokenRowsTag, plan.rows, link, std::string(kTokenRows),
                    instances);
    if (plan.gradients)
      receiver_.emplace(progress, comm, peer, kTokenGradientsTag, *plan.gradients,
                        "token row gradients", instances);
  } else {
    receiver_.emplace(progress, comm, peer, kTokenRowsTag, plan.rows, std::string(kTokenRows),
                      instances);
    if (plan.gradients)
      sender_.emplace(progress, comm, peer, kTokenGradientsTag, *plan.gradients, link,
                      "token row gradients", instances);
  }
}

/// Fills in a crossing in which tokens take the place of samples.
Crossing& EmbeddingExchange::crossing(const Crossing& step, CrossingKind kind,
                                      int first_micro_batch, std::span<const std::int32_t> tokens) {
  crossing_ = step;
  crossing_.kind = kind;
  crossing_.evaluation = EvaluationMode::plain;
  crossing_.micro_batch = static_cast<std::uint32_t>(first_micro_batch);
  crossing_.boundary = static_cast<std::uint32_t>(boundary_);
  crossing_.sample_ids.assign(tokens.begin(), tokens.end());
  crossing_.tokens.assign(tokens.size(), 1);
  return crossing_;
}

void EmbeddingExchange::send_rows(const ExecSpace& exec, const Crossing& step,
                                  const TokenIndex& index, int micro_batch,
                                  const RowTable<float>& table_VC) {
  const MicroBatchGroup group = row_group(micro_batch, index.micro_batches());
  const int a = index.needed_before(group.begin), b = index.needed_before(group.end);
  if (a == b) return;
  const MatrixRef<float> rows_UC = rows_of<float>(rows_UC_, a, b - a);
  gather_rows<float>(exec, table_VC,
                     VectorRef<const std::int32_t>(index.token_U().data() + a, b - a), rows_UC);
  sender_->send(
      exec, crossing(step, CrossingKind::tied_rows, group.begin, index.tokens().subspan(a, b - a)),
      rows_UC);
}

void EmbeddingExchange::receive_rows(const ExecSpace& exec, const Crossing& step,
                                     const TokenIndex& index, int micro_batch,
                                     TokenEmbedding<float>& embedding) {
  const MicroBatchGroup group = row_group(micro_batch, index.micro_batches());
  const int a = index.needed_before(group.begin), b = index.needed_before(group.end);
  if (a < b)
    receiver_->receive(
        exec,
        crossing(step, CrossingKind::tied_rows, group.begin, index.tokens().subspan(a, b - a)),
        rows_of<float>(embedding.embedding_rows(index.size()), a, b - a));
}

void EmbeddingExchange::send_gradients(const ExecSpace& exec, const Crossing& step,
                                       const TokenIndex& index, int micro_batch,
                                       TokenEmbedding<float>& embedding) {
  const MicroBatchGroup group = gradient_group(micro_batch, index.micro_batches());
  const int a = index.final_before(group.begin), b = index.final_before(group.end);
  if (a < b) {
    const VectorRef<const std::int32_t> first_of_U(index.first_of_U().data() + a, b - a + 1);
    sender_->send(exec,
                  crossing(step, CrossingKind::tied_gradients, group.begin,
                           index.tokens_by_last_use().subspan(a, b - a)),
                  embedding.embedding_gradient(exec, first_of_U, index.row_of(), b - a));
  }
}

void EmbeddingExchange::receive_gradients(const ExecSpace& exec, const Crossing& step,
                                          const TokenIndex& index, int micro_batch) {
  const MicroBatchGroup group = gradient_group(micro_batch, index.micro_batches());
  const int a = index.final_before(group.begin), b = index.final_before(group.end);
  if (a < b)
    receiver_->receive(exec,
                       crossing(step, CrossingKind::tied_gradients, group.begin,
                                index.tokens_by_last_use().subspan(a, b - a)),
                       rows_of<float>(rows_UC_, a, b - a));
}

MatrixRef<float> EmbeddingExchange::gradients(const TokenIndex& index) const {
  return rows_of<float>(rows_UC_, 0, index.size());
}

std::vector<StatePart> EmbeddingExchange::state() {
  std::vector<StatePart> parts;
  if (sender_) parts = sender_->state();
  if (receiver_)
    for (StatePart& part : receiver_->state()) parts.push_back(std::move(part));
  return parts;
}

ChannelStatistics EmbeddingExchange::take_sent() {
  return sender_ ? sender_->take_statistics() : ChannelStatistics{};
}

void EmbeddingExchange::measure_errors(bool on) {
  if (sender_) sender_->measure_errors(on);
}

CodecStatistics EmbeddingExchange::take_codec_statistics() {
  return sender_ ? sender_->take_codec_statistics() : CodecStatistics{};
}

ChannelStatistics EmbeddingExchange::take_received() {
  return receiver_ ? receiver_->take_statistics() : ChannelStatistics{};
}

}  // namespace deltapipe
