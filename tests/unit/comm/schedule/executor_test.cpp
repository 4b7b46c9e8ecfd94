// SPDX-License-Identifier: BSD-3-Clause
// The executor with stages that only note their instructions, for every schedule: what each of them
// gets, holds and hands on, and that what cannot run is found out.
#include "comm/schedule/executor.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "comm/schedule/simulation.hpp"
#include "core/base/error.hpp"
#include "support/ranks_together.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;
using test::evaluation_program;
using test::run_together;
using test::training_program;

/// Messages under way, and who did what.
struct World {
  int stages = 1;
  int micro_batches = 1;
  EmbeddingPlace embedding = EmbeddingPlace::none;
  std::map<std::tuple<Wire, int, int>, std::string> messages;
  std::size_t most_messages = 0;
  bool trains_common = false;

  bool lends_embedding() const { return embedding == EmbeddingPlace::shared && stages > 1; }
};

/// Activations and gradients are the stages that they came through: "3 0 1".
class FakeStage final : public InstructionHandler {
 public:
  FakeStage(World& world, int stage)
      : world_(world), stage_(stage), last_(stage + 1 == world.stages) {}

  void send(const Transfer& m) override {
    CHECK(m.sends);
    std::string contents;
    if (m.wire == Wire::activation) {
      CHECK(m.boundary == stage_);
      contents = held(m.slot, m.micro_batch).output;
    } else if (m.wire == Wire::gradient) {
      CHECK(m.boundary == stage_ - 1);
      contents = input_gradient_.at(m.micro_batch);
    } else if (m.wire == Wire::common_gradient) {
      CHECK(m.boundary == stage_ - 1);
      CHECK(common_gradients == 1);
    } else if (m.wire == Wire::common_values) {
      CHECK(m.boundary == stage_);
      CHECK(common_values == (stage_ == 0 ? 0 : 1));
      CHECK(reductions == 1);
    } else if (m.wire == Wire::embedding) {
      CHECK(last_);
      CHECK(forwards == 0);
    } else {
      CHECK(stage_ == 0);
      CHECK(backwards == gradient_group(m.micro_batch, world_.micro_batches).end);
    }
    CHECK(world_.messages.emplace(std::tuple(m.wire, m.boundary, m.micro_batch), contents).second);
    world_.most_messages = std::max(world_.most_messages, world_.messages.size());
  }
  void receive(const Transfer& m) override {
    CHECK_FALSE(m.sends);
    const auto message = world_.messages.extract({m.wire, m.boundary, m.micro_batch});
    REQUIRE_FALSE(message.empty());
    if (m.wire == Wire::activation) {
      CHECK(m.boundary == stage_ - 1);
      CHECK((evaluates || slots_.count(m.slot) == 0));
      input_ = message.mapped();
    } else if (m.wire == Wire::gradient) {
      CHECK(m.boundary == stage_);
      held(m.slot, m.micro_batch).output_gradient = message.mapped();
    } else if (m.wire == Wire::common_gradient) {
      CHECK(m.boundary == stage_);
      CHECK(common_gradients == 0);
      common_received_ = true;
    } else if (m.wire == Wire::common_values) {
      CHECK(m.boundary == stage_ - 1);
      ++common_values;
    } else if (m.wire == Wire::embedding) {
      CHECK(stage_ == 0);
      CHECK(m.micro_batch == rows_before_);
      rows_before_ = row_group(m.micro_batch, world_.micro_batches).end;
    } else {
      CHECK(last_);
      CHECK(backwards == world_.micro_batches);
      gradients_before_ = gradient_group(m.micro_batch, world_.micro_batches).end;
    }
  }
  void forward(const StagePass& pass) override {
    CHECK(pass.micro_batch == forwards);
    CHECK(pass.accumulate == (forwards++ > 0));
    CHECK_FALSE(pass.gradients_are_final);
    if (world_.lends_embedding() && stage_ == 0) CHECK(pass.micro_batch < rows_before_);
    const std::string x = stage_ == 0 ? std::to_string(pass.micro_batch) : input_;
    const std::string y = x + " " + std::to_string(stage_);
    if (evaluates) {
      CHECK(pass.slot == 0);
      slots_.clear();
    }
    CHECK(slots_.try_emplace(pass.slot, Held{pass.micro_batch, y, ""}).second);
    if (last_) outputs.push_back(y);
  }
  void backward(const StagePass& pass) override {
    CHECK(pass.gradients_are_final == (backwards + 1 == world_.micro_batches));
    make_input_gradient(pass);
    slots_.erase(pass.slot);
  }
  void backward_inputs(const StagePass& pass) override {
    CHECK_FALSE(pass.gradients_are_final);
    make_input_gradient(pass);
  }
  void backward_parameters(const StagePass& pass) override {
    CHECK(pass.micro_batch < backwards);
    CHECK(pass.micro_batch == parameter_passes);
    CHECK(pass.accumulate == (parameter_passes++ > 0));
    CHECK(pass.gradients_are_final == (parameter_passes == world_.micro_batches));
    held(pass.slot, pass.micro_batch);
    slots_.erase(pass.slot);
  }
  void make_input_gradient(const StagePass& pass) {
    CHECK(pass.micro_batch == backwards);
    CHECK(pass.accumulate == (backwards++ > 0));
    const Held& own = held(pass.slot, pass.micro_batch);
    const std::string dy = last_ ? std::to_string(pass.micro_batch) : own.output_gradient;
    input_gradient_[pass.micro_batch] = dy + " " + std::to_string(stage_);
    if (stage_ == 0) outputs.push_back(input_gradient_[pass.micro_batch]);
  }
  void reduce_zeros() override {
    CHECK(world_.micro_batches == 0);
    ++zeros;
  }
  void add_embedding_gradient() override {
    CHECK((world_.embedding == EmbeddingPlace::shared ? last_ : stage_ == 0));
    CHECK(backwards == world_.micro_batches);
    if (world_.lends_embedding()) CHECK(gradients_before_ == world_.micro_batches);
    ++embedding_gradients;
  }
  void add_common_gradient() override {
    CHECK(world_.trains_common);
    CHECK(backwards == world_.micro_batches);
    CHECK(common_received_ == !last_);
    ++common_gradients;
  }
  void finish_reductions() override {
    CHECK(slots_.empty());
    CHECK(common_gradients == (world_.trains_common && world_.micro_batches > 0 ? 1 : 0));
    CHECK(backwards == world_.micro_batches);
    ++reductions;
  }
  void update() override { CHECK(reductions == ++updates); }

  std::vector<std::string> outputs;  ///< of the last stage's forward, of the first one's backward
  int forwards = 0, backwards = 0, parameter_passes = 0, zeros = 0, embedding_gradients = 0,
      common_gradients = 0, common_values = 0, reductions = 0, updates = 0;
  bool evaluates = false;

 private:
  struct Held {
    int micro_batch;
    std::string output, output_gradient;
  };
  Held& held(int slot, int micro_batch) {
    REQUIRE(slots_.count(slot) == 1);
    CHECK(slots_.at(slot).micro_batch == micro_batch);
    return slots_.at(slot);
  }

  World& world_;
  int stage_;
  bool last_;
  std::map<int, Held> slots_;
  std::string input_;
  std::map<int, std::string> input_gradient_;
  int rows_before_ = 0, gradients_before_ = 0;
  bool common_received_ = false;
};

struct Stages {
  explicit Stages(World& world) {
    for (int s = 0; s < world.stages; ++s) stages.emplace_back(world, s);
  }
  std::vector<InstructionHandler*> handlers() {
    std::vector<InstructionHandler*> all;
    for (FakeStage& stage : stages) all.push_back(&stage);
    return all;
  }
  std::vector<FakeStage> stages;
};

/// "3 0 1 2", or backwards "3 2 1 0".
std::vector<std::string> through_all(const World& world, bool backward) {
  std::vector<std::string> all;
  for (int m = 0; m < world.micro_batches; ++m) {
    std::string text = std::to_string(m);
    for (int s = 0; s < world.stages; ++s)
      text += " " + std::to_string(backward ? world.stages - 1 - s : s);
    all.push_back(text);
  }
  return all;
}

template <class What>
void for_all(What what) {
  for (const Schedule& schedule : schedules())
    for (const EmbeddingPlace embedding :
         {EmbeddingPlace::none, EmbeddingPlace::first_stage, EmbeddingPlace::shared})
      for (const int stages : {1, 2, 3, 5})
        for (const int micro_batches : {0, 1, 2, 5, 9})
          for (const int in_flight : {1, 3}) {
            CAPTURE(schedule.name, embedding, stages, micro_batches, in_flight);
            World world{stages, micro_batches, embedding, {}, 0};
            what(schedule, world, in_flight);
          }
}

TEST_CASE("Stages of one process do a whole step, whatever the schedule", "[executor]") {
  for_all([](const Schedule& schedule, World& world, int in_flight) {
    Stages all(world);
    std::vector<Program> programs;
    for (int s = 0; s < world.stages; ++s)
      programs.push_back(training_program(
          schedule, {s, world.stages, world.micro_batches, in_flight, world.embedding}));
    run_together(programs, all.handlers());
    CHECK(world.messages.empty());
    int embedding_gradients = 0;
    for (const FakeStage& stage : all.stages) {
      CHECK(stage.forwards == world.micro_batches);
      CHECK(stage.backwards == world.micro_batches);
      CHECK(stage.zeros == (world.micro_batches == 0 ? 1 : 0));
      CHECK(stage.reductions == 1);
      CHECK(stage.updates == 1);
      embedding_gradients += stage.embedding_gradients;
    }
    const bool has_gradient = world.embedding != EmbeddingPlace::none && world.micro_batches > 0;
    CHECK(embedding_gradients == (has_gradient ? 1 : 0));
    if (world.stages == 1) return;
    CHECK(all.stages.back().outputs == through_all(world, false));
    CHECK(all.stages.front().outputs == through_all(world, true));
  });
}

TEST_CASE("Common parameters pass all stages before and after the update", "[executor]") {
  for_all([](const Schedule& schedule, World& world, int in_flight) {
    world.trains_common = true;
    world.embedding = EmbeddingPlace::none;
    Stages all(world);
    const int per_rank = schedule.interleaves && world.stages % 2 == 0 ? 2 : 1;
    const int ranks = world.stages / per_rank;
    std::vector<Program> programs;
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<ScheduleShape> shapes;
      for (int s = rank; s < world.stages; s += ranks)
        shapes.push_back({s, world.stages, world.micro_batches, in_flight, EmbeddingPlace::none, 0,
                          false, false, per_rank, true});
      programs.push_back(training_program(schedule, shapes));
    }
    run_together(programs, all.handlers());
    CHECK(world.messages.empty());
    for (std::size_t s = 0; s < all.stages.size(); ++s) {
      CHECK(all.stages[s].common_gradients == (world.micro_batches > 0 ? 1 : 0));
      CHECK(all.stages[s].common_values == (s > 0 ? 1 : 0));
    }
  });
}

TEST_CASE("Stages of one process evaluate", "[executor]") {
  for_all([](const Schedule&, World& world, int) {
    Stages all(world);
    std::vector<Program> programs;
    for (int s = 0; s < world.stages; ++s)
      programs.push_back(
          evaluation_program({s, world.stages, world.micro_batches, 1, world.embedding}));
    for (FakeStage& stage : all.stages) stage.evaluates = true;
    run_together(programs, all.handlers(), 1);
    CHECK(world.messages.empty());
    CHECK(all.stages.back().outputs == through_all(world, false));
    for (const FakeStage& stage : all.stages) CHECK(stage.backwards + stage.updates == 0);
  });
}

TEST_CASE("A stage alone runs its program in its order", "[executor]") {
  World world{1, 7, EmbeddingPlace::shared, {}, 0};
  for (const Schedule& schedule : schedules()) {
    CAPTURE(schedule.name);
    FakeStage stage(world, 0);
    InstructionHandler* const handlers[] = {&stage};
    run(training_program(schedule, {0, 1, 7, 1, EmbeddingPlace::shared}), handlers);
    CHECK(stage.backwards == 7);
    CHECK(stage.updates == 1);
  }
}

TEST_CASE("Sends wait for the buffers that there are", "[executor]") {
  const Schedule& schedule = find_schedule("gpipe");
  const std::vector<Program> programs = {training_program(schedule, {0, 2, 8}),
                                         training_program(schedule, {1, 2, 8})};
  for (const int buffers : {1, 2, 3, 100}) {
    CAPTURE(buffers);
    World world{2, 8, EmbeddingPlace::none, {}, 0};
    Stages all(world);
    run_together(programs, all.handlers(), buffers);
    // Stage 0 sends all that it can before stage 1 has its turn, and so do gradients.
    CHECK(world.most_messages == static_cast<std::size_t>(std::min(buffers, 8)));
    CHECK(all.stages.front().updates == 1);
  }
}

/// Programs whose messages do not meet.
struct Wrong {
  std::vector<Program> programs;
  const char* message;
};

TEST_CASE("What cannot run is an error that names the instructions", "[executor]") {
  using enum Action;
  const Program sends = {{forward, 0, 0, 0}, {send_activation, 0, 0, 0}};
  const std::vector<Wrong> cases = {
      {{Program{{receive_gradient, 0, 0, 0}}, Program{{receive_activation, 1, 0, 0}}},
       "deadlock: receive_gradient stage=0 micro_batch=0 slot=0; "
       "receive_activation stage=1 micro_batch=0 slot=0"},
      {{Program{{update, 0}}, Program{{update, 1}, {receive_activation, 1, 2, 1}}},
       "deadlock: receive_activation stage=1 micro_batch=2 slot=1"},
      {{sends, Program{{receive_activation, 1, 1, 0}}}, "micro-batch 1 is received as 0 arrives"},
      {{sends, Program{{update, 1}}}, "never received"},
  };
  for (const Wrong& wrong : cases) {
    CAPTURE(wrong.message);
    World world{2, 1, EmbeddingPlace::none, {}, 0};
    class Quiet final : public InstructionHandler {
      void send(const Transfer&) override {}
      void receive(const Transfer&) override {}
      void forward(const StagePass&) override {}
      void backward(const StagePass&) override {}
      void backward_inputs(const StagePass&) override {}
      void backward_parameters(const StagePass&) override {}
      void reduce_zeros() override {}
      void add_embedding_gradient() override {}
      void add_common_gradient() override {}
      void finish_reductions() override {}
      void update() override {}
    } quiet;
    const std::vector<InstructionHandler*> handlers(wrong.programs.size(), &quiet);
    CHECK_THROWS_WITH(run_together(wrong.programs, handlers), Contains(wrong.message));
  }
}

TEST_CASE("The executor finds the deadlock that the simulator finds", "[executor]") {
  const Schedule& schedule = find_schedule("1f1b");
  for (const int in_flight : {64, 65}) {
    World world{2, 128, EmbeddingPlace::none, {}, 0};
    Stages all(world);
    const std::vector<Program> programs = {training_program(schedule, {0, 2, 128, in_flight}),
                                           training_program(schedule, {1, 2, 128, in_flight})};
    SimulationCosts costs;
    costs.buffers = 2 * 16;
    const std::string stuck = simulate(programs, costs).deadlock;
    if (stuck.empty()) {
      CHECK_NOTHROW(run_together(programs, all.handlers(), costs.buffers));
    } else {
      CHECK_THROWS_WITH(run_together(programs, all.handlers(), costs.buffers), Contains(stuck));
    }
    CHECK(stuck.empty() == (in_flight == 64));
  }
}

}  // namespace
}  // namespace deltapipe
