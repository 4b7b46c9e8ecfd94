// SPDX-License-Identifier: BSD-3-Clause
// Pipeline schedules as lists of instructions: everything that one rank does in a step, in order.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace deltapipe {

/// Action of an instruction. Instructions of one micro-batch name it; in all others micro_batch is
/// -1. From the micro-batch's forward pass to the end of its backward pass, its passes and messages
/// also name its slot.
enum class Action {
  send_embedding,  ///< owner of the shared embedding: rows for the micro-batch's group
  receive_embedding,
  /// In evaluations, on the owner: rows that a group of the next step needs, sent during this one.
  send_next_embedding,
  receive_activation,
  forward,
  send_activation,
  receive_gradient,
  backward,             ///< gradients of the input and of parameters
  backward_inputs,      ///< gradients of the input only
  backward_parameters,  ///< gradients of the parameters, later
  send_gradient,
  send_embedding_gradient,     ///< gradients of the group that the micro-batch completes
  receive_embedding_gradient,  ///< the same, on the owner
  /// The next pass that computes gradients of parameters completes them: their sums over replicas
  /// start as the gradients become available.
  reduce_gradients,
  reduce_zeros,            ///< a replica without samples in this step contributes zeros
  add_embedding_gradient,  ///< adds to the embedding's gradient and starts its sum over replicas
  // Gradients of common parameters are summed over stages, from the last stage to the first.
  receive_common_gradient,  ///< the sum of later stages
  add_common_gradient,  ///< adds the stage's own; the first stage then starts its sum over replicas
  send_common_gradient,
  finish_reductions,
  update,  ///< global gradient norm, clipping, optimizer
  // The first stage's new values of common parameters pass from stage to stage.
  receive_common_values,
  send_common_values
};

struct Instruction {
  Action action;
  int stage = 0;
  int micro_batch = -1;
  int slot = -1;
  bool operator==(const Instruction&) const = default;
};

using Program = std::vector<Instruction>;

/// Location of the matrix of the token embedding. `shared`: on the last stage, where it is also the
/// output matrix. The first stage borrows the rows of a step's tokens, or has a copy of a frozen
/// matrix.
enum class EmbeddingPlace { none, first_stage, shared };

/// Parameters of a program.
struct ScheduleShape {
  int stage = 0;
  int stages = 1;
  int micro_batches = 1;  ///< micro-batches of this step; 0: the replica has no samples in it
  /// Micro-batches that may be under way at each boundary after the stage. Over slow links a
  /// micro-batch spends longer in transit than in a stage.
  int in_flight = 1;
  EmbeddingPlace embedding = EmbeddingPlace::none;
  /// First stage with parameters to train. Earlier stages run no backward passes, and no gradients
  /// cross the boundaries before it.
  int first_trained_stage = 0;
  bool embedding_frozen = false;  ///< neither gradients nor rows of the embedding travel
  /// The stage recomputes activations: the first backward pass frees what a second one would need.
  bool recomputes = false;
  /// Rank k of K holds the stages k, k + K, k + 2 K ...
  int stages_per_rank = 1;
  bool trains_common = false;  ///< the model trains parameters that all stages use

  bool has_backward() const { return stage >= first_trained_stage; }
  int ranks() const { return stages / stages_per_rank; }
  int rank() const { return stage % ranks(); }
  /// Index of the stage among its rank's stages.
  int local() const { return stage / ranks(); }
};

enum class PassKind { forward, backward, backward_inputs, backward_parameters };

struct Pass {
  PassKind kind = PassKind::forward;
  int micro_batch = 0;
  int local = 0;  ///< index among the rank's stages
};

/// An order of forward and backward passes. To add one, write a function for `passes`, declare it
/// in pass_orders.hpp and add a line to the table of schedules().
struct Schedule {
  const char* name;  ///< name in decks
  const char* source;
  /// Returns the passes of all stages of a stage's rank. At each stage every micro-batch passes
  /// forward and later backward, in one backward pass or in two (`splits_backward`). Each kind of
  /// pass is in the order 0 ... micro_batches - 1, so that gradients are summed in one order.
  std::vector<Pass> (*passes)(const ScheduleShape& shape);
  /// Returns the number of messages that a sender may have to send before the receiver takes the
  /// first one, in steps of up to shape.micro_batches micro-batches.
  int (*messages_ahead)(const ScheduleShape& shape);
  /// Returns the idle part of a step if all stages cost the same, messages are free and in_flight
  /// is 1. A backward pass takes as long as two forward passes, half of it for parameters. Only the
  /// layout and the micro-batches of the shape matter.
  double (*bubble_fraction)(const ScheduleShape& shape);
  /// `passes` returns backward_inputs and backward_parameters, except for a stage that recomputes.
  /// No other schedule returns them.
  bool splits_backward = false;
  /// A rank may hold several stages.
  bool interleaves = false;

  bool splits(const ScheduleShape& shape) const { return splits_backward && !shape.recomputes; }
};

std::span<const Schedule> schedules();
/// Throws UserError for an unknown name.
const Schedule& find_schedule(std::string_view name);

/// Returns a rank's training step for the shapes of its stages, in their order. The first stage
/// receives no activations and sends no gradients; the last one sends no activations and receives
/// no gradients. At each stage a micro-batch holds the lowest free slot from its forward pass to
/// the end of its backward pass; without backward passes all are in slot 0. The rank's only update
/// covers all of its stages and names the first. Throws InternalError unless 0 <= stage < stages,
/// micro_batches >= 0, in_flight > 0 and 0 <= first_trained_stage < stages. first_trained_stage
/// must be 0 with a shared embedding that is not frozen and with trained common parameters. Also
/// throws for several stages with a schedule that does not interleave.
Program training_program(const Schedule& schedule, std::span<const ScheduleShape> stages);

/// Rows of a shared embedding in consecutive steps of an evaluation, which changes none of them.
struct EvaluationRows {
  bool are_sent = false;       ///< this step's rows, by the step before
  int next_micro_batches = 0;  ///< micro-batches of the next step; 0: there is no such step
};

/// Returns a rank's evaluation step: forward passes only, all in slot 0, in the order of the
/// schedule. The rows of the next step leave during this one, so that no stage waits between steps.
/// Each group leaves when the activations of its first micro-batch have arrived, since the first
/// stage has then received this step's group. The groups on their way never exceed those of one
/// step.
Program evaluation_program(const Schedule& schedule, std::span<const ScheduleShape> stages,
                           const EvaluationRows& rows = {});

/// Returns the largest number of micro-batches that are alive at a stage, in steps of up to
/// shape.micro_batches micro-batches. A micro-batch is alive from its forward pass to its last
/// backward pass.
int slots_needed(const Schedule& schedule, const ScheduleShape& shape);

/// Returns the number of message buffers at each end of either direction of a boundary. Within a
/// limit it is enough that no send of the schedule ever waits for a buffer. It includes a few for
/// evaluation, which only runs forward passes.
int message_buffers(const Schedule& schedule, const ScheduleShape& shape);

/// Returns a text such as "forward stage=1 micro_batch=3 slot=0".
std::string to_text(const Instruction& instruction);

struct MicroBatchGroup {
  int begin = 0;  ///< micro-batches [begin, end)
  int end = 0;
};

/// Returns the group of rows that begins with the given micro-batch; an empty group if none does.
/// Shared embeddings cross in groups of micro-batches that double in size, so that the first group,
/// which the receiver waits for, is small. Groups of rows end at 1, 2, 4, 8 ... M.
MicroBatchGroup row_group(int micro_batch, int micro_batches);
/// Returns the group of gradients that ends with the given micro-batch; an empty group if none
/// does. Groups of gradients end at ... M - 4, M - 2, M - 1, M.
MicroBatchGroup gradient_group(int micro_batch, int micro_batches);

}  // namespace deltapipe
