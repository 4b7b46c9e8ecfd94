// Pipeline schedules as pure instruction lists: what one stage does in a step, in which order.
#pragma once

#include <vector>

#include "core/deck/settings.hpp"

namespace deltapipe {

enum class Action {
  receive_activation,
  forward,
  send_activation,
  receive_gradient,
  backward,
  send_gradient
};

struct Instruction {
  Action action;
  int micro_batch;  ///< 0 ... micro_batches - 1
  int slot;         ///< 0 ... slots_needed - 1: where the stage keeps this micro-batch's state
  bool operator==(const Instruction&) const = default;
};

/// The instructions of one stage for one step. The first stage receives no activations and sends no
/// gradients, the last one sends no activations and receives no gradients. Backward passes run in
/// the order 0 ... micro_batches - 1 in every schedule, so that gradients are summed in one order.
/// A micro-batch holds its slot from its forward to the end of its backward.
/// in_flight: see slots_needed().
/// Throws InternalError unless 0 <= stage < stages, micro_batches > 0 and in_flight > 0.
std::vector<Instruction> make_schedule(PipelineSchedule kind, int stage, int stages,
                                       int micro_batches, int in_flight = 1);

/// The most micro-batches that are alive (forward done, backward not) at that stage:
/// GPipe (arXiv 1811.06965): all; 1F1B (arXiv 1806.03377): min(micro_batches, stages - stage).
/// Over slow links a micro-batch spends longer on the way than in a stage; with in_flight > 1 that
/// many may be under way at each boundary behind the stage, so that links and stages stay busy:
/// min(micro_batches, 1 + in_flight * (stages - 1 - stage)).
int slots_needed(PipelineSchedule kind, int stage, int stages, int micro_batches,
                 int in_flight = 1);

/// Message buffers at each end of either direction of a boundary. 1F1B: with in_flight + 1 no send
/// ever waits for a buffer, since a stage runs that many forwards ahead of the next one's and that
/// many backwards behind; a few more where evaluation, which only goes forward, can use them.
/// GPipe: any number will do; a link is kept full by 1 + latency / transfer time.
int message_buffers(PipelineSchedule kind, int micro_batches, int in_flight);

/// The idle part of a step where all stages cost the same and messages are free:
/// (K - 1) / (M + K - 1) for both schedules.
double bubble_fraction(int stages, int micro_batches);

}  // namespace deltapipe
