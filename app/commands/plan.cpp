// SPDX-License-Identifier: BSD-3-Clause
// `deltapipe check --plan`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "app/commands/commands.hpp"
#include "app/deck/deck.hpp"
#include "app/output/progress_display.hpp"
#include "app/preflight/available_inputs.hpp"
#include "app/preflight/idle_settings.hpp"
#include "app/preflight/step_prediction.hpp"
#include "app/preflight/warnings.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"
#include "core/files/json.hpp"
#include "models/model.hpp"

namespace deltapipe {

namespace {

/// A codec of both directions, with its name in tables.
struct PlannedCodec {
  std::string name;
  CodecSettings forward, backward;
  bool is_of_deck = false;  ///< rates and bits of [plan] are those of this codec
};

PlannedCodec codec_of_text(const std::string& name, const std::string& forward,
                           const std::string& backward) {
  const Settings settings = parse_deck(
      "[boundary.forward]\n" + forward + "\n[boundary.backward]\n" + backward + "\n", name);
  return {name, settings.forward, settings.backward};
}

/// Returns the codecs to compare: the deck's and, where there are boundaries, none and the three
/// pairs of bits of AQ-SGD's paper.
std::vector<PlannedCodec> planned_codecs(const Settings& settings) {
  if (settings.pipeline.stages == 1) return {{"none", {}, {}, true}};
  std::vector<PlannedCodec> codecs = {
      codec_of_text("none", "codec = \"none\"", "codec = \"none\"")};
  for (const auto& [forward, backward] :
       {std::pair("4", "8"), std::pair("3", "6"), std::pair("2", "4")})
    codecs.push_back(codec_of_text(std::string("aqsgd ") + forward + "/" + backward,
                                   std::string("codec = \"aqsgd\"\nbits = ") + forward,
                                   std::string("codec = \"directq\"\nbits = ") + backward));
  const bool has_bits = settings.plan.forward_bits > 0 || settings.plan.backward_bits > 0;
  for (PlannedCodec& codec : codecs)
    if (!has_bits && codec.forward == settings.forward && codec.backward == settings.backward) {
      codec.is_of_deck = true;
      return codecs;
    }
  codecs.push_back({"deck", settings.forward, settings.backward, true});
  return codecs;
}

/// Everything that predictions of a run require.
struct PlannedRun {
  Settings settings;
  ModelLayout model;
  AvailableInputs inputs;
  WorkRates rates;

  const Dataset* data() const { return inputs.data ? inputs.data->train.get() : nullptr; }
  PlannedStep step(const Settings& other, bool has_codec_of_deck) const {
    WorkRates own = rates;
    if (!has_codec_of_deck) own.forward_bits = own.backward_bits = 0;
    return {other, model, planned_shape(other, inputs, model), data(), own};
  }
  PlannedStep step(const PlannedCodec& codec) const {
    return step(with_codec(settings, codec), codec.is_of_deck);
  }
  static Settings with_codec(Settings settings, const PlannedCodec& codec) {
    if (codec.is_of_deck) return settings;
    settings.forward = codec.forward;
    settings.backward = codec.backward;
    settings.forward_rate = settings.backward_rate = RateSettings();
    settings.move_memories = false;
    return settings;
  }
};

PlannedRun plan_run(const Settings& settings) {
  PlannedRun run;
  run.settings = settings;
  // Links that join nothing have no bandwidth of the plan.
  NetworkSettings& network = run.settings.network;
  if (settings.pipeline.replicas == 1) network.replicas = {};
  if (settings.pipeline.replicas == 1 && settings.pipeline.stages == 1) network.ranks = {};
  if (settings.pipeline.stages == 1 && network.wire == WireSharing::boundary)
    network.forward = network.backward = {};
  run.inputs = read_available_inputs(settings);
  if (!run.inputs.model) require(run.inputs.files);
  run.model = plan_layout(settings, std::move(run.inputs.model));
  read_available_data(settings, run.model, run.inputs);
  const MeanTokens mean = mean_tokens(planned_shape(settings, run.inputs, run.model), run.data());
  run.rates = work_rates(settings, *run.model.model, run.model.partition, run.model.tokens, mean);
  return run;
}

/// Returns the networks to compare.
std::vector<NetworkSettings> networks_of(const Settings& settings) {
  if (settings.plan.bandwidths.empty()) return {settings.network};
  std::vector<NetworkSettings> networks;
  for (const double bandwidth : settings.plan.bandwidths)
    networks.push_back(with_bandwidth(settings.network, bandwidth));
  return networks;
}

/// Returns the slowest link's bandwidth, or 0 without a limit.
double bandwidth_of(const NetworkSettings& network) {
  double slowest = 0;
  const auto note = [&slowest](const LinkSettings& link) {
    if (link.bits_per_second == 0) return;
    slowest = slowest == 0 ? link.bits_per_second : std::min(slowest, link.bits_per_second);
  };
  for (const auto* links : {&network.forward, &network.backward, &network.ranks})
    for (const LinkSettings& link : *links) note(link);
  note(network.replicas);
  return slowest;
}

/// Orders bandwidths, where 0 is no limit.
double order_of(double bits_per_second) {
  return bits_per_second == 0 ? HUGE_VAL : bits_per_second;
}

std::string text_of_bandwidth(double bits_per_second) {
  return bits_per_second == 0 ? "no limit" : with_prefix(bits_per_second) + "bit/s";
}

struct Choice {
  std::string schedule;
  int in_flight = 1;
  int micro_batches = 1;
  double step_seconds = 0;
};

/// Returns the settings of a choice if a deck may have them.
std::optional<Settings> settings_of_choice(Settings settings, const Choice& choice) {
  const int samples = settings.training.micro_batch_size * settings.training.micro_batches;
  if (samples % choice.micro_batches != 0) return std::nullopt;
  settings.training.micro_batches = choice.micro_batches;
  settings.training.micro_batch_size = samples / choice.micro_batches;
  settings.pipeline.schedule = choice.schedule;
  settings.pipeline.in_flight = choice.in_flight;
  try {
    parse_deck(effective_deck(settings), "plan");
  } catch (const UserError&) {
    return std::nullopt;
  }
  return settings;
}

/// Returns the choice that predicts the fastest step. Among those within 2 % it prefers fewer
/// micro-batches, then fewer in flight, which need less memory.
Choice recommended(const PlannedRun& run, const PlannedCodec& codec,
                   const NetworkSettings& network) {
  constexpr std::int64_t kMostPasses = 40000;
  constexpr double kEqual = 1.02;
  const Settings& deck = run.settings;
  // Batches of batch normalisation are micro-batches: others train another model.
  const int most = run.model.model->shape().normalized_rows > 0 ? 1 : 16;
  std::vector<std::string> schedules = {deck.pipeline.schedule};
  for (const char* const other : {"1f1b", "zb-h1"})
    if (deck.pipeline.stages_per_rank == 1 && other != deck.pipeline.schedule)
      schedules.emplace_back(other);
  std::set<int> in_flights = {1, 2, 4, 8, 16, deck.pipeline.in_flight};
  std::vector<Choice> choices;
  for (int m = deck.training.micro_batches;
       std::int64_t{2} * m * deck.pipeline.stages <= kMostPasses &&
       m <= most * deck.training.micro_batches;
       m *= 2)
    for (const int in_flight : in_flights)
      for (const std::string& schedule : schedules) {
        Choice choice{schedule, in_flight, m};
        const std::optional<Settings> settings = settings_of_choice(deck, choice);
        if (!settings) continue;
        choice.step_seconds = run.step(PlannedRun::with_codec(*settings, codec), codec.is_of_deck)
                                  .predict(network)
                                  .step_seconds;
        choices.push_back(choice);
      }
  if (choices.empty())
    return {deck.pipeline.schedule, deck.pipeline.in_flight, deck.training.micro_batches,
            run.step(codec).predict(network).step_seconds};
  const double least = std::ranges::min_element(choices, {}, &Choice::step_seconds)->step_seconds;
  return *std::ranges::find_if(
      choices, [&](const Choice& choice) { return choice.step_seconds <= kEqual * least; });
}

OrderedJson json_of(const StepPrediction& prediction) {
  const RankSeconds& parts = prediction.parts;
  return {{"step_seconds", prediction.step_seconds},
          {"compute_seconds", parts.compute},
          {"codec_seconds", parts.codec},
          {"wire_exposed_seconds", parts.wire},
          {"bubble_seconds", parts.bubble},
          {"replica_wait_seconds", parts.replicas}};
}

/// The row of a table and the entry of a sweep.
struct PlannedRow {
  double bandwidth = 0;
  std::string codec;
  StepPrediction prediction;
  bool is_upper_bound = false;
};

struct Needed {
  std::string codec;
  std::optional<double> bandwidth;  ///< none: the step is too large to search for it
  std::uint64_t forward_bytes = 0, backward_bytes = 0;
  std::uint64_t replica_bytes = 0;
};

struct Plan {
  std::vector<PlannedRow> rows;
  StepPrediction of_deck;
  std::vector<Needed> needed;   ///< by codec
  double chosen_bandwidth = 0;  ///< the slowest one, for which the following are
  Choice choice;
  std::string mildest_codec;  ///< that is within 5 % of the fastest one
};

Plan make_plan(const PlannedRun& run) {
  Plan plan;
  const std::vector<NetworkSettings> networks = networks_of(run.settings);
  constexpr std::int64_t kMostPasses = std::int64_t{1} << 22, kMostSearched = 400000;
  const std::int64_t passes =
      std::int64_t{2} * run.settings.pipeline.stages * run.settings.training.micro_batches;
  if (passes > kMostPasses)
    throw UserError({.what = "a step has too many passes for a plan",
                     .value = std::to_string(passes),
                     .remedy = "plan for fewer stages or micro-batches: steps of more of them are "
                               "longer in proportion",
                     .keys = {"training.micro_batches", "pipeline.stages"}});
  // From the most bytes to the fewest.
  std::vector<std::pair<PlannedCodec, PlannedStep>> steps;
  for (const PlannedCodec& codec : planned_codecs(run.settings))
    steps.emplace_back(codec, run.step(codec));
  std::ranges::stable_sort(steps, std::ranges::greater(), [](const auto& pair) {
    return pair.second.forward_bytes() + pair.second.backward_bytes();
  });
  const PlannedCodec* of_deck = nullptr;
  for (const auto& [codec, step] : steps) {
    for (const NetworkSettings& network : networks)
      plan.rows.push_back(
          {bandwidth_of(network), codec.name, step.predict(network), step.is_upper_bound()});
    std::optional<double> needed;
    if (passes <= kMostSearched) needed = bandwidth_needed(step, run.settings.network);
    plan.needed.push_back({codec.name, needed, step.forward_bytes(), step.backward_bytes(),
                           run.settings.pipeline.replicas > 1 ? step.replica_bytes() : 0});
    if (!codec.is_of_deck) continue;
    of_deck = &codec;
    plan.of_deck = step.predict(run.settings.network);
  }
  std::ranges::stable_sort(plan.rows, std::ranges::greater(),
                           [](const PlannedRow& row) { return order_of(row.bandwidth); });
  const NetworkSettings& network = *std::ranges::min_element(
      networks, {}, [](const NetworkSettings& one) { return order_of(bandwidth_of(one)); });
  plan.chosen_bandwidth = bandwidth_of(network);
  plan.choice = recommended(run, *of_deck, network);
  constexpr double kAsFast = 1.05;
  double least = HUGE_VAL;
  for (const PlannedRow& row : plan.rows)
    if (row.bandwidth == bandwidth_of(network))
      least = std::min(least, row.prediction.step_seconds);
  for (const PlannedRow& row : plan.rows)
    if (row.bandwidth == bandwidth_of(network) && plan.mildest_codec.empty() &&
        row.prediction.step_seconds <= kAsFast * least)
      plan.mildest_codec = row.codec;
  return plan;
}

void print_json(const PlannedRun& run, const Plan& plan) {
  const PipelineSettings& p = run.settings.pipeline;
  OrderedJson json = json_of(plan.of_deck);
  json["bandwidth"] = bandwidth_of(run.settings.network);
  json["model"] = run.model.model->description();
  json["stages"] = p.stages;
  json["replicas"] = p.replicas;
  json["stages_per_rank"] = p.stages_per_rank;
  json["schedule"] = p.schedule;
  json["in_flight"] = p.in_flight;
  json["micro_batches"] = run.settings.training.micro_batches;
  json["micro_batch_size"] = run.settings.training.micro_batch_size;
  json["rates"] = {{"source", run.rates.source}, {"flops", run.rates.flops}};
  json["sweep"] = OrderedJson::array();
  for (const PlannedRow& row : plan.rows) {
    OrderedJson entry = {
        {"bandwidth", row.bandwidth}, {"codec", row.codec}, {"at_most", row.is_upper_bound}};
    entry.update(json_of(row.prediction));
    json["sweep"].push_back(entry);
  }
  json["codecs"] = OrderedJson::array();
  for (const Needed& needed : plan.needed)
    json["codecs"].push_back({{"codec", needed.codec},
                              {"bandwidth_needed", needed.bandwidth ? OrderedJson(*needed.bandwidth)
                                                                    : OrderedJson(nullptr)},
                              {"forward_bytes", needed.forward_bytes},
                              {"backward_bytes", needed.backward_bytes},
                              {"replica_bytes", needed.replica_bytes}});
  json["recommended"] = {
      {"bandwidth", plan.chosen_bandwidth},       {"schedule", plan.choice.schedule},
      {"in_flight", plan.choice.in_flight},       {"micro_batches", plan.choice.micro_batches},
      {"step_seconds", plan.choice.step_seconds}, {"mildest_codec", plan.mildest_codec}};
  std::printf("%s\n", json.dump(2).c_str());
}

void print_table(const PlannedRun& run, const Plan& plan) {
  const PipelineSettings& p = run.settings.pipeline;
  std::printf(
      "# plan: %s, %d stage(s) x %d replica(s), %s, %d micro-batches of %d samples, "
      "in_flight %d\n",
      run.model.model->description().c_str(), p.stages, p.replicas, p.schedule.c_str(),
      run.settings.training.micro_batches, run.settings.training.micro_batch_size, p.in_flight);
  double slowest = HUGE_VAL;
  for (const double rate : run.rates.flops) slowest = std::min(slowest, rate);
  std::printf("# a rank computes %sflop/s (%s)", with_prefix(slowest).c_str(),
              printable(run.rates.source, 200).c_str());
  if (run.rates.codec_rate > 0)
    std::printf(" and codes %sB/s", with_prefix(run.rates.codec_rate).c_str());
  std::printf("\n# the deck's codecs: %s forward, %s backward\n",
              kCodecKindNames[static_cast<std::size_t>(run.settings.forward.kind)],
              kCodecKindNames[static_cast<std::size_t>(run.settings.backward.kind)]);
  if (!run.inputs.assumption.empty()) std::printf("# %s\n", run.inputs.assumption.c_str());
  std::printf("#\n# seconds of a step; its parts are means over ranks\n");
  std::printf("# %-14s %-10s %10s %10s %10s %10s %10s %10s\n", "bandwidth", "codec", "step",
              "compute", "codec", "wire", "bubble", "replicas");
  for (const PlannedRow& row : plan.rows) {
    const RankSeconds& parts = row.prediction.parts;
    std::printf("  %-14s %-10s %10.4g %10.4g %10.4g %10.4g %10.4g %10.4g%s\n",
                text_of_bandwidth(row.bandwidth).c_str(), row.codec.c_str(),
                row.prediction.step_seconds, parts.compute, parts.codec, parts.wire, parts.bubble,
                parts.replicas, row.is_upper_bound ? "  at most" : "");
  }
  if (std::ranges::any_of(plan.rows, &PlannedRow::is_upper_bound))
    std::printf(
        "# at most: the codec's messages depend on the values; plan.run or plan.forward_bits and "
        "plan.backward_bits give their bits\n");
  std::printf("#\n# the slowest links at which a step is at most 5 %% longer than without limit\n");
  std::printf("# %-10s %14s %24s %12s\n", "codec", "bandwidth", "bytes of a micro-batch",
              "replicas");
  for (const Needed& needed : plan.needed)
    std::printf("  %-10s %14s %12s %12s %12s\n", needed.codec.c_str(),
                !needed.bandwidth        ? "not searched"
                : *needed.bandwidth == 0 ? "any"
                                         : text_of_bandwidth(*needed.bandwidth).c_str(),
                bytes_text(needed.forward_bytes).c_str(), bytes_text(needed.backward_bytes).c_str(),
                bytes_text(needed.replica_bytes).c_str());
  const Choice& choice = plan.choice;
  std::printf(
      "#\n# at %s: pipeline.schedule=%s pipeline.in_flight=%d training.micro_batches=%d "
      "training.micro_batch_size=%d, %.4g s a step; `check` shows its memory\n",
      text_of_bandwidth(plan.chosen_bandwidth).c_str(), choice.schedule.c_str(), choice.in_flight,
      choice.micro_batches,
      run.settings.training.micro_batches * run.settings.training.micro_batch_size /
          choice.micro_batches,
      choice.step_seconds);
  std::printf("# the mildest codec within 5 %% of the fastest one: %s\n",
              plan.mildest_codec.c_str());
}

}  // namespace

void run_plan(const Settings& settings, bool as_json) {
  const PlannedRun run = plan_run(settings);
  const Plan plan = make_plan(run);
  print_warnings(warnings_without_effect(settings));
  print_warnings(run.inputs.warnings);
  if (run.inputs.data) print_warnings(texts_of(run.inputs.data->skipped));
  print_warnings(warnings_of_network(run.settings.network));
  print_warnings(warnings_of_bandwidths(settings.plan.bandwidths));
  if (as_json)
    print_json(run, plan);
  else
    print_table(run, plan);
}

}  // namespace deltapipe
