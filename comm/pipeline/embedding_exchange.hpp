// SPDX-License-Identifier: BSD-3-Clause
// Tied embeddings over more than one stage: the token embedding lives on the last stage, and the
// first one borrows the rows of a step's tokens and returns their gradients. A frozen one has no
// exchange: both stages have it.
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

/// One end of the exchange before it is built.
struct EmbeddingExchangePlan {
  int boundary = 0;  ///< K - 1, the one that joins the last stage to the first
  BoundaryEndPlan rows;
  std::optional<BoundaryEndPlan> gradients;  ///< in training
  int embedding_rows = 0;                    ///< last stage: rows of a step, to send
  int channels = 0;
};

EmbeddingExchangePlan plan_embedding_exchange(const PipelineOptions& options,
                                              const EmbeddingExchangeShape& shape, int stages,
                                              bool last_stage);

MemoryLedger embedding_exchange_memory(const EmbeddingExchangePlan& plan);

/// Sends rows in groups of micro-batches, so that only the first rows and the last gradients are
/// waited for: rows before the group's first forward pass, gradients after the last backward pass
/// that adds to them. Groups double in size away from the moment that waits, which takes a
/// message for each power of two of micro-batches.
class EmbeddingExchange {
 public:
  /// On the first and the last stage of a grid; the other one builds its end at the same time.
  /// `link`, never null, is the one from this stage to the other.
  EmbeddingExchange(const EmbeddingExchangePlan& plan, const ProcessGrid& grid,
                    ProgressThread& progress, std::shared_ptr<EmulatedLink> link,
                    const ExecutionInstances& instances = {});

  /// `step`: what all crossings of a step have in common, without samples.
  ///
  /// Last stage, before a step's passes: sends the rows of the group that begins with the
  /// micro-batch.
  void send_rows(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                 int micro_batch, const RowTable<float>& table_VC);
  /// First stage, before the forward pass of a micro-batch: takes what it is the first to need.
  void receive_rows(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                    int micro_batch, TokenEmbedding<float>& embedding);
  /// First stage, after the backward pass of a micro-batch: sends what it completes.
  void send_gradients(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                      int micro_batch, TokenEmbedding<float>& embedding);
  /// Last stage, after its backward passes: receives what the micro-batch completed.
  void receive_gradients(const ExecSpace& exec, const Crossing& step, const TokenIndex& index,
                         int micro_batch);
  /// Then: the gradients of a step's rows, by last use. [U, C]
  MatrixRef<float> gradients(const TokenIndex& index) const;

  /// State of both directions.
  std::vector<StatePart> state();

  /// Measures the errors of the values that this end sends.
  void measure_errors(bool on);

  /// Nothing where nothing is sent or received.
  CodecStatistics take_codec_statistics();
  ChannelStatistics take_sent();
  ChannelStatistics take_received();

 private:
  /// Crossing of a group of rows; valid until the next one.
  Crossing& crossing(const Crossing& step, CrossingKind kind, int first_micro_batch,
                     std::span<const std::int32_t> tokens);

  int boundary_;
  std::optional<BoundarySender> sender_;
  std::optional<BoundaryReceiver> receiver_;
  Matrix<float> rows_UC_;  ///< last stage: rows to send, gradients received
  Crossing crossing_;
};

}  // namespace deltapipe
