// SPDX-License-Identifier: BSD-3-Clause
// Exchange of tied embeddings between the first and the last of several stages. The token embedding
// is on the last stage. The first stage borrows the rows of a step's tokens and returns their
// gradients. A frozen embedding is on both stages and needs no exchange.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/boundary/boundary.hpp"
#include "comm/pipeline/settings.hpp"
#include "comm/pipeline/token_index.hpp"
#include "comm/schedule/schedule.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

struct EmbeddingExchangeShape {
  int vocabulary = 0;
  int rows_per_micro_batch = 0;  ///< B * T
  int micro_batches = 0;         ///< M
  int channels = 0;
  bool training = true;
};

/// Plan of one end of the exchange, before it is built.
struct EmbeddingExchangePlan {
  int boundary = 0;  ///< K - 1, which joins the last stage to the first
  BoundaryEndPlan rows;
  std::optional<BoundaryEndPlan> gradients;  ///< in training only
  int embedding_rows = 0;                    ///< last stage: rows that it sends in a step
  int channels = 0;
};

EmbeddingExchangePlan plan_embedding_exchange(const PipelineOptions& options,
                                              const EmbeddingExchangeShape& shape, int stages,
                                              bool last_stage);

MemoryLedger embedding_exchange_memory(const EmbeddingExchangePlan& plan);

/// Sends rows and gradients in groups of micro-batches, so that a stage waits only for the first
/// rows and the last gradients. Rows leave before the group's first forward pass, gradients after
/// the last backward pass that adds to them. Groups double in size with their distance from the
/// moment of waiting. The exchange thus needs one message for each power of two of micro-batches.
class EmbeddingExchange {
 public:
  /// Builds the end of the first or the last stage of a grid; the other stage builds its end at the
  /// same time. `link` leads from this stage to the other and is never null.
  EmbeddingExchange(const EmbeddingExchangePlan& plan, const ProcessGrid& grid,
                    ProgressThread& progress, std::shared_ptr<EmulatedLink> link,
                    const ExecutionInstances& instances = {});

  /// `step` is the part that all crossings of a step have in common, without samples.
  ///
  /// Last stage, before a step's passes: sends the rows of the group that begins with the
  /// micro-batch.
  void send_rows(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                 int micro_batch, const RowTable<float>& table_VC);
  /// First stage, before a micro-batch's forward pass: receives the rows that are first needed
  /// there.
  void receive_rows(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                    int micro_batch, TokenEmbedding<float>& embedding);
  /// First stage, after a micro-batch's backward pass: sends the gradients that it completes.
  void send_gradients(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                      int micro_batch, TokenEmbedding<float>& embedding);
  /// Last stage, after its backward passes: receives the gradients that the micro-batch completed.
  void receive_gradients(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                         int micro_batch);
  /// Returns the received gradients of a step's rows, ordered by last use. [U, C]
  MatrixRef<float> gradients(const TokenIndex& index) const;

  /// Returns the state of both directions.
  std::vector<StatePart> state();

  /// Turns measurements of errors of what this end sends on or off.
  void measure_errors(bool on);

  /// Returns an empty result if this end sends or receives nothing.
  CodecStatistics take_codec_statistics();
  ChannelStatistics take_sent();
  ChannelStatistics take_received();

 private:
  /// Fills in the crossing of a group of rows; valid until the next call.
  Crossing& crossing(const Crossing& step, CrossingKind kind, int first_micro_batch,
                     std::span<const std::int32_t> tokens);

  int boundary_;
  std::optional<BoundarySender> sender_;
  std::optional<BoundaryReceiver> receiver_;
  Matrix<float> rows_UC_;  ///< last stage: rows to send, received gradients
  Crossing crossing_;
};

}  // namespace deltapipe
