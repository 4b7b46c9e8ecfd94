// SPDX-License-Identifier: BSD-3-Clause
// Several stages on a rank: the schedule runs in the simulator, and the model's stages run by it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "comm/schedule/schedule.hpp"
#include "comm/schedule/simulation.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

constexpr int kUnbounded = 1 << 20;

struct Layout {
  int ranks, stages_per_rank, micro_batches;
  int in_flight = 1;
  EmbeddingPlace embedding = EmbeddingPlace::none;
  int first_trained_stage = 0;
};

const Schedule& interleaved() {
  return find_schedule("interleaved");
}

std::vector<ScheduleShape> stages_of(const Layout& l, int rank) {
  std::vector<ScheduleShape> stages;
  for (int local = 0; local < l.stages_per_rank; ++local)
    stages.push_back({rank + local * l.ranks, l.ranks * l.stages_per_rank, l.micro_batches,
                      l.in_flight, l.embedding, l.first_trained_stage, false, false,
                      l.stages_per_rank});
  return stages;
}

std::vector<Program> programs_of(const Layout& l) {
  std::vector<Program> programs;
  for (int rank = 0; rank < l.ranks; ++rank)
    programs.push_back(training_program(interleaved(), stages_of(l, rank)));
  return programs;
}

SimulationCosts costs_of(int buffers, double message = 0) {
  SimulationCosts costs;
  costs.buffers = buffers;
  costs.activations = costs.gradients = {{message}};
  return costs;
}

template <class What>
void for_all(const What& what) {
  for (const int ranks : {2, 3, 4, 5})
    for (const int stages_per_rank : {2, 3, 4})
      for (int micro_batches = 1; micro_batches < 24; ++micro_batches)
        for (const int in_flight : {1, 2, 3}) {
          CAPTURE(ranks, stages_per_rank, micro_batches, in_flight);
          what(Layout{ranks, stages_per_rank, micro_batches, in_flight});
        }
}

TEST_CASE("Interleaved: every micro-batch passes every stage once, in order", "[interleaved]") {
  for_all([](const Layout& l) {
    std::vector<int> all;
    for (int m = 0; m < l.micro_batches; ++m) all.push_back(m);
    for (int rank = 0; rank < l.ranks; ++rank) {
      std::map<std::pair<Action, int>, std::vector<int>> seen;
      std::set<std::tuple<int, int>> forward;  // stage and micro-batch
      bool is_ordered = true;
      for (const Instruction& i : training_program(interleaved(), stages_of(l, rank))) {
        seen[{i.action, i.stage}].push_back(i.micro_batch);
        if (i.action == Action::forward) forward.insert({i.stage, i.micro_batch});
        if (i.action == Action::backward)
          is_ordered = is_ordered && forward.contains({i.stage, i.micro_batch});
      }
      CHECK(is_ordered);
      CHECK(seen[{Action::update, rank}].size() == 1);
      for (int local = 0; local < l.stages_per_rank; ++local) {
        const int stage = rank + local * l.ranks, last = l.ranks * l.stages_per_rank - 1;
        CHECK(seen[{Action::forward, stage}] == all);
        CHECK(seen[{Action::backward, stage}] == all);
        CHECK(seen[{Action::receive_activation, stage}].size() == (stage == 0 ? 0 : all.size()));
        CHECK(seen[{Action::send_gradient, stage}].size() == (stage == 0 ? 0 : all.size()));
        CHECK(seen[{Action::send_activation, stage}].size() == (stage == last ? 0 : all.size()));
        CHECK(seen[{Action::receive_gradient, stage}].size() == (stage == last ? 0 : all.size()));
        CHECK(seen[{Action::finish_reductions, stage}].size() == 1);
        if (local > 0) CHECK(seen[{Action::update, stage}].empty());
      }
    }
  });
}

TEST_CASE("Interleaved: as many message buffers as a step of any size needs", "[interleaved]") {
  for (const EmbeddingPlace embedding : {EmbeddingPlace::none, EmbeddingPlace::shared})
    for_all([&](Layout l) {
      l.embedding = embedding;
      // The slots of a full step serve a smaller one.
      ScheduleShape full = stages_of(l, 0).front();
      full.micro_batches = 23;
      const int buffers = message_buffers(interleaved(), full);
      const Simulation bounded = simulate(programs_of(l), costs_of(buffers, 0.7));
      REQUIRE(bounded.deadlock == "");
      CHECK(bounded.makespan() ==
            Approx(simulate(programs_of(l), costs_of(kUnbounded, 0.7)).makespan()));
      CHECK(simulate(programs_of(l), costs_of(message_buffers(interleaved(), stages_of(l, 0)[0])))
                .deadlock == "");
    });
}

TEST_CASE("Interleaved: frozen first stages have no backward passes", "[interleaved]") {
  for (const int first_trained : {1, 2, 3, 5})
    for (const int micro_batches : {1, 4, 7}) {
      const Layout l{3, 2, micro_batches, 1, EmbeddingPlace::none, first_trained};
      REQUIRE(simulate(programs_of(l), costs_of(4)).deadlock == "");
      for (const Program& program : programs_of(l))
        for (const Instruction& i : program) {
          if (i.action == Action::backward) CHECK(i.stage >= first_trained);
          if (i.action == Action::send_gradient) CHECK(i.stage > first_trained);
        }
    }
}

TEST_CASE("Interleaved: ranks wait V times less", "[interleaved]") {
  // Narayanan et al. 2021, section 2.2.2: (K - 1) / (V M) of the time of the passes.
  for_all([](const Layout& l) {
    if (l.in_flight > 1 && l.micro_batches < 2 * l.ranks * l.in_flight) return;
    const Simulation simulation = simulate(programs_of(l), costs_of(kUnbounded));
    REQUIRE(simulation.deadlock == "");
    const double passes = 3.0 * l.stages_per_rank * l.micro_batches;
    if (l.micro_batches >= l.ranks)
      CHECK(simulation.makespan() / passes - 1 ==
            Approx((l.ranks - 1.0) / (l.stages_per_rank * l.micro_batches)));
    CHECK(interleaved().bubble_fraction(stages_of(l, 0).front()) ==
          Approx(1 - simulation.busy_fraction()).margin(1e-12));
  });
}

TEST_CASE("Interleaved: more in flight hides slower links", "[interleaved]") {
  const auto idle = [](int in_flight, double latency) {
    SimulationCosts costs;
    costs.activations = costs.gradients = {{0, latency}};
    return 1 - simulate(programs_of({3, 2, 24, in_flight}), costs).busy_fraction();
  };
  CHECK(idle(1, 3) > 0.4);
  CHECK(idle(2, 3) < 0.6 * idle(1, 3));
  CHECK(idle(3, 3) < idle(2, 3));
}

TEST_CASE("Interleaved: slots are enough for steps of any size, one micro-batch each",
          "[interleaved]") {
  for_all([](const Layout& l) {
    for (int rank = 0; rank < l.ranks; ++rank)
      for (int local = 0; local < l.stages_per_rank; ++local) {
        const int slots = slots_needed(interleaved(), stages_of(l, rank)[local]);
        CHECK(slots <= l.micro_batches);
        int most = 0;
        for (int fewer = 1; fewer <= l.micro_batches; ++fewer) {
          Layout step = l;
          step.micro_batches = fewer;
          std::set<int> used;
          for (const Instruction& i : training_program(interleaved(), stages_of(step, rank))) {
            if (i.stage != rank + local * l.ranks) continue;
            if (i.action == Action::forward) REQUIRE(used.insert(i.slot).second);
            if (i.action == Action::backward) REQUIRE(used.erase(i.slot) == 1);
            most = std::max(most, i.slot + 1);
          }
          CHECK(used.empty());
        }
        CHECK(slots == most);
      }
  });
}

TEST_CASE("Interleaved: evaluations go forward through all stages", "[interleaved]") {
  for_all([](Layout l) {
    l.embedding = EmbeddingPlace::shared;
    std::vector<Program> programs;
    for (int rank = 0; rank < l.ranks; ++rank)
      programs.push_back(evaluation_program(interleaved(), stages_of(l, rank)));
    const Simulation simulation =
        simulate(programs, costs_of(message_buffers(interleaved(), stages_of(l, 0).front())));
    REQUIRE(simulation.deadlock == "");
    for (const Program& program : programs)
      for (const Instruction& i : program) {
        CHECK(i.action != Action::backward);
        if (i.action == Action::forward) CHECK(i.slot == 0);
      }
    if (l.in_flight == 1 && l.micro_batches >= l.ranks)
      CHECK(simulation.makespan() == Approx(l.stages_per_rank * l.micro_batches + l.ranks - 1));
  });
}

TEST_CASE("Interleaved: a drawing names ranks and stages", "[interleaved]") {
  const Layout l{2, 2, 2};
  CHECK(grid_of(simulate(programs_of(l), costs_of(kUnbounded))) ==
        "rank 0 | F0@0 F1@0 F0@2 F1@2 .    .    B0@2----- .    B1@2----- B0@0----- B1@0-----\n"
        "rank 1 | .    F0@1 F1@1 F0@3 B0@3----- F1@3 B1@3----- B0@1----- B1@1----- .    .\n");
}

TEST_CASE("Only a schedule that interleaves takes several stages", "[interleaved]") {
  const std::vector<ScheduleShape> stages = stages_of({2, 2, 4}, 0);
  CHECK_THROWS_AS(training_program(find_schedule("1f1b"), stages), InternalError);
  CHECK_THROWS_AS(training_program(interleaved(), std::vector{stages[1], stages[0]}),
                  InternalError);
  CHECK_THROWS_AS(training_program(interleaved(), std::span(stages).first(1)), InternalError);
}

}  // namespace
}  // namespace deltapipe
