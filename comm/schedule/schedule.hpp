// SPDX-License-Identifier: BSD-3-Clause
// Pipeline schedules as pure lists of instructions: all that one rank does in a step, in order.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltapipe {

/// Instructions of one micro-batch name it; the others have micro_batch -1. Those between a
/// micro-batch's forward and the end of its backward, and the messages beside them, name its slot.
enum class Action {
  send_embedding,  ///< shared embedding, on its owner: the rows that the micro-batch's group needs
  receive_embedding,
  /// In evaluations, on the owner: rows that a group of the next step needs, while this one runs.
  send_next_embedding,
  receive_activation,
  forward,
  send_activation,
  receive_gradient,
  backward,             ///< gradients of the input and of parameters
  backward_inputs,      ///< of the input alone
  backward_parameters,  ///< the other ones, later
  send_gradient,
  send_embedding_gradient,     ///< of the group that the micro-batch completes
  receive_embedding_gradient,  ///< on the owner
  /// Gradients of parameters of the next pass that makes some are final: as they come, their sums
  /// over replicas start.
  reduce_gradients,
  reduce_zeros,            ///< a replica without samples in this step adds nothing to the others'
  add_embedding_gradient,  ///< to the embedding's, and starts that sum
  finish_reductions,
  update  ///< global gradient norm, clipping, optimizer
};

struct Instruction {
  Action action;
  int stage = 0;
  int micro_batch = -1;
  int slot = -1;
  bool operator==(const Instruction&) const = default;
};

using Program = std::vector<Instruction>;

/// Place of the token embedding's matrix; shared: on the last stage, as its output matrix,
/// and the first stage borrows the rows of a step's tokens or, of a frozen one, has a copy.
enum class EmbeddingPlace { none, first_stage, shared };

/// Sizes that a program is made for.
struct ScheduleShape {
  int stage = 0;
  int stages = 1;
  int micro_batches = 1;  ///< of this step; 0: the replica has no samples in it
  /// Over slow links a micro-batch spends longer on the way than in a stage: so many may be under
  /// way at each boundary behind the stage.
  int in_flight = 1;
  EmbeddingPlace embedding = EmbeddingPlace::none;
  /// The first stage with anything to train: none before it has backward passes, and no gradients
  /// cross the boundaries there.
  int first_trained_stage = 0;
  bool embedding_frozen = false;  ///< neither gradients nor rows of the embedding travel
  /// The stage recomputes activations: what a second pass would need is gone after the first one.
  bool recomputes = false;
  /// Rank k of K holds the stages k, k + K, k + 2 K ...
  int stages_per_rank = 1;

  bool has_backward() const { return stage >= first_trained_stage; }
  int ranks() const { return stages / stages_per_rank; }
  int rank() const { return stage % ranks(); }
  /// Which of its rank's stages it is.
  int local() const { return stage / ranks(); }
};

enum class PassKind { forward, backward, backward_inputs, backward_parameters };

struct Pass {
  PassKind kind = PassKind::forward;
  int micro_batch = 0;
  int local = 0;  ///< which of the rank's stages passes it
};

/// One order of forward and backward passes. A new one is a function for `passes`, declared in
/// schedules/, and a line in the table of schedules().
struct Schedule {
  const char* name;  ///< as decks have it
  const char* source;
  /// The passes of all stages of a stage's rank: at each of them every micro-batch forward and
  /// later backward, as a whole or in two passes (`splits_backward`), each kind in the order
  /// 0 ... micro_batches - 1, so that gradients are summed in one order.
  std::vector<Pass> (*passes)(const ScheduleShape& shape);
  /// Messages that a sender may have to leave behind before the receiver takes the first, in steps
  /// of up to so many micro-batches.
  int (*messages_ahead)(const ScheduleShape& shape);
  /// The idle part of a step where all stages cost the same, messages are free, in_flight is 1 and
  /// a backward pass, half of it for parameters, takes as long as two forward passes. Of a
  /// shape it is the layout and the micro-batches that count.
  double (*bubble_fraction)(const ScheduleShape& shape);
  /// `passes` has backward_inputs and backward_parameters, but for a stage that recomputes; no
  /// other schedule has them.
  bool splits_backward = false;
  /// A rank may hold several stages.
  bool interleaves = false;

  bool splits(const ScheduleShape& shape) const { return splits_backward && !shape.recomputes; }
};

std::span<const Schedule> schedules();
/// UserError for an unknown name.
const Schedule& find_schedule(std::string_view name);

/// A training step of a rank, by the shapes of its stages, in their order. The first stage receives
/// no activations and sends no gradients, the last one sends no activations and receives no
/// gradients. At each stage a micro-batch holds the lowest slot that is free from its forward to
/// the end of its backward; without backward passes all are in slot 0. The rank's one update, of
/// all of its stages, names the first. Throws InternalError unless 0 <= stage < stages,
/// micro_batches >= 0, in_flight > 0 and 0 <= first_trained_stage < stages, 0 with a shared
/// embedding that is not frozen, and for several stages with a schedule that does not interleave.
Program training_program(const Schedule& schedule, std::span<const ScheduleShape> stages);
/// For a rank with one stage.
Program training_program(const Schedule& schedule, const ScheduleShape& shape);

/// Rows of a shared embedding in consecutive steps of an evaluation, which changes none of them.
struct EvaluationRows {
  bool are_sent = false;       ///< this step's, by the step before
  int next_micro_batches = 0;  ///< of the step after it; 0: no such step
};

/// Forward passes only, all in slot 0, in the order of the schedule. The rows of the next step
/// leave while this one runs, so that no stage waits between steps: each group when the activations
/// of its first micro-batch are there and the first stage, therefore, has taken this step's group.
/// No more groups than those of a step are ever on their way.
Program evaluation_program(const Schedule& schedule, std::span<const ScheduleShape> stages,
                           const EvaluationRows& rows = {});
/// For a rank with one stage.
Program evaluation_program(const ScheduleShape& shape, const EvaluationRows& rows = {});

/// The most micro-batches that are alive (forward done, the last backward pass not) at a stage, in
/// steps of up to so many micro-batches.
int slots_needed(const Schedule& schedule, const ScheduleShape& shape);

/// Message buffers at each end of either direction of a boundary: enough that no send of the
/// schedule ever waits for one, within a limit, and a few where evaluation, which only goes
/// forward, can use them.
int message_buffers(const Schedule& schedule, const ScheduleShape& shape);

/// "forward stage=1 micro_batch=3 slot=0"
std::string to_text(const Instruction& instruction);
/// One instruction a line; parse_program() reads it back. UserError names the line.
std::string to_text(const Program& program);
Program parse_program(std::string_view text);

struct MicroBatchGroup {
  int begin = 0;  ///< micro-batches [begin, end)
  int end = 0;
};

/// Shared embeddings cross in groups of micro-batches that double in size away from the moment that
/// is waited for. The group of rows that begins with a micro-batch of M, empty if none does; they
/// end at 1, 2, 4, 8 ... M.
MicroBatchGroup row_group(int micro_batch, int micro_batches);
/// The group of gradients that ends with a micro-batch, empty if none does; they end at ... M - 4,
/// M - 2, M - 1, M.
MicroBatchGroup gradient_group(int micro_batch, int micro_batches);

}  // namespace deltapipe
