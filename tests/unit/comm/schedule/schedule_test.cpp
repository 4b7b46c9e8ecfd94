// SPDX-License-Identifier: BSD-3-Clause
// Schedules run in the simulator: no deadlock, each micro-batch once, memory and idle time as
// promised.
#include "comm/schedule/schedule.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <set>

#include "comm/pipeline/settings.hpp"
#include "comm/schedule/executor.hpp"
#include "comm/schedule/simulation.hpp"
#include "core/base/error.hpp"
#include "support/ranks_together.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;
using test::evaluation_program;
using test::training_program;

constexpr int kUnbounded = 1 << 20;

std::vector<Program> programs_of(const Schedule& schedule, int stages, int micro_batches,
                                 int in_flight = 1,
                                 EmbeddingPlace embedding = EmbeddingPlace::none) {
  std::vector<Program> programs;
  for (int s = 0; s < stages; ++s)
    programs.push_back(
        training_program(schedule, {s, stages, micro_batches, in_flight, embedding}));
  return programs;
}

SimulationCosts costs_of(int buffers, double backward = 1) {
  SimulationCosts costs;
  costs.stages = {{1, backward}};
  costs.buffers = buffers;
  return costs;
}

/// Times of the pass that makes the gradient which is sent, and of the one that ends a micro-batch.
Action sending_pass(const Schedule& schedule) {
  return schedule.splits_backward ? Action::backward_inputs : Action::backward;
}
Action last_pass(const Schedule& schedule) {
  return schedule.splits_backward ? Action::backward_parameters : Action::backward;
}

const std::vector<int> kStages = {1, 2, 3, 4, 7, 8};
const std::vector<int> kMicroBatches = {1, 2, 3, 5, 8, 31};

template <class What>
void for_all(What what) {
  for (const Schedule& schedule : schedules()) {
    for (const int stages : kStages) {
      for (const int micro_batches : kMicroBatches) {
        CAPTURE(schedule.name, stages, micro_batches);
        what(schedule, stages, micro_batches);
      }
    }
  }
}

TEST_CASE("Every micro-batch passes every stage once, backward in order", "[schedule]") {
  for_all([](const Schedule& schedule, int stages, int micro_batches) {
    for (int s = 0; s < stages; ++s) {
      std::map<Action, std::vector<int>> seen;
      for (const Instruction& i : training_program(schedule, {s, stages, micro_batches})) {
        seen[i.action].push_back(i.micro_batch);
      }
      std::vector<int> all(static_cast<std::size_t>(micro_batches));
      for (int m = 0; m < micro_batches; ++m) all[static_cast<std::size_t>(m)] = m;
      const std::vector<int> none;
      CHECK(seen[Action::forward] == all);
      CHECK(seen[sending_pass(schedule)] == all);
      CHECK(seen[last_pass(schedule)] == all);
      CHECK(seen[Action::backward] == (schedule.splits_backward ? none : all));
      CHECK(seen[Action::receive_activation] == (s == 0 ? none : all));
      CHECK(seen[Action::send_gradient] == (s == 0 ? none : all));
      CHECK(seen[Action::send_activation] == (s == stages - 1 ? none : all));
      CHECK(seen[Action::receive_gradient] == (s == stages - 1 ? none : all));
    }
  });
}

TEST_CASE("Messages stand next to the pass that needs or makes them", "[schedule]") {
  for_all([](const Schedule& schedule, int stages, int micro_batches) {
    for (int s = 0; s < stages; ++s) {
      std::map<std::pair<Action, int>, std::size_t> at;
      const Program program = training_program(schedule, {s, stages, micro_batches});
      for (std::size_t i = 0; i < program.size(); ++i) {
        at[{program[i].action, program[i].micro_batch}] = i;
      }
      for (int m = 0; m < micro_batches; ++m) {
        const std::size_t forward = at[{Action::forward, m}];
        const std::size_t backward = at[{sending_pass(schedule), m}];
        CHECK(forward < backward);
        CHECK(backward <= at[{last_pass(schedule), m}]);
        if (s > 0) CHECK(at[{Action::receive_activation, m}] + 1 == forward);
        if (s > 0) CHECK(at[{Action::send_gradient, m}] == backward + 1);
        if (s < stages - 1) CHECK(at[{Action::send_activation, m}] == forward + 1);
        if (s < stages - 1) CHECK(at[{Action::receive_gradient, m}] + 1 == backward);
      }
    }
  });
}

/// Returns what is published of a schedule.
std::optional<int> slots_of_literature(const Schedule& schedule, int stage, int stages,
                                       int micro_batches) {
  const std::string name = schedule.name;
  if (name == "gpipe") return micro_batches;
  if (name == "1f1b" || name == "interleaved") return std::min(micro_batches, stages - stage);
  if (name == "zb-h1") return std::min(micro_batches, stages);
  return std::nullopt;
}

TEST_CASE("A stage holds as many micro-batches as promised, each in its slot", "[schedule]") {
  for_all([](const Schedule& schedule, int stages, int micro_batches) {
    for (int s = 0; s < stages; ++s) {
      const int promised = slots_needed(schedule, {s, stages, micro_batches});
      if (const std::optional<int> known = slots_of_literature(schedule, s, stages, micro_batches))
        CHECK(promised == *known);
      std::map<int, int> slot_of;  // of living micro-batches
      std::set<int> used;
      std::size_t most = 0;
      for (const Instruction& i : training_program(schedule, {s, stages, micro_batches})) {
        if (i.micro_batch < 0) continue;
        CHECK(i.slot >= 0);
        CHECK(i.slot < promised);
        if (i.action == Action::forward) {
          CHECK(used.insert(i.slot).second);
          slot_of[i.micro_batch] = i.slot;
        } else if (slot_of.count(i.micro_batch) == 1) {
          CHECK(slot_of[i.micro_batch] == i.slot);
        }
        if (i.action == Action::receive_activation) CHECK(used.count(i.slot) == 0);
        most = std::max(most, slot_of.size());
        if (i.action == last_pass(schedule)) {
          used.erase(i.slot);
          slot_of.erase(i.micro_batch);
        }
      }
      CHECK(most == static_cast<std::size_t>(promised));
      CHECK(slot_of.empty());
    }
  });
}

TEST_CASE("A micro-batch's gradients are done with before another pass, as stages rely on",
          "[schedule]") {
  for_all([](const Schedule& schedule, int stages, int micro_batches) {
    for (const Program& program : programs_of(schedule, stages, micro_batches)) {
      int open = -1;  // the micro-batch whose gradients are in use
      for (const Instruction& i : program) {
        const bool last = i.stage + 1 == stages;
        const bool sends = i.action == sending_pass(schedule);
        if (i.action == Action::receive_gradient || (sends && last)) {
          CHECK(open == -1);
          open = i.micro_batch;
        }
        if (i.action == Action::forward || i.action == Action::backward_parameters)
          CHECK(open == -1);
        if (sends) CHECK(open == i.micro_batch);
        if (i.action == Action::send_gradient) CHECK(open == i.micro_batch);
        if (i.action == Action::send_gradient || (sends && i.stage == 0)) open = -1;
      }
      CHECK(open == -1);
    }
  });
}

TEST_CASE("No schedule deadlocks, also when only one message fits into a link", "[schedule]") {
  for (const int capacity : {1, 2, kUnbounded}) {
    CAPTURE(capacity);
    for_all([&](const Schedule& schedule, int stages, int micro_batches) {
      const Simulation simulation =
          simulate(programs_of(schedule, stages, micro_batches), costs_of(capacity));
      CHECK(simulation.deadlock.empty());
    });
  }
}

TEST_CASE("With a boundary's message buffers no schedule deadlocks or waits for one",
          "[schedule]") {
  for (int in_flight = 1; in_flight <= kMostInFlight; ++in_flight)
    for (const Schedule& schedule : schedules())
      for (const int stages : {2, 3, 8})
        for (const int micro_batches : {1, 4, in_flight, in_flight + 3, 2 * in_flight + 5}) {
          const bool gpipe = schedule.name == std::string("gpipe");  // sends all before it receives
          if (gpipe && in_flight > 1) continue;
          CAPTURE(schedule.name, stages, micro_batches, in_flight);
          const int buffers = message_buffers(schedule, {0, stages, micro_batches, in_flight});
          const std::vector<Program> programs =
              programs_of(schedule, stages, micro_batches, in_flight);
          const Simulation ideal = simulate(programs, costs_of(kUnbounded, 2));
          REQUIRE(ideal.deadlock.empty());
          // A message takes a buffer at one end at least until it is received.
          for (const int capacity : {buffers, buffers + 1, 2 * buffers}) {
            const Simulation simulation = simulate(programs, costs_of(capacity, 2));
            CHECK(simulation.deadlock.empty());
            if (!gpipe) CHECK(simulation.makespan() == ideal.makespan());
          }
        }
}

TEST_CASE("The simulator finds the deadlock of too few buffers", "[schedule]") {
  // 65 forwards ahead fit no longer into 16 buffers at each of two ends.
  const Schedule& schedule = find_schedule("1f1b");
  CHECK(simulate(programs_of(schedule, 2, 128, 64), costs_of(2 * 16)).deadlock.empty());
  const std::string deadlock =
      simulate(programs_of(schedule, 2, 128, 65), costs_of(2 * 16)).deadlock;
  CHECK(deadlock ==
        "send_activation stage=0 micro_batch=65 slot=65; send_gradient stage=1 micro_batch=32 "
        "slot=0");
}

TEST_CASE("Idle time is what a schedule says", "[schedule]") {
  for_all([](const Schedule& schedule, int stages, int micro_batches) {
    const Simulation simulation =
        simulate(programs_of(schedule, stages, micro_batches), costs_of(kUnbounded, 2));
    REQUIRE(simulation.deadlock.empty());
    CHECK(1 - simulation.busy_fraction() ==
          Approx(schedule.bubble_fraction({0, stages, micro_batches})).margin(1e-12));
  });
}

TEST_CASE("Idle time is the ideal (K - 1) / (M + K - 1)", "[schedule]") {
  const std::set<std::string> ideal_ones = {"gpipe", "1f1b", "interleaved"};
  for (const double backward_cost : {1.0, 2.0}) {
    for_all([&](const Schedule& schedule, int stages, int micro_batches) {
      if (!ideal_ones.contains(schedule.name)) return;
      const Simulation simulation = simulate(programs_of(schedule, stages, micro_batches),
                                             costs_of(kUnbounded, backward_cost));
      REQUIRE(simulation.deadlock.empty());
      const double work = micro_batches * (1 + backward_cost);
      const double ideal = static_cast<double>(stages - 1) / (micro_batches + stages - 1);
      CHECK(1 - work / simulation.makespan() == Approx(ideal).margin(1e-12));
      CHECK(1 - simulation.busy_fraction() == Approx(ideal).margin(1e-12));
      CHECK(schedule.bubble_fraction({0, stages, micro_batches}) == Approx(ideal));
    });
  }
}

TEST_CASE("ZB-H1 is idle for (K - 1) (F + B - W)", "[schedule]") {
  // arXiv 2401.10241, table 2; F, B and W being the costs of the three passes.
  const Schedule& schedule = find_schedule("zb-h1");
  for (const int stages : kStages)
    for (const int micro_batches : kMicroBatches)
      for (const double share : {0.5, 0.45, 0.4}) {
        CAPTURE(stages, micro_batches, share);
        SimulationCosts costs = costs_of(kUnbounded, 2);
        costs.stages.front().parameter_share = share;
        const Simulation simulation = simulate(programs_of(schedule, stages, micro_batches), costs);
        REQUIRE(simulation.deadlock.empty());
        const double W = 2 * share, B = 2 - W;
        // Fewer micro-batches than stages: later stages have too little to put off.
        const int put_off = std::min(stages - 1, micro_batches - 1);
        const double idle = (stages - 1) * (1 + B) - put_off * W;
        if (micro_batches >= stages)
          CHECK(simulation.makespan() == Approx(3 * micro_batches + idle));
        if (share == 0.5)
          CHECK(schedule.bubble_fraction({0, stages, micro_batches}) ==
                Approx(1 - simulation.busy_fraction()).margin(1e-12));
        CHECK(
            simulation.makespan() <=
            simulate(programs_of(find_schedule("1f1b"), stages, micro_batches), costs).makespan());
      }
}

TEST_CASE("A stage that recomputes has whole backward passes", "[schedule]") {
  ScheduleShape shape{1, 3, 4};
  shape.recomputes = true;
  CHECK(training_program(find_schedule("zb-h1"), shape) ==
        training_program(find_schedule("1f1b"), shape));
  CHECK(slots_needed(find_schedule("zb-h1"), shape) == 2);
  for (const int recomputing : {0, 1, 2})
    for (const int buffers : {1, 2, kUnbounded}) {
      std::vector<Program> programs;
      for (int s = 0; s < 3; ++s) {
        ScheduleShape mixed{s, 3, 4};
        mixed.recomputes = s == recomputing;
        programs.push_back(training_program(find_schedule("zb-h1"), mixed));
      }
      CHECK(simulate(programs, costs_of(buffers, 2)).deadlock.empty());
    }
}

TEST_CASE("Over slow links ZB-H1 takes no longer than 1F1B", "[schedule]") {
  for (const int in_flight : {1, 2, 3})
    for (const double seconds : {0.5, 1.0, 2.0, 3.0})
      for (const double latency : {0.0, 1.0}) {
        CAPTURE(in_flight, seconds, latency);
        SimulationCosts costs;
        costs.activations = costs.gradients = {{seconds, latency}};
        const auto makespan = [&](const char* name) {
          return simulate(programs_of(find_schedule(name), 4, 32, in_flight), costs).makespan();
        };
        CHECK(makespan("zb-h1") < makespan("1f1b"));
      }
}

TEST_CASE("A simulated step over slow links takes what a hand works out", "[schedule]") {
  // Two stages, one micro-batch: forward 1, its message 3 + 0.5, forward 1, backward 2, its message
  // 4, backward 2; the second micro-batch's message waits for the first one's to leave.
  SimulationCosts costs;
  costs.activations = {{3, 0.5}};
  costs.gradients = {{4, 0}};
  costs.update = 0.25;
  const Schedule& schedule = find_schedule("gpipe");
  CHECK(simulate(programs_of(schedule, 2, 1), costs).makespan() == 1 + 3.5 + 3 + 4 + 2 + 0.25);
  const Simulation two = simulate(programs_of(schedule, 2, 2), costs);
  // Messages leave at 4 and 7; the second forward ends at 8.5, backwards at 10.5 and 12.5, their
  // messages arrive at 14.5 and 18.5.
  CHECK(two.makespan() == 18.5 + 2 + 0.25);
  CHECK(two.busy_fraction() == Approx((2 * 6 + 2 * 0.25) / (2 * two.makespan())));
}

TEST_CASE("Shared embeddings cross before their first use and come back after the last",
          "[schedule]") {
  for_all([](const Schedule& schedule, int stages, int micro_batches) {
    const std::vector<Program> programs =
        programs_of(schedule, stages, micro_batches, 1, EmbeddingPlace::shared);
    CHECK(simulate(programs, costs_of(kUnbounded)).deadlock.empty());
    std::map<Action, int> seen;
    for (const Program& program : programs)
      for (const Instruction& instruction : program) ++seen[instruction.action];
    int groups = 0;
    for (int m = 0; m < micro_batches; ++m)
      groups += row_group(m, micro_batches).begin < row_group(m, micro_batches).end ? 1 : 0;
    for (const Action action :
         {Action::send_embedding, Action::receive_embedding, Action::send_embedding_gradient,
          Action::receive_embedding_gradient})
      CHECK(seen[action] == (stages > 1 ? groups : 0));
    CHECK(seen[Action::add_embedding_gradient] == 1);
    CHECK(seen[Action::update] == stages);
  });
}

TEST_CASE("Every step sums gradients once and updates last", "[schedule]") {
  const Schedule& schedule = find_schedule(GENERATE("1f1b", "zb-h1"));
  for (const EmbeddingPlace embedding :
       {EmbeddingPlace::none, EmbeddingPlace::first_stage, EmbeddingPlace::shared})
    for (const int micro_batches : {0, 1, 5})
      for (const Program& program : programs_of(schedule, 3, micro_batches, 1, embedding)) {
        CHECK(program.back().action == Action::update);
        CHECK(program[program.size() - 2].action == Action::finish_reductions);
        const auto count = [&](Action action) {
          return std::count_if(program.begin(), program.end(),
                               [&](const Instruction& i) { return i.action == action; });
        };
        CHECK(count(Action::reduce_zeros) == (micro_batches == 0 ? 1 : 0));
        CHECK(count(Action::reduce_gradients) == (micro_batches == 0 ? 0 : 1));
        if (micro_batches == 0) continue;
        const auto reduce =
            std::find_if(program.begin(), program.end(), [](const Instruction& instruction) {
              return instruction.action == Action::reduce_gradients;
            });
        const auto next = std::find_if(reduce, program.end(), [&](const Instruction& instruction) {
          return instruction.action == last_pass(schedule);
        });
        CHECK(next->micro_batch == micro_batches - 1);
      }
}

TEST_CASE("Nothing goes backward before the first stage that trains", "[schedule][frozen]") {
  for_all([](const Schedule& schedule, int stages, int micro_batches) {
    for (const int first : {0, 1, stages / 2, stages - 1}) {
      if (first >= stages) continue;
      for (const EmbeddingPlace embedding :
           {EmbeddingPlace::none, EmbeddingPlace::first_stage, EmbeddingPlace::shared}) {
        CAPTURE(first, embedding);
        std::vector<Program> programs;
        for (int s = 0; s < stages; ++s) {
          const ScheduleShape shape{s, stages, micro_batches, 1, embedding, first, true};
          programs.push_back(training_program(schedule, shape));
          std::map<Action, int> seen;
          for (const Instruction& i : programs.back()) {
            ++seen[i.action];
            if (s < first && i.action == Action::forward) CHECK(i.slot == 0);
          }
          const int backward = s >= first ? micro_batches : 0;
          CHECK(seen[Action::forward] == micro_batches);
          CHECK(seen[sending_pass(schedule)] == backward);
          CHECK(seen[last_pass(schedule)] == backward);
          CHECK(seen[Action::receive_gradient] == (s + 1 < stages ? backward : 0));
          CHECK(seen[Action::send_gradient] == (s > first ? micro_batches : 0));
          CHECK(seen[Action::reduce_gradients] == (s >= first ? 1 : 0));
          CHECK(seen[Action::add_embedding_gradient] == 0);
          CHECK(seen[Action::send_embedding_gradient] == 0);
          CHECK(seen[Action::receive_embedding_gradient] == 0);
          CHECK(seen[Action::finish_reductions] == 1);
          CHECK(seen[Action::update] == 1);
          // Both stages have a frozen table: no rows of it travel, in evaluations neither.
          CHECK(seen[Action::send_embedding] == 0);
          CHECK(seen[Action::receive_embedding] == 0);
          for (const Instruction& i : evaluation_program(shape, {false, micro_batches}))
            CHECK((i.action == Action::forward || i.action == Action::receive_activation ||
                   i.action == Action::send_activation));
          CHECK(slots_needed(schedule, shape) ==
                (s < first                  ? 1
                 : schedule.splits_backward ? std::min(micro_batches, stages - first)
                                            : slots_needed(schedule, {s, stages, micro_batches})));
        }
        for (const int capacity : {1, 2, kUnbounded})
          CHECK(simulate(programs, costs_of(capacity)).deadlock.empty());
      }
    }
  });
  // Rows of a shared embedding that trains come back to it through all stages.
  CHECK_THROWS_AS(
      training_program(find_schedule("1f1b"), {0, 3, 2, 1, EmbeddingPlace::shared, 1, false}),
      InternalError);
  CHECK_THROWS_AS(
      training_program(find_schedule("1f1b"), {0, 3, 2, 1, EmbeddingPlace::none, 3, true}),
      InternalError);
}

TEST_CASE("An evaluation goes forward only, in one slot", "[schedule]") {
  using enum Action;
  const Program expected = {
      {receive_activation, 1, 0, 0}, {forward, 1, 0, 0}, {send_activation, 1, 0, 0},
      {receive_activation, 1, 1, 0}, {forward, 1, 1, 0}, {send_activation, 1, 1, 0}};
  CHECK(evaluation_program({1, 3, 2}) == expected);
  const Program first = {{receive_embedding, 0, 0}, {forward, 0, 0, 0}, {send_activation, 0, 0, 0},
                         {receive_embedding, 0, 1}, {forward, 0, 1, 0}, {send_activation, 0, 1, 0}};
  CHECK(evaluation_program({0, 2, 2, 1, EmbeddingPlace::shared}) == first);
}

TEST_CASE("Rows of the next step leave behind this step's, group by group", "[schedule]") {
  using enum Action;
  const ScheduleShape last{1, 2, 3, 1, EmbeddingPlace::shared};
  const Program begins = {
      {send_embedding, 1, 0},        {send_embedding, 1, 1},      {send_embedding, 1, 2},
      {receive_activation, 1, 0, 0}, {send_next_embedding, 1, 0}, {forward, 1, 0, 0},
      {receive_activation, 1, 1, 0}, {send_next_embedding, 1, 1}, {forward, 1, 1, 0},
      {receive_activation, 1, 2, 0}, {forward, 1, 2, 0}};
  CHECK(evaluation_program(last, {false, 2}) == begins);
  const Program ends = {{receive_activation, 1, 0, 0}, {forward, 1, 0, 0},
                        {receive_activation, 1, 1, 0}, {forward, 1, 1, 0},
                        {receive_activation, 1, 2, 0}, {forward, 1, 2, 0}};
  CHECK(evaluation_program(last, {true, 0}) == ends);
  // More micro-batches than this step has, which may be empty.
  const Program more = {{send_next_embedding, 1, 0}, {send_next_embedding, 1, 1}};
  CHECK(evaluation_program({1, 2, 0, 1, EmbeddingPlace::shared}, {true, 2}) == more);
  // Only the owner sends, and only what is borrowed.
  CHECK(evaluation_program({0, 2, 3, 1, EmbeddingPlace::shared}, {false, 2}) ==
        evaluation_program({0, 2, 3, 1, EmbeddingPlace::shared}));
  CHECK(evaluation_program({0, 1, 3, 1, EmbeddingPlace::shared}, {false, 2}) ==
        evaluation_program({0, 1, 3, 1}));
}

namespace {

/// Programs of all stages over several steps.
std::vector<Program> evaluation_of(int stages, const std::vector<int>& micro_batches, bool flows) {
  std::vector<Program> programs(static_cast<std::size_t>(stages));
  for (int s = 0; s < stages; ++s)
    for (std::size_t i = 0; i < micro_batches.size(); ++i) {
      EvaluationRows rows;
      if (flows) {
        rows.are_sent = i > 0;
        rows.next_micro_batches = i + 1 < micro_batches.size() ? micro_batches[i + 1] : 0;
      }
      const Program step =
          evaluation_program({s, stages, micro_batches[i], 1, EmbeddingPlace::shared}, rows);
      programs[s].insert(programs[s].end(), step.begin(), step.end());
    }
  return programs;
}

int row_groups(int micro_batches) {
  int groups = 0;
  for (int m = 0; m < micro_batches; ++m) {
    const MicroBatchGroup group = row_group(m, micro_batches);
    groups += group.begin < group.end ? 1 : 0;
  }
  return groups;
}

}  // namespace

TEST_CASE("Steps of an evaluation flow into each other", "[schedule]") {
  for (int stages = 2; stages <= 5; ++stages)
    for (int most = 1; most <= 9; ++most)
      for (int end = 1; end <= most; ++end) {
        CAPTURE(stages, most, end);
        const std::vector<int> micro_batches = {most, most, most, end};
        const int passes = 3 * most + end;
        const std::vector<Program> programs = evaluation_of(stages, micro_batches, true);
        for (const int buffers : {1, 2, kUnbounded}) {
          const Simulation simulation = simulate(programs, costs_of(buffers));
          CHECK(simulation.deadlock.empty());
          // With a micro-batch for every stage nobody waits but for the first and the last one.
          if (most >= stages) CHECK(simulation.makespan() == Approx(passes + stages - 1));
        }
        if (most > 1)
          CHECK(simulate(evaluation_of(stages, micro_batches, false), costs_of(kUnbounded))
                    .makespan() >= passes + stages);
        // Rows on their way: never more messages than a step has, which is what there are buffers
        // for.
        int on_their_way = 0, peak = 0;
        test::advance_together(programs, [&, sent = std::map<std::size_t, int>()](
                                             std::size_t s, const Instruction& i) mutable {
          const std::optional<Transfer> message = transfer_of(i);
          if (message && message->wire == Wire::embedding) {
            if (!message->sends && on_their_way == 0) return false;
            on_their_way += message->sends ? 1 : -1;
            peak = std::max(peak, on_their_way);
          } else if (message) {
            if (!message->sends && sent[s - 1] == 0) return false;
            sent[message->sends ? s : s - 1] += message->sends ? 1 : -1;
          }
          return true;
        });
        CHECK(on_their_way == 0);
        CHECK(peak <= row_groups(most));
      }
}

TEST_CASE("1F1B of the third of four stages is the textbook's", "[schedule]") {
  using enum Action;
  const Program expected = {
      {receive_activation, 2, 0, 0}, {forward, 2, 0, 0},          {send_activation, 2, 0, 0},
      {receive_activation, 2, 1, 1}, {forward, 2, 1, 1},          {send_activation, 2, 1, 1},
      {receive_gradient, 2, 0, 0},   {backward, 2, 0, 0},         {send_gradient, 2, 0, 0},
      {receive_activation, 2, 2, 0}, {forward, 2, 2, 0},          {send_activation, 2, 2, 0},
      {receive_gradient, 2, 1, 1},   {backward, 2, 1, 1},         {send_gradient, 2, 1, 1},
      {reduce_gradients, 2},         {receive_gradient, 2, 2, 0}, {backward, 2, 2, 0},
      {send_gradient, 2, 2, 0},      {finish_reductions, 2},      {update, 2}};
  CHECK(training_program(find_schedule("1f1b"), {2, 4, 3}) == expected);
}

TEST_CASE("ZB-H1 of the second of three stages is the paper's", "[schedule]") {
  using enum Action;
  const Program expected = {{receive_activation, 1, 0, 0},
                            {forward, 1, 0, 0},
                            {send_activation, 1, 0, 0},
                            {receive_activation, 1, 1, 1},
                            {forward, 1, 1, 1},
                            {send_activation, 1, 1, 1},
                            {receive_gradient, 1, 0, 0},
                            {backward_inputs, 1, 0, 0},
                            {send_gradient, 1, 0, 0},
                            {receive_activation, 1, 2, 2},
                            {forward, 1, 2, 2},
                            {send_activation, 1, 2, 2},
                            {receive_gradient, 1, 1, 1},
                            {backward_inputs, 1, 1, 1},
                            {send_gradient, 1, 1, 1},
                            {backward_parameters, 1, 0, 0},
                            {receive_gradient, 1, 2, 2},
                            {backward_inputs, 1, 2, 2},
                            {send_gradient, 1, 2, 2},
                            {backward_parameters, 1, 1, 1},
                            {reduce_gradients, 1},
                            {backward_parameters, 1, 2, 2},
                            {finish_reductions, 1},
                            {update, 1}};
  CHECK(training_program(find_schedule("zb-h1"), {1, 3, 3}) == expected);
}

TEST_CASE("An instruction's text names its stage, micro-batch and slot", "[schedule]") {
  CHECK(to_text(Instruction{Action::forward, 1, 3, 0}) == "forward stage=1 micro_batch=3 slot=0");
  CHECK(to_text(Instruction{Action::send_embedding, 1, 2}) ==
        "send_embedding stage=1 micro_batch=2");
  CHECK(to_text(Instruction{Action::update, 2}) == "update stage=2");
  CHECK(to_text(Instruction{Action::send_common_values}) == "send_common_values stage=0");
}

TEST_CASE("The grid of a schedule shows passes and waiting", "[schedule]") {
  CHECK(grid_of(simulate(programs_of(find_schedule("1f1b"), 2, 3), costs_of(kUnbounded, 2))) ==
        "stage 0 | F0 F1 .  .  B0--- F2 B1--- .  B2---\n"
        "stage 1 | .  F0 B0--- F1 B1--- F2 B2--- .  .\n");
  // The paper's figure: B is half of a backward pass, W the other half.
  CHECK(grid_of(simulate(programs_of(find_schedule("zb-h1"), 2, 3), costs_of(kUnbounded, 2))) ==
        "stage 0 | F0 F1 .  B0 W0 F2 B1 W1 B2 W2\n"
        "stage 1 | .  F0 B0 F1 B1 W0 F2 B2 W1 W2\n");
  CHECK(grid_of(Simulation{}) == "");
}

TEST_CASE("An unknown schedule is refused with the known ones", "[schedule]") {
  CHECK_THROWS_WITH(find_schedule("zb-v"), Contains("zb-v") && Contains("gpipe, 1f1b, zb-h1"));
}

TEST_CASE("Impossible layouts are refused", "[schedule]") {
  for (const Schedule& schedule : schedules()) {
    CHECK_THROWS_AS(training_program(schedule, {2, 2, 1}), InternalError);
    CHECK_THROWS_AS(training_program(schedule, {-1, 2, 1}), InternalError);
    CHECK_THROWS_AS(training_program(schedule, {0, 2, -1}), InternalError);
    CHECK_THROWS_AS(training_program(schedule, {0, 2, 1, 0}), InternalError);
  }
}

}  // namespace
}  // namespace deltapipe
