// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "app/checkpoint/claimed_directories.hpp"
#include "app/commands/check_boundaries.hpp"
#include "app/commands/check_memory.hpp"
#include "app/commands/check_traffic.hpp"
#include "app/commands/commands.hpp"
#include "app/deck/checks.hpp"
#include "app/deck/deck.hpp"
#include "app/output/former_output.hpp"
#include "app/output/progress_display.hpp"
#include "app/output/save_model.hpp"
#include "app/output/training_report.hpp"
#include "app/preflight/available_inputs.hpp"
#include "app/preflight/idle_settings.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/preflight/start_check.hpp"
#include "app/preflight/step_programs.hpp"
#include "app/preflight/traffic_prediction.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/data_of_stage.hpp"
#include "app/session/frozen_parameters.hpp"
#include "app/session/input_files.hpp"
#include "app/session/session.hpp"
#include "app/training/stages.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/schedule/schedule.hpp"
#include "comm/schedule/simulation.hpp"
#include "core/base/printable.hpp"
#include "core/data/corpus.hpp"
#include "models/model.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

void print_data(const Settings& settings, const DataSplit& data, std::uint64_t steps_per_epoch) {
  std::printf(
      "# data: %llu training samples (%s %ss), %llu validation samples%s; %llu steps an "
      "epoch\n",
      static_cast<unsigned long long>(data.train->size()),
      with_prefix(static_cast<double>(data.train->all_targets())).c_str(),
      settings.data.kind == DataKind::text ? "token" : "label",
      static_cast<unsigned long long>(data.validation->size()), answers_text(data).c_str(),
      static_cast<unsigned long long>(steps_per_epoch));
}

/// Assumes equal stages, backward passes of two forward passes' time, and messages without delay.
/// Without a value: a step with too many passes to draw.
std::optional<Simulation> simulate_step(const Settings& settings, const StepTraits& traits) {
  constexpr std::int64_t kMostPasses = 20000;  // a drawing of some 100 kB
  if (std::int64_t{2} * settings.pipeline.stages * settings.training.micro_batches > kMostPasses)
    return std::nullopt;
  return simulate(step_programs(settings, traits), SimulationCosts{});
}

double idle_fraction(const Settings& settings) {
  if (const std::optional<Simulation> simulation = simulate_step(settings, {}))
    return 1 - simulation->busy_fraction();
  return find_schedule(settings.pipeline.schedule).bubble_fraction(step_shape(settings, 0));
}

void print_schedule(const Settings& settings, const StepTraits& traits) {
  const Schedule& schedule = find_schedule(settings.pipeline.schedule);
  const std::optional<Simulation> simulation = simulate_step(settings, traits);
  if (!simulation) {
    std::printf(
        "#\n# schedule %s: too large to draw; use fewer stages or micro-batches to see it\n",
        schedule.name);
    return;
  }
  std::printf(
      "#\n# schedule %s: forward passes (F) take 1, backward passes %s, messages "
      "nothing; %s wait (.) %.1f %% of the step\n",
      schedule.name,
      schedule.splits_backward
          ? "(B) 2 where a stage recomputes, else 1 for gradients of inputs (B) "
            "and 1 for those of parameters (W)"
          : "(B) 2",
      settings.pipeline.stages_per_rank > 1 ? "ranks" : "stages",
      100 * (1 - simulation->busy_fraction()));
  std::istringstream grid(grid_of(*simulation));
  for (std::string line; std::getline(grid, line);) std::printf("# %s\n", line.c_str());
  std::printf("#\n");
}

void print_stages(const Settings& settings, const ModelLayout& model) {
  const int stages = settings.pipeline.stages;
  const ModelCost cost = model.model->cost(model.tokens);
  const double whole = cost.of(model.model->shape().blocks, true, true);
  std::printf("#\n# stage  blocks  parameters  share of work\n");
  for (int s = 0; s < stages; ++s) {
    double parameters = 0;
    for (const ParameterInfo& p : model.model->parameters(stage_part(model.partition, s)))
      parameters += p.copied || p.statistic ? 0 : static_cast<double>(p.size);
    const double work = cost.of(model.partition[s], s == 0, s + 1 == stages);
    std::printf("# %5d  %6d  %10s  %11.1f %%\n", s, model.partition[s],
                with_prefix(parameters).c_str(), 100 * work / whole);
  }
}

void print_frozen(const ModelLayout& model) {
  if (model.model->frozen().empty()) return;
  std::printf("# parameters: %s; shares of work are those of training all\n",
              parameters_text(parameter_count(*model.model)).c_str());
  if (model.first_trained_stage > 0)
    std::printf(
        "# backward passes end at stage %d: all before it is frozen, and no gradients cross the "
        "boundaries there\n",
        model.first_trained_stage);
}

/// Refuses whatever `train` refuses at its start. Without machines the ranks may run anywhere:
/// nothing is refused for memory, and spill files count as if all of them were here.
void check_resources(const Settings& settings, const AvailableInputs& inputs,
                     const ModelLayout& model, const std::vector<RankMemory>& ranks,
                     const std::vector<RankMachine>& machines) {
  const PipelineShape shape = planned_shape(settings, inputs, model);
  for (int rank = 0; rank < ranks_of(settings.pipeline); ++rank)
    check_budgets(settings, model, shape, rank);
  if (!machines.empty()) {
    std::vector<RankPeak> peaks;
    for (const RankMemory& rank : ranks) peaks.push_back({rank.host_peak(), rank.device_peak()});
    check_memory(peaks, machines);
  }
  std::vector<SpillNeed> needs;
  for (const int rank : ranks_here(ranks.size(), machines))
    needs.push_back(spill_need(settings, model, shape, rank, 0));
  check_spill_space(needs);
}

void print_model(const Settings& settings, const AvailableInputs& inputs, const ModelLayout& model,
                 const std::vector<RankMachine>& machines, const std::vector<RankMemory>& ranks) {
  const PipelineShape shape = planned_shape(settings, inputs, model);
  print_stages(settings, model);
  print_frozen(model);
  if (settings.pipeline.stages > 1) print_boundaries(settings, model, shape);
  print_memory(settings, ranks);
  if (!inputs.data) std::printf("# (without tokenizer or data)\n");
  print_machine(ranks, !machines.empty());
  print_device(ranks, !machines.empty());
  print_disk(disk_needs(settings, model, shape, ranks_here(ranks.size(), machines)));
}

/// All that the model's configuration tells, and then what is refused of it. Returns what the ranks
/// compare.
std::vector<Fact> check_model(const Settings& settings, AvailableInputs& inputs,
                              const std::vector<RankMachine>& machines, bool shows_schedule) {
  const ModelLayout model = plan_layout(settings, std::move(inputs.model));
  read_available_data(settings, model, inputs);
  if (inputs.data) {
    print_warnings(texts_of(inputs.data->skipped));
    for (const std::string& note : inputs.data->notes) std::printf("# %s\n", note.c_str());
  }
  const PipelineShape shape = planned_shape(settings, inputs, model);
  const std::vector<RankMemory> ranks =
      predict_memory(settings, model, shape, process_bytes(settings));
  std::uint64_t steps = 0, steps_per_epoch = 0;
  std::optional<TrafficPrediction> traffic;
  if (inputs.data) {
    steps_per_epoch = step_planner(settings, *inputs.data->train).steps_per_epoch();
    steps = total_steps(settings.training.steps, settings.training.epochs, steps_per_epoch);
    if (inputs.data->validation->size() > 0)
      deck::check_local_epochs(settings, steps_per_epoch, steps);
    if (ranks_of(settings.pipeline) > 1)
      traffic = predict_traffic(settings, model, shape, *inputs.data, steps);
  }
  print_summary(settings, model, inputs, steps, ranks, traffic,
                disk_needs(settings, model, shape, ranks_here(ranks.size(), machines)));
  if (shows_schedule) print_schedule(settings, step_traits(model));
  print_warning_lines(warnings_of(settings, model.model->dropout()));
  print_warning_lines(warnings_of_precision(settings, emulating_ranks(settings)));
  print_warning_lines(warnings_of_evaluation(settings));
  print_warning_lines(warnings_without_effect(settings));
  if (inputs.data) print_data(settings, *inputs.data, steps_per_epoch);
  if (inputs.data || settings.training.steps > 0)
    print_warning_lines(warnings_of_steps(settings, inputs.data ? steps : settings.training.steps));
  print_model(settings, inputs, model, machines, ranks);
  if (traffic) print_traffic(settings, *traffic);
  std::fflush(stdout);
  if (inputs.weights)
    model.model->check_weights(settings.model.path, *inputs.weights, model.partition);
  check_resources(settings, inputs, model, ranks, machines);
  return input_facts(*model.model, inputs.tokenizer.get(), inputs.data ? &*inputs.data : nullptr);
}

/// Directories that every rank creates on its machine.
void expect_directories_of_rank(const Settings& settings) {
  if (writes_checkpoints(settings) && !settings.checkpoint.directory.empty())
    expect_possible_directory(settings.checkpoint.directory);
  if (writes_caches(settings) && !settings.cache.directory.empty())
    expect_possible_directory(settings.cache.directory);
}

}  // namespace

std::vector<Fact> run_check(const Settings& settings, const std::vector<RankMachine>& machines,
                            const CheckOptions& options) {
  const bool shows_schedule = options.schedule;
  if (options.deck) std::printf("%s\n", effective_deck(settings).c_str());
  AvailableInputs inputs = read_available_inputs(settings);
  for (const Mistake& item : inputs.files.missing)
    std::printf("# %s; %s\n", printable(item.what).c_str(), printable(item.remedy).c_str());
  print_warnings(inputs.warnings);
  if (!inputs.assumption.empty()) std::printf("# %s\n", inputs.assumption.c_str());
  const PipelineSettings& pipeline = settings.pipeline;
  const std::string a_rank =
      pipeline.stages_per_rank > 1 ? fmt::format(", {} a rank,", pipeline.stages_per_rank) : "";
  std::printf("# ranks: %d stage(s)%s x %d replica(s); idle by the schedule: %.1f %%\n",
              pipeline.stages, a_rank.c_str(), pipeline.replicas, 100 * idle_fraction(settings));
  print_warning_lines(warnings_of_network(settings.network));
  print_warning_lines(warnings_of_bubble(settings));
  if (shows_schedule && !inputs.model) print_schedule(settings, {});
  std::fflush(stdout);
  std::vector<Fact> facts;
  if (inputs.model) facts = check_model(settings, inputs, machines, shows_schedule);
  check_precision(settings);
  require(inputs.files);
  expect_possible_directory(settings.output.directory);
  expect_directories_of_rank(settings);
  if (const std::string start = describe_start(settings); !start.empty())
    std::printf("# %s\n", start.c_str());
  for (const std::string& directory : saved_models(settings))
    check_model_directory(directory, settings);
  return facts;
}

std::vector<Fact> run_check_elsewhere(const Settings& settings, int rank) {
  check_precision(settings);
  const int place = rank % settings.pipeline.pipeline_ranks();
  const bool reads = place == 0 || place + 1 == settings.pipeline.pipeline_ranks();
  require(find_input_files(settings, reads ? InputUse::train : InputUse::train_between));
  expect_directories_of_rank(settings);
  const ModelPlan plan = plan_model(settings);
  DataSplit data;
  if (reads) data = read_samples(settings.data, *plan.model, plan.vocabulary(), plan.tokens);
  return input_facts(*plan.model, plan.tokenizer.get(), &data);
}

}  // namespace deltapipe
