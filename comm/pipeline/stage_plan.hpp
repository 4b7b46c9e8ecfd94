// SPDX-License-Identifier: BSD-3-Clause
// Plan of one stage: its sizes, its boundary ends and its part of the exchanges of parameters.
// PipelineStage builds it, and predictions of memory use it.
#pragma once

#include <optional>
#include <vector>

#include "comm/boundary/boundary.hpp"
#include "comm/pipeline/common_exchange.hpp"
#include "comm/pipeline/embedding_exchange.hpp"
#include "comm/pipeline/settings.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Parameters of a pipeline in addition to its options.
struct PipelineShape {
  int vocabulary = 0;
  int tokens = 0;          ///< T
  FieldSizes fields = {};  ///< of a sample
  int samples = 1;         ///< B
  int micro_batches = 1;   ///< M
  bool training = true;
  bool keeps_text = false;  ///< generation: StageCapacity::keeps_text, where continues_texts()
  std::uint64_t train_samples = 0;
  std::uint64_t steps = 0;  ///< steps of the whole training; 0: not known
  std::uint64_t data_fingerprint = 0;
  /// First stage that has_trained(): no gradients cross the boundaries before it.
  int first_trained_stage = 0;
  std::vector<int> partition = {};  ///< the model's blocks on each stage, for files
  /// A micro-batch is about as long as its longest sample, instead of T tokens. Requires that T
  /// rows of a sample cross every boundary.
  bool pads_to_longest = false;
};

/// Returns the tokens of a micro-batch whose longest sample has `longest`. There are at most 16
/// different numbers, for what products prepare for each size.
int padded_tokens(int longest, int most_tokens);

/// Returns the shape of a training or, without gradients, of an evaluation, for texts; leaves out
/// the data.
PipelineShape pipeline_shape(const PipelineOptions& options, int vocabulary, int tokens,
                             bool training);

/// Returns the number of the model's blocks before a boundary.
int blocks_before_cut(const std::vector<int>& partition, int boundary);

/// Position of a stage in the process grid.
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
  std::optional<BoundaryEndPlan> send_forward, receive_backward;  ///< except on the last stage
  std::optional<BoundaryEndPlan> receive_forward, send_backward;  ///< except on the first stage
  /// With PipelineShape::pads_to_longest: shape of the memory in which rows cross boundaries,
  /// padded to T rows a sample.
  int padded_rows = 0, padded_channels = 0;
  /// Exchange of a shared, trained embedding over several stages; on the first and the last one.
  std::optional<EmbeddingExchangePlan> tokens;
  /// Exchange of trained parameters that all stages use, over several stages.
  std::optional<CommonExchangePlan> common;
  bool has_token_index = false;
};

/// Returns true if evaluations of this mode compute what crosses boundaries from each token alone.
bool crosses_token_by_token(const PipelineOptions& options, EvaluationMode mode, int stages);

/// Returns true if generation computes and sends only a text's new tokens. The model must support
/// it (TextContinuation), and what crosses boundaries in this mode must be computed from each token
/// alone.
bool continues_texts(const PipelineOptions& options, EvaluationMode mode, int stages,
                     const Stage<float>& stage);

/// Returns true if the options make the stage recompute all of its blocks.
bool stage_recomputes(const PipelineOptions& options, int stage);

/// Returns the plan of a stage, which may be without memory.
StagePlan plan_stage(const PipelineOptions& options, const PipelineShape& shape,
                     const Stage<float>& stage, const StagePlace& place);

/// Allocates the memory of StagePlan::padded_rows.
Matrix<float> make_padded_rows(const StagePlan& plan, const ViewAllocator& memory);

/// Returns the rows of a step and replica, M * B * T.
inline int step_rows(const PipelineShape& shape) {
  return shape.samples * shape.tokens * shape.micro_batches;
}

}  // namespace deltapipe
