// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>

#include "app/checkpoint/claimed_directories.hpp"
#include "app/commands/commands.hpp"
#include "app/deck/checks.hpp"
#include "app/deck/deck.hpp"
#include "app/output/former_output.hpp"
#include "app/output/progress_display.hpp"
#include "app/output/save_model.hpp"
#include "app/output/training_report.hpp"
#include "app/preflight/available_inputs.hpp"
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
#include "comm/pipeline/bit_budget.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/schedule/schedule.hpp"
#include "comm/schedule/simulation.hpp"
#include "comm/transport/message.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/parallel/device_memory.hpp"
#include "core/base/printable.hpp"
#include "core/codec/codec.hpp"
#include "core/data/corpus.hpp"
#include "core/files/replacement.hpp"
#include "models/model.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

namespace fs = std::filesystem;

std::string text_of(std::uint64_t bytes) {
  return with_prefix(static_cast<double>(bytes)) + "B";
}

void print_warning_lines(const std::vector<std::string>& warnings) {
  for (const std::string& warning : warnings) std::printf("# warning: %s\n", warning.c_str());
}

/// Returns the steps of an epoch.
std::uint64_t print_data(const Settings& settings, const DataSplit& data) {
  const TrainingSettings& t = settings.training;
  const StepPlanner planner(*data.train, t.seed, settings.data.shuffle,
                            {t.micro_batch_size, t.micro_batches, settings.pipeline.replicas});
  std::printf(
      "# data: %llu training samples (%s %ss), %llu validation samples%s; %llu steps an "
      "epoch\n",
      static_cast<unsigned long long>(data.train->size()),
      with_prefix(static_cast<double>(data.train->all_targets())).c_str(),
      settings.data.kind == DataKind::text ? "token" : "label",
      static_cast<unsigned long long>(data.validation->size()), answers_text(data).c_str(),
      static_cast<unsigned long long>(planner.steps_per_epoch()));
  return planner.steps_per_epoch();
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

/// A column for each rank of a pipeline: replicas take the same, the first one no less than the
/// others.
void print_memory(const Settings& settings, const std::vector<RankMemory>& ranks) {
  const auto row = [](const char* name, const auto& cell) {
    std::printf("# %-22s", name);
    cell();
    std::printf("\n");
  };
  const int count = settings.pipeline.pipeline_ranks();
  const auto cells = [&](const auto& bytes_of) {
    return [&ranks, count, bytes_of] {
      for (int r = 0; r < count; ++r) std::printf("  %9s", text_of(bytes_of(ranks[r])).c_str());
    };
  };
  std::printf("#\n");
  row(settings.pipeline.stages_per_rank > 1 ? "memory of rank" : "memory of a rank, stage", [&] {
    for (int r = 0; r < count; ++r) std::printf("  %9d", r);
  });
  for (std::size_t use = 0; use < kMemoryUses; ++use) {
    const auto what = static_cast<MemoryUse>(use);
    if (std::all_of(ranks.begin(), ranks.end(),
                    [&](const RankMemory& r) { return r.ledger.bytes(what) == 0; }))
      continue;
    row(kMemoryUseNames[use], cells([what](const RankMemory& r) { return r.ledger.bytes(what); }));
  }
  row("program and data", cells([](const RankMemory& r) { return r.process; }));
  row("loading or saving", cells([](const RankMemory& r) {
        RankMemory without = r;
        without.checkpoint = 0;
        return without.host_peak() - r.process - r.ledger.host_bytes();
      }));
  if (ranks.front().checkpoint > 0)
    row("checkpoint", cells([](const RankMemory& r) { return r.checkpoint; }));
  row("peak", cells([](const RankMemory& r) { return r.host_peak(); }));
  if (ranks.front().device_peak() > 0)
    row("peak on the device", cells([](const RankMemory& r) { return r.device_peak(); }));
}

void print_machine(const std::vector<RankMemory>& ranks, bool ranks_are_here) {
  std::uint64_t all = 0;
  for (const RankMemory& rank : ranks) all += rank.host_peak();
  const MachineMemory machine = machine_memory();
  std::printf("# all %zu rank(s): %s; this machine: %s, %s of it free\n", ranks.size(),
              text_of(all).c_str(), text_of(machine.total).c_str(),
              text_of(machine.available).c_str());
  if (all <= machine.available || ranks_are_here) return;
  std::size_t held = 0;
  for (std::uint64_t sum = 0; held < ranks.size(); ++held) {
    sum += ranks[held].host_peak();
    if (sum > machine.total) break;
  }
  if (held < ranks.size())
    std::printf("# warning: this machine holds %zu of the %zu ranks\n", held, ranks.size());
  else
    std::printf("# warning: other programs have to leave some of it first\n");
}

void print_device(const std::vector<RankMemory>& ranks, bool ranks_are_here) {
  const DeviceMemory device = device_memory();
  if (device.total == 0) return;
  std::uint64_t largest = 0;
  for (const RankMemory& rank : ranks) largest = std::max(largest, rank.device_peak());
  std::printf("# this device: %s, %s of it free\n", text_of(device.total).c_str(),
              text_of(device.available).c_str());
  if (largest > device.total && !ranks_are_here)
    std::printf("# warning: this device does not hold every rank\n");
}

void print_disk(const std::vector<DiskNeed>& needs) {
  for (const DiskNeed& need : needs) {
    std::error_code error;
    const fs::space_info space = fs::space(existing_parent(need.directory), error);
    std::printf("# disk: %s more in %s", text_of(need.bytes).c_str(), need.directory.c_str());
    if (!error) std::printf(", %s free", text_of(space.available).c_str());
    std::printf("\n");
  }
  print_warning_lines(warnings_of_disk(needs));
}

/// Positions take the fewer bytes the closer together they are; coded values take what they carry.
const char* note_on_bytes(const CodecSettings& codec) {
  return has_fixed_length(codec) ? "" : ", at most";
}

/// Boundaries [first, last] with one shape.
struct Boundaries {
  int first, last;
  BoundaryShape shape;
  bool are_all = false;  ///< all boundaries of the run
};

/// Returns the boundaries of a run in groups of one shape.
std::vector<Boundaries> boundaries_of(const ModelLayout& model) {
  std::vector<Boundaries> groups;
  int i = 0;
  for (const BoundaryShape& shape : boundary_shapes(*model.model, model.partition, model.tokens)) {
    if (!groups.empty() && groups.back().shape == shape)
      groups.back().last = i;
    else
      groups.push_back({i, i, shape});
    ++i;
  }
  if (groups.size() == 1) groups.front().are_all = true;
  return groups;
}

std::string text_of(const Boundaries& group) {
  return group.first == group.last
             ? "boundary " + std::to_string(group.first)
             : "boundaries " + std::to_string(group.first) + " ... " + std::to_string(group.last);
}

/// ", none at boundaries 0 ... 2", which precede the first stage that is trained.
std::string note_on_boundaries(int first, int without_gradients) {
  if (without_gradients == 0) return "";
  return ", none at " + text_of({first, first + without_gradients - 1, {}});
}

void print_wire(const Settings& settings, const ModelLayout& model, const Boundaries& group,
                bool backward) {
  const TrainingSettings& t = settings.training;
  const int count = group.last + 1 - group.first;
  const int without = backward ? std::clamp(model.first_trained_stage - group.first, 0, count) : 0;
  const std::string where = group.are_all ? "" : ", " + text_of(group);
  if (without == count) {
    std::printf("# backward   %36s  %8s  %21s%s\n", "none", "none", "none", where.c_str());
    return;
  }
  const CodecShape shape{t.micro_batch_size, group.shape.tokens, group.shape.channels};
  const CodecSettings& codec_settings = backward ? settings.backward : settings.forward;
  const std::unique_ptr<Codec> codec = make_codec(codec_settings, shape, settings.cache.storage);
  codec->share(make_forward_masks(settings.forward, settings.backward, shape, 1));
  Crossing crossing;
  crossing.kind = backward ? CrossingKind::gradient : CrossingKind::activation;
  crossing.epoch = codec_settings.warmup_epochs;
  for (int b = 0; b < t.micro_batch_size; ++b) {
    crossing.sample_ids.push_back(b);
    crossing.tokens.push_back(shape.tokens);
    crossing.visits.push_back(0);
  }
  const double first = static_cast<double>(codec->payload_bytes(crossing));
  std::fill(crossing.visits.begin(), crossing.visits.end(), 1u);
  const double later = static_cast<double>(codec->payload_bytes(crossing));
  const double step = static_cast<double>(settings.pipeline.replicas) * t.micro_batches *
                      (later + static_cast<double>(sizeof(MessageHeader)));
  std::printf("# %-9s  %36sB  %7sB  %20sB%s%s%s\n", backward ? "backward" : "forward",
              with_prefix(first).c_str(), with_prefix(later).c_str(), with_prefix(step).c_str(),
              note_on_bytes(codec_settings), where.c_str(),
              note_on_boundaries(group.first, without).c_str());
}

void print_wire(const Settings& settings, const ModelLayout& model,
                const std::vector<Boundaries>& groups) {
  std::printf(
      "#\n# direction  payload of a micro-batch: first visit  later    wire per step and "
      "boundary\n");
  for (const bool backward : {false, true})
    for (const Boundaries& group : groups) print_wire(settings, model, group, backward);
}

/// Prints a step's bytes and seconds at each boundary when a run holds its target of bits.
void print_targets(const Settings& settings, const ModelLayout& model,
                   const std::vector<Boundaries>& groups) {
  const TrainingSettings& t = settings.training;
  const double samples =
      static_cast<double>(settings.pipeline.replicas) * t.micro_batches * t.micro_batch_size;
  std::vector<double> values;  // of a step, by boundary
  for (const Boundaries& group : groups)
    for (int i = group.first; i <= group.last; ++i)
      values.push_back(samples * group.shape.tokens * group.shape.channels);
  const PipelineOptions options = pipeline_options(settings);
  for (const bool backward : {false, true}) {
    const char* const direction = backward ? "backward" : "forward";
    std::vector<double> bits;
    for (int i = 0; i + 1 < settings.pipeline.stages; ++i)
      bits.push_back(step_target(options, 0, i, backward).bits);
    const std::vector<double> speeds = link_speeds(options, backward);
    for (std::size_t i = 0; i < bits.size(); ++i) {
      if (bits[i] == 0 || (backward && static_cast<int>(i) < model.first_trained_stage)) continue;
      const double bytes = bits[i] * values[i] / 8;
      std::printf("# target %s, boundary %zu: %.3g bits per value, %sB per step", direction, i,
                  bits[i], with_prefix(bytes).c_str());
      if (speeds[i] > 0) std::printf(", %.3g s on its link", 8 * bytes / speeds[i]);
      std::printf("\n");
    }
    const double error = step_target(options, 0, 0, backward).error;
    if (error > 0 && !(backward && model.first_trained_stage + 1 >= settings.pipeline.stages))
      std::printf("# target %s: a relative RMS error of %g at each boundary\n", direction, error);
  }
}

/// Prints the bytes of a micro-batch of evaluations through the codec.
void print_evaluation_wire(const Settings& settings, const std::vector<Boundaries>& groups) {
  if (!settings.evaluation.has(EvaluationMode::codec)) return;
  const int samples = settings.training.micro_batch_size;
  const CodecSettings codec_settings =
      without_memory(settings.forward, settings.evaluation.changes);
  for (const Boundaries& group : groups) {
    const BoundaryShape& shape = group.shape;
    const std::unique_ptr<Codec> codec =
        make_codec(codec_settings, {samples, shape.tokens, shape.channels}, settings.cache.storage);
    Crossing crossing;
    crossing.training = false;
    crossing.evaluation = EvaluationMode::codec;
    crossing.sample_ids.resize(samples);
    crossing.tokens.assign(samples, shape.tokens);
    crossing.visits.assign(samples, 0);
    std::printf("# evaluations through the codec send %s a micro-batch and %s%s\n",
                text_of(codec->payload_bytes(crossing)).c_str(),
                group.are_all ? "boundary" : text_of(group).c_str(), note_on_bytes(codec_settings));
  }
}

void print_cache(const std::string& where, const BoundaryEndPlan& plan) {
  const CacheNeed need = cache_need(plan);
  if (need.record_bytes == 0) return;
  std::printf("# %s: %s per %s", where.c_str(), text_of(need.record_bytes).c_str(),
              plan.memory.of_positions ? "place of a step" : "sample");
  if (plan.memory.samples > 0)
    std::printf("; %s in memory (%s of it staging), %s on disk", text_of(need.memory_bytes).c_str(),
                text_of(need.staging_bytes).c_str(), text_of(need.disk_bytes).c_str());
  else
    std::printf(", the number of samples is not known yet");
  std::printf("\n");
}

/// Prints the records of both ends of boundaries of one shape, for one that gradients cross if
/// there is one.
void print_caches(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
                  const Boundaries& group) {
  const auto plan_of_stage = [&](int stage) {
    const PipelineSettings& pipeline = settings.pipeline;
    return stage_plan_of(settings, model, shape,
                         {stage, pipeline.stages, 0, pipeline.replicas, pipeline.stages_per_rank});
  };
  const int before = std::clamp(model.first_trained_stage, group.first, group.last);
  const std::string where = group.are_all ? "" : " of " + text_of(group);
  const StagePlan first = plan_of_stage(before), second = plan_of_stage(before + 1);
  if (cache_need(*second.receive_forward).record_bytes > 0)
    print_cache("activation cache at each boundary end" + where, *first.send_forward);
  else
    print_cache("errors of activations at each sender" + where, *first.send_forward);
  if (!second.send_backward) return;
  if (cache_need(*first.receive_backward).record_bytes > 0)
    print_cache("memories of gradients at each boundary end" + where, *second.send_backward);
  else
    print_cache("errors of gradients at each sender" + where, *second.send_backward);
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
  if (settings.pipeline.stages > 1) {
    const std::vector<Boundaries> groups = boundaries_of(model);
    print_wire(settings, model, groups);
    print_targets(settings, model, groups);
    print_evaluation_wire(settings, groups);
    for (const Boundaries& group : groups) print_caches(settings, model, shape, group);
  }
  print_memory(settings, ranks);
  if (!inputs.data) std::printf("# (without tokenizer or data)\n");
  print_machine(ranks, !machines.empty());
  print_device(ranks, !machines.empty());
  print_disk(disk_needs(settings, model, shape, ranks_here(ranks.size(), machines)));
}

/// "1,234,567"
std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

/// The lengths of all payloads of the run depend on shapes alone, and the run ends after all steps.
bool is_exact(const Settings& settings, const TrafficPrediction& traffic) {
  const PipelineOptions options = pipeline_options(settings);
  const bool ends_at_wrong_answers =
      !settings.data.answers.files.empty() &&
      std::ranges::any_of(options.evaluation.modes, [&](EvaluationMode mode) {
        return !crosses_token_by_token(options, mode, settings.pipeline.stages);
      });
  const bool lengths_are_fixed =
      settings.pipeline.stages == 1 ||
      (has_fixed_length(settings.forward) && has_fixed_length(settings.backward));
  return settings.training.patience == 0 && !ends_at_wrong_answers && traffic.counts_all_steps() &&
         lengths_are_fixed;
}

std::string part_of(std::uint64_t bytes, std::uint64_t all) {
  return all == 0
             ? "-"
             : number_text("%.1f", 100 * static_cast<double>(bytes) / static_cast<double>(all)) +
                   " %";
}

/// The figures that a user decides by.
void print_summary(const Settings& settings, const ModelLayout& model,
                   const AvailableInputs& inputs, std::uint64_t steps,
                   const std::vector<RankMemory>& ranks,
                   const std::optional<TrafficPrediction>& traffic,
                   const std::vector<DiskNeed>& disks) {
  std::printf("# model: %s, %s parameters\n", model.model->description().c_str(),
              parameters_text(parameter_count(*model.model)).c_str());
  if (inputs.data)
    std::printf("# run: %s steps of up to %s samples\n", grouped(steps).c_str(),
                grouped(static_cast<std::uint64_t>(settings.training.micro_batch_size) *
                        settings.training.micro_batches * settings.pipeline.replicas)
                    .c_str());
  else if (ranks_of(settings.pipeline) > 1)
    std::printf("# run: its length and its bytes are known when tokenizer and text are there\n");
  if (traffic) {
    const char* const of_links = settings.pipeline.stages > 1 ? "network" : "network.replicas";
    const WireBytes boundaries = traffic->boundaries();
    const std::uint64_t all = boundaries.all() + traffic->replicas();
    std::printf("# network: %s%s a step, %s the run, %s of fp32; evaluations %s more\n",
                is_exact(settings, *traffic) ? "" : "at most ", text_of(all / steps).c_str(),
                text_of(all).c_str(), part_of(all, boundaries.fp32 + traffic->replica_fp32).c_str(),
                text_of(traffic->evaluation_bytes().all()).c_str());
    if (!traffic->links.empty())
      std::printf(
          "# links: about %.3g s a step and %s the run, if computing hides behind them; how long "
          "stages compute is not known before a run\n",
          traffic->step_seconds,
          duration_text(traffic->step_seconds * static_cast<double>(steps)).c_str());
    else
      std::printf(
          "# links: not known; %s.bandwidth=\"100 Mbit/s\" %s.latency=\"1 ms\" on the command line "
          "gives their seconds\n",
          of_links, of_links);
    if (!traffic->links.empty() && settings.pipeline.replicas > 1 &&
        settings.network.wire == WireSharing::boundary &&
        settings.network.replicas == LinkSettings())
      std::printf(
          "# links: without those of sums over replicas, which network.replicas.bandwidth names\n");
  }
  std::uint64_t largest = 0;
  for (const RankMemory& rank : ranks) largest = std::max(largest, rank.host_peak());
  std::printf("# memory: up to %s a rank\n", text_of(largest).c_str());
  for (const DiskNeed& need : disks)
    std::printf("# files: %s in %s\n", text_of(need.bytes).c_str(), need.directory.c_str());
}

void print_traffic(const Settings& settings, const TrafficPrediction& traffic) {
  const std::uint64_t steps = traffic.steps;
  std::printf("#\n# sent in the run: payload + headers = bytes%s; mean, part of fp32\n",
              is_exact(settings, traffic) ? "" : " at most");
  const auto row = [](const std::string& name, const WireBytes& bytes, std::uint64_t count,
                      const char* of) {
    if (bytes.messages == 0) return;
    std::printf("# %-26s %s + %s = %s; %s %s, %s\n", name.c_str(), grouped(bytes.payload).c_str(),
                grouped(bytes.headers).c_str(), grouped(bytes.all()).c_str(),
                text_of(bytes.all() / count).c_str(), of, part_of(bytes.all(), bytes.fp32).c_str());
  };
  for (std::size_t b = 0; b < traffic.forward.size(); ++b) {
    row("boundary " + std::to_string(b) + " forward", traffic.forward[b], steps, "a step");
    row("boundary " + std::to_string(b) + " backward", traffic.backward[b], steps, "a step");
  }
  const bool are_common = traffic.shares_common_values;
  row(are_common ? "relative embeddings" : "token rows", traffic.tied_rows, steps, "a step");
  row(are_common ? "their gradients" : "token row gradients", traffic.tied_gradients, steps,
      "a step");
  for (std::size_t r = 0; r < traffic.replica_bytes.size(); ++r)
    if (traffic.replica_bytes[r] > 0)
      std::printf("# sums over replicas, rank %-4zu %s; %s a step\n", r,
                  grouped(traffic.replica_bytes[r]).c_str(),
                  text_of(traffic.replica_bytes[r] / steps).c_str());
  for (std::size_t b = 0; b < traffic.evaluation_forward.size(); ++b)
    row("evaluations, boundary " + std::to_string(b), traffic.evaluation_forward[b],
        traffic.evaluations, "each");
  row("evaluations, token rows", traffic.evaluation_rows, traffic.evaluations, "each");
  if (traffic.evaluations > 0)
    std::printf("# (evaluations: %s of them)\n", grouped(traffic.evaluations).c_str());
  if (!traffic.counts_all_steps())
    std::printf("# %s of %s steps were counted, the others continue their second half\n",
                grouped(traffic.counted_steps).c_str(), grouped(steps).c_str());
  for (const LinkLoad& link : traffic.links)
    std::printf("# link of %s: busy %.3g s a step, %s the run\n", link.name.c_str(),
                link.busy_seconds,
                duration_text(link.busy_seconds * static_cast<double>(steps)).c_str());
}

/// All that the model's configuration tells, and then what is refused of it. Returns what the ranks
/// compare.
std::vector<Fact> check_model(const Settings& settings, AvailableInputs& inputs,
                              const std::vector<RankMachine>& machines, bool shows_schedule) {
  const ModelLayout model = plan_layout(settings, std::move(inputs.model));
  read_available_data(settings, model, inputs);
  if (inputs.data)
    for (const std::string& note : inputs.data->notes) std::printf("# %s\n", note.c_str());
  const PipelineShape shape = planned_shape(settings, inputs, model);
  const std::vector<RankMemory> ranks =
      predict_memory(settings, model, shape, process_bytes(settings));
  std::uint64_t steps = 0;
  std::optional<TrafficPrediction> traffic;
  if (inputs.data) {
    const TrainingSettings& t = settings.training;
    const StepPlanner planner(*inputs.data->train, t.seed, settings.data.shuffle,
                              {t.micro_batch_size, t.micro_batches, settings.pipeline.replicas});
    steps = total_steps(t.steps, t.epochs, planner.steps_per_epoch());
    if (inputs.data->validation->size() > 0)
      deck::check_local_epochs(settings, planner.steps_per_epoch(), steps);
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
  const std::uint64_t steps_per_epoch = inputs.data ? print_data(settings, *inputs.data) : 0;
  if (inputs.data || settings.training.steps > 0)
    print_warning_lines(warnings_of_steps(
        settings, total_steps(settings.training.steps, settings.training.epochs, steps_per_epoch)));
  print_model(settings, inputs, model, machines, ranks);
  if (traffic) print_traffic(settings, *traffic);
  std::fflush(stdout);
  if (inputs.weights)
    model.model->check_weights(settings.model.path, *inputs.weights, model.partition);
  check_resources(settings, inputs, model, ranks, machines);
  return input_facts(*model.model, inputs.tokenizer, inputs.data ? &*inputs.data : nullptr);
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
  const std::string a_rank = pipeline.stages_per_rank > 1
                                 ? ", " + std::to_string(pipeline.stages_per_rank) + " a rank,"
                                 : "";
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
  return input_facts(*plan.model, plan.tokenizer, &data);
}

}  // namespace deltapipe
