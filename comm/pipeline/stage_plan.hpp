// SPDX-License-Identifier: BSD-3-Clause
// What is built of one stage: its sizes, its boundary ends and its part of the exchange of token
// rows. PipelineStage builds from it, and predictions of memory count from it.
#pragma once

#include <optional>
#include <vector>

#include "comm/boundary/boundary.hpp"
#include "comm/pipeline/embedding_exchange.hpp"
#include "comm/pipeline/settings.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Sizes that a pipeline is built for, beyond its options.
struct PipelineShape {
  int vocabulary = 0;
  int tokens = 0;         ///< T
  int samples = 1;        ///< B
  int micro_batches = 1;  ///< M
  bool training = true;
  bool keeps_text = false;  ///< generation: StageCapacity::keeps_text, where continues_texts()
  std::uint64_t train_samples = 0;
  std::uint64_t steps = 0;  ///< of the whole training; 0: not known
  std::uint64_t data_fingerprint = 0;
  /// The first stage that has_trained(): no gradients cross the boundaries before it.
  int first_trained_stage = 0;
  std::vector<int> partition = {};  ///< the model's blocks on each stage; for what files say
};

/// Shape of a training or, without gradients, of an evaluation, without the data's part.
PipelineShape pipeline_shape(const PipelineOptions& options, int vocabulary, int tokens,
                             bool training);

/// A stage's place in the process grid.
struct StagePlace {
  int stage = 0;
  int stages = 1;
  int replica = 0;
  int replicas = 1;
  int stages_per_rank = 1;
  int pipeline_ranks() const { return stages / stages_per_rank; }
  int rank() const { return replica * pipeline_ranks() + stage % pipeline_ranks(); }
  bool first() const { return stage == 0; }
  bool last() const { return stage + 1 == stages; }
};

struct StagePlan {
  StageCapacity capacity;
  std::optional<BoundaryEndPlan> send_forward, receive_backward;  ///< not on the last stage
  std::optional<BoundaryEndPlan> receive_forward, send_backward;  ///< not on the first stage
  /// A shared embedding that is trained, over more than one stage: on the first and the last one.
  std::optional<EmbeddingExchangePlan> tokens;
  bool has_token_index = false;
};

/// In evaluations of this mode what crosses boundaries is made of each token by itself.
bool crosses_token_by_token(const PipelineOptions& options, EvaluationMode mode, int stages);

/// In generation only a text's new tokens are computed and sent: the model can (TextContinuation),
/// and what crosses boundaries in this mode is made of each token by itself.
bool continues_texts(const PipelineOptions& options, EvaluationMode mode, int stages,
                     const Stage<float>& stage);

/// True if all its blocks are recomputed, by the options.
bool stage_recomputes(const PipelineOptions& options, int stage);

/// The stage need not have memory.
StagePlan plan_stage(const PipelineOptions& options, const PipelineShape& shape,
                     const Stage<float>& stage, const StagePlace& place);

/// Rows of a step and replica: M * B * T.
inline int step_rows(const PipelineShape& shape) {
  return shape.samples * shape.tokens * shape.micro_batches;
}

}  // namespace deltapipe
