// SPDX-License-Identifier: BSD-3-Clause
// Steps in the simulator whose times a hand works out: links that messages share, codecs, sums over
// replicas, and what ranks wait for.
#include "comm/schedule/simulation.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "comm/schedule/schedule.hpp"
#include "support/ranks_together.hpp"

namespace deltapipe {
namespace {

std::vector<Program> programs_of(const char* schedule, int stages, int micro_batches,
                                 int in_flight = 1) {
  std::vector<Program> programs;
  for (int stage = 0; stage < stages; ++stage)
    programs.push_back(
        test::training_program(find_schedule(schedule), {stage, stages, micro_batches, in_flight}));
  return programs;
}

double begin_of(const Simulation& simulation, std::size_t rank, Action action, int micro_batch) {
  for (const TimelineEntry& entry : simulation.ranks[rank])
    if (entry.instruction.action == action && entry.instruction.micro_batch == micro_batch)
      return entry.begin;
  FAIL("no such instruction");
  return 0;
}

TEST_CASE("Encoding and decoding take the time of both ranks", "[simulation]") {
  SimulationCosts costs;
  costs.activations = {{.message_seconds = 3, .encode_seconds = 0.5, .decode_seconds = 0.25}};
  costs.gradients = {{.message_seconds = 1, .encode_seconds = 0.125}};
  const Simulation simulation = simulate(programs_of("gpipe", 2, 1), costs);
  // Forward 1, encode 0.5, message 3, decode 0.25, forward 1, backward 2, encode 0.125, message 1,
  // backward 2.
  CHECK(simulation.makespan() == 10.875);
  CHECK(simulation.seconds[0].codec == 0.5);
  CHECK(simulation.seconds[1].codec == 0.375);
  CHECK(simulation.seconds[0].compute == 3);
  // Rank 1 waits until rank 0 sends, at 1.5, and then for the message.
  CHECK(simulation.seconds[1].bubble == 1.5);
  CHECK(simulation.seconds[1].wire == 3);
  CHECK(simulation.seconds[0].bubble == 7.875 - 1.5);
  CHECK(simulation.seconds[0].wire == 1);
}

TEST_CASE("Stages and boundaries have costs of their own", "[simulation]") {
  SimulationCosts costs;
  costs.stages = {{1, 2}, {10, 20}, {100, 200}};
  costs.activations = {{0.5}, {0.25}};
  costs.gradients = {{4}, {8}};
  CHECK(simulate(programs_of("gpipe", 3, 1), costs).makespan() == 333 + 0.75 + 12);
}

TEST_CASE("A message occupies its sender's wire and its receiver's", "[simulation]") {
  SimulationCosts costs;
  costs.stages = {{0, 0}};
  costs.activations = costs.gradients = {{2, 1}};
  costs.sharing = LinkSharing::rank_wires;
  // One message: out of rank 0 from 0 to 2, into rank 1 from 1 to 3.
  CHECK(simulate(programs_of("gpipe", 2, 1), costs).makespan() == 2 * 3);
  // Two activations leave until 4 and arrive until 5. Both gradients leave from 5 on.
  CHECK(simulate(programs_of("gpipe", 2, 2), costs).makespan() == 5 + 5);
}

TEST_CASE("A rank receives over one wire from both sides", "[simulation]") {
  SimulationCosts costs;
  costs.stages = {{0, 0}};
  costs.activations = costs.gradients = {{2, 1}};
  costs.sharing = LinkSharing::receiver_wires;
  CHECK(simulate(programs_of("gpipe", 2, 1), costs).makespan() == 2 * 3);
  CHECK(simulate(programs_of("gpipe", 2, 4), costs).makespan() == 2 * 4 * 3);

  // The middle rank's wire is busy from the first activation to its last gradient: 2 M messages. A
  // first activation precedes the gradients, and a last gradient follows at rank 0.
  for (const int micro_batches : {1, 4, 32}) {
    const Simulation simulation = simulate(programs_of("1f1b", 3, micro_batches, 4), costs);
    CHECK(simulation.makespan() >= 3 * (2 * micro_batches + 1));
    CHECK(simulation.makespan() <= 3 * (2 * micro_batches + 2));
  }
}

TEST_CASE("Messages of different boundaries between two ranks share their link", "[simulation]") {
  // Two ranks with two stages each: boundaries 0 and 2 lead from rank 0 to rank 1.
  const auto makespan = [](LinkSharing sharing) {
    std::vector<Program> programs;
    for (const int rank : {0, 1}) {
      std::vector<ScheduleShape> stages;
      for (const int stage : {rank, rank + 2}) {
        ScheduleShape shape{stage, 4, 2};
        shape.stages_per_rank = 2;
        stages.push_back(shape);
      }
      programs.push_back(training_program(find_schedule("interleaved"), stages));
    }
    SimulationCosts costs;
    costs.stages = {{0, 0}};
    costs.activations = costs.gradients = {{1}};
    costs.sharing = sharing;
    return simulate(programs, costs).makespan();
  };
  // Each direction carries two activations of boundaries 0 and 2, or of 1, and gradients.
  CHECK(makespan(LinkSharing::rank_pairs) >= 4 + 2);
  CHECK(makespan(LinkSharing::receiver_wires) >= makespan(LinkSharing::rank_pairs));
}

TEST_CASE("A sum over replicas hides behind the backward pass that completes it", "[simulation]") {
  std::vector<Program> programs = {{{Action::forward, 0, 0, 0},
                                    {Action::reduce_gradients, 0},
                                    {Action::backward, 0, 0, 0},
                                    {Action::finish_reductions, 0},
                                    {Action::update, 0}}};
  SimulationCosts costs;
  costs.stages = {{1, 4}};
  costs.update = 0.5;
  const auto simulated = [&](const SumCost& sum) {
    costs.sums = {sum};
    return simulate(programs, costs);
  };
  CHECK(simulated({}).makespan() == 5.5);
  // The first of four parts is available after a quarter of the pass, at 2, and the last one, which
  // takes a quarter of the sum, at the pass' end.
  CHECK(simulated({.seconds = 2, .parts = 4}).makespan() == 5 + 0.5 + 0.5);
  CHECK(simulated({.seconds = 8, .parts = 4}).makespan() == 2 + 8 + 0.5);
  CHECK(simulated({.seconds = 8, .parts = 4, .latency_seconds = 1}).makespan() == 2 + 8 + 1 + 0.5);
  CHECK(simulated({.seconds = 8, .parts = 4}).seconds[0].replicas == 5);
  CHECK(simulated({.seconds = 8, .parts = 1}).makespan() == 5 + 8 + 0.5);
}

TEST_CASE("Messages pass a rank's wire between the pieces of a sum", "[simulation]") {
  // Stage 1 sends its gradient after its sum began, at 3.
  const std::vector<Program> programs = {{{Action::forward, 0, 0, 0},
                                          {Action::send_activation, 0, 0, 0},
                                          {Action::receive_gradient, 0, 0, 0},
                                          {Action::backward, 0, 0, 0},
                                          {Action::finish_reductions, 0},
                                          {Action::update, 0}},
                                         {{Action::receive_activation, 1, 0, 0},
                                          {Action::forward, 1, 0, 0},
                                          {Action::reduce_gradients, 1},
                                          {Action::backward, 1, 0, 0},
                                          {Action::send_gradient, 1, 0, 0},
                                          {Action::finish_reductions, 1},
                                          {Action::update, 1}}};
  SimulationCosts costs;
  costs.stages = {{1, 1}};
  costs.activations = costs.gradients = {{1}};
  costs.sharing = LinkSharing::rank_wires;
  const auto simulated = [&](const SumCost& sum) {
    costs.sums = {{}, sum};
    costs.sums[0].seconds = 0;
    return simulate(programs, costs);
  };
  // The activation arrives at 2, and stage 1 computes until 4. All of its gradients are ready then.
  const Simulation whole = simulated({.seconds = 8, .pieces = 1});
  CHECK(begin_of(whole, 0, Action::backward, 0) == 4 + 8 + 1);
  CHECK(whole.seconds[1].replicas == 8);
  // The gradient follows the first of four pieces, and delays the others.
  const Simulation pieces = simulated({.seconds = 8, .latency_seconds = 0.5, .pieces = 4});
  CHECK(begin_of(pieces, 0, Action::backward, 0) == 4 + 2 + 1);
  CHECK(pieces.seconds[1].replicas == 8 + 1 + 0.5);
  CHECK(pieces.makespan() == 4 + 8 + 1 + 0.5);
}

TEST_CASE("Gradients of shared parameters are summed after all passes", "[simulation]") {
  const std::vector<Program> programs = {{{Action::send_embedding_gradient, 0, 0}},
                                         {{Action::reduce_gradients, 1},
                                          {Action::backward, 1, 0, 0},
                                          {Action::receive_embedding_gradient, 1, 0},
                                          {Action::add_embedding_gradient, 1},
                                          {Action::finish_reductions, 1},
                                          {Action::update, 1}}};
  SimulationCosts costs;
  costs.stages = {{0, 1}};
  costs.embedding_gradient = {9};
  costs.sums = {{.seconds = 2, .latency_seconds = 0.5, .pieces = 2}};
  costs.embedding_sum = {.seconds = 1, .latency_seconds = 0.5};
  // The gradients of the other stage arrive at 9.
  CHECK(simulate(programs, costs).makespan() == 9 + 1 + 0.5);
  // The sum that passes meanwhile waits for them at the rank's wire.
  costs.sharing = LinkSharing::rank_wires;
  CHECK(simulate(programs, costs).makespan() == 9 + 2 + 1 + 0.5);
}

TEST_CASE("Sums of a rank's stages pass its wire one after the other", "[simulation]") {
  std::vector<Program> programs(1);
  for (const int stage : {0, 1}) {
    programs[0].push_back({Action::reduce_gradients, stage});
    programs[0].push_back({Action::backward, stage, 0, 0});
  }
  programs[0].push_back({Action::finish_reductions, 0});
  programs[0].push_back({Action::update, 0});
  SimulationCosts costs;
  costs.stages = {{1, 1}};
  costs.sharing = LinkSharing::rank_wires;
  costs.sums = {{.seconds = 3, .pieces = 3}, {.seconds = 5, .pieces = 2}};
  CHECK(simulate(programs, costs).makespan() == 1 + 3 + 5);
  // The second one does not begin before its gradients are complete, at 21.
  costs.stages = {{1, 1}, {1, 20}};
  CHECK(simulate(programs, costs).makespan() == 21 + 5);
  // A sum that is nothing does not hide the first one's end.
  costs.stages = {{1, 1}};
  costs.sums[1] = {.latency_seconds = 0.25};
  CHECK(simulate(programs, costs).makespan() == 1 + 3);
}

TEST_CASE("The parts of a step add up on every rank", "[simulation]") {
  SimulationCosts costs;
  costs.stages = {{1, 2.5}};
  costs.activations = {{0.7, 0.3, 0.1, 0.2}};
  costs.gradients = {{0.9, 0.4, 0.15, 0.25}};
  costs.update = 0.3;
  for (const LinkSharing sharing :
       {LinkSharing::rank_pairs, LinkSharing::rank_wires, LinkSharing::receiver_wires})
    for (const char* const schedule : {"gpipe", "1f1b", "zb-h1"})
      for (const int buffers : {1, 3, 64})
        for (const int stages : {1, 2, 5}) {
          CAPTURE(static_cast<int>(sharing), schedule, buffers, stages);
          costs.sharing = sharing;
          costs.buffers = buffers;
          const Simulation simulation = simulate(programs_of(schedule, stages, 7), costs);
          REQUIRE(simulation.deadlock == "");
          for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
            const RankSeconds& s = simulation.seconds[r];
            CHECK(s.compute + s.codec + s.wire + s.bubble + s.replicas ==
                  Approx(simulation.ranks[r].back().end));
            CHECK(s.compute == Approx(7 * 3.5 + 0.3));
            double busy = 0;
            for (const TimelineEntry& entry : simulation.ranks[r]) busy += entry.end - entry.begin;
            CHECK(busy == Approx(s.compute + s.codec));
          }
        }
}

TEST_CASE("A sender waits while its messages were not received", "[simulation]") {
  SimulationCosts costs;
  costs.stages = {{1, 1}, {10, 10}};
  costs.buffers = 1;
  const Simulation simulation = simulate(programs_of("gpipe", 2, 3), costs);
  // Rank 1 receives at 1, 11 and 21: the second message is sent at 2, the third one waits until 11.
  CHECK(begin_of(simulation, 0, Action::send_activation, 1) == 2);
  CHECK(begin_of(simulation, 0, Action::send_activation, 2) == 11);
  CHECK(simulation.seconds[0].wire == 8);
}

TEST_CASE("A thousand stages are simulated", "[simulation]") {
  SimulationCosts costs;
  costs.activations = costs.gradients = {{0.25, 0.5}};
  const Simulation simulation = simulate(programs_of("1f1b", 1000, 64), costs);
  REQUIRE(simulation.deadlock == "");
  // A micro-batch passes all stages there and back.
  CHECK(simulation.makespan() > 1000 * 3 + 2 * 999 * 0.75);
}

}  // namespace
}  // namespace deltapipe
