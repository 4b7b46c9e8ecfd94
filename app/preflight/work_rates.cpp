// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/work_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string_view>

#include "app/deck/deck.hpp"
#include "app/preflight/message_sizes.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "core/base/error.hpp"
#include "core/files/hdf5.hpp"

namespace deltapipe {

std::vector<StageWork> stage_work(const Settings& settings, const ModelCost& cost,
                                  const std::vector<int>& partition, int first_trained_stage) {
  const PipelineOptions options = pipeline_options(settings);
  const int stages = settings.pipeline.stages;
  std::vector<StageWork> work;
  for (int s = 0; s < stages; ++s) {
    // A sample's operations are one part forward and two parts backward.
    const double forward =
        settings.training.micro_batch_size *
        cost.of(partition[static_cast<std::size_t>(s)], s == 0, s + 1 == stages) / 3;
    const double backward = s < first_trained_stage ? 0 : 2 * forward;
    const bool recomputes = backward > 0 && stage_recomputes(options, s);
    work.push_back({forward, backward + (recomputes ? forward : 0)});
  }
  return work;
}

namespace {

constexpr std::uint64_t kLeastSteps = 4;

[[noreturn]] void refuse(const Settings& settings, const std::string& what,
                         const std::string& value) {
  throw UserError({.what = what,
                   .file = settings.plan.run,
                   .value = value,
                   .remedy = "name a finished run of this deck's model in plan.run",
                   .keys = {"plan.run"}});
}

/// Columns of a run file, which may be damaged.
class MeasuredSteps {
 public:
  explicit MeasuredSteps(const Settings& settings, const hdf5::File& file)
      : settings_(settings), file_(file), steps_(file.open_dataset("steps/step").rows()) {
    if (steps_ < kLeastSteps)
      refuse(settings, "the run has too few steps to measure", std::to_string(steps_));
  }

  std::uint64_t steps() const { return steps_; }
  /// Returns the values of all steps, `entries` a step. They are finite.
  std::vector<double> column(const std::string& name, std::size_t entries) const {
    const hdf5::Dataset dataset = file_.open_dataset("steps/" + name);
    dataset.expect_stored();
    if (dataset.rows() != steps_ || dataset.row_elements() != entries)
      refuse(settings_, "steps/" + name + " has another shape than the run",
             fmt::format("{} x {}", dataset.rows(), dataset.row_elements()));
    std::vector<double> values(steps_ * entries);
    dataset.read(0, std::span<double>(values));
    if (!std::ranges::all_of(values, [](double value) { return std::isfinite(value); }))
      refuse(settings_, "steps/" + name + " has values that are not finite", "NaN or infinity");
    return values;
  }
  /// Returns the median of each entry over the second half of the steps.
  std::vector<double> medians(const std::string& name, std::size_t entries) const {
    const std::vector<double> values = column(name, entries);
    std::vector<double> medians;
    for (std::size_t entry = 0; entry < entries; ++entry) {
      std::vector<double> one;
      for (std::uint64_t step = steps_ / 2; step < steps_; ++step)
        one.push_back(values[step * entries + entry]);
      const auto middle = one.begin() + static_cast<std::ptrdiff_t>(one.size() / 2);
      std::nth_element(one.begin(), middle, one.end());
      medians.push_back(*middle);
    }
    return medians;
  }

 private:
  const Settings& settings_;
  const hdf5::File& file_;
  std::uint64_t steps_;
};

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// Values that cross all boundaries in one direction in a step of one replica.
double values_of_step(const Settings& settings, const Model& model,
                      const std::vector<int>& partition, int most_tokens, double valid_tokens,
                      int first_boundary) {
  double values = 0;
  int boundary = 0;
  for (const BoundaryShape& shape : boundary_shapes(model, partition, most_tokens))
    if (boundary++ >= first_boundary)
      values += (shape.tokens == most_tokens ? valid_tokens : shape.tokens) * shape.channels;
  return values * settings.training.micro_batch_size * settings.training.micro_batches;
}

/// Returns the mean bits of a value in steps without first visits, after the warm-up. Returns 0 if
/// there are no such steps, or the payload has a fixed length.
double measured_bits(const MeasuredSteps& measured, const char* column, const Settings& run,
                     const CodecSettings& codec, double values) {
  if (has_fixed_length(codec) || values == 0) return 0;
  const auto boundaries = static_cast<std::size_t>(run.pipeline.stages - 1);
  const auto ranks = static_cast<std::size_t>(run.pipeline.pipeline_ranks());
  const std::vector<double> bytes = measured.column(column, boundaries);
  const std::vector<double> first_visits = measured.column("cache_first_visits", ranks);
  const std::vector<double> epochs = measured.column("epoch", 1);
  const auto row = [](const std::vector<double>& all, std::uint64_t step, std::size_t entries) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(step * entries);
    return std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(entries), 0.0);
  };
  // The last step of an epoch may have fewer samples.
  const std::vector<double> samples = measured.column("samples", 1);
  const double all =
      static_cast<double>(run.training.micro_batch_size) * run.training.micro_batches;
  double sum = 0, crossed = 0;
  for (std::uint64_t step = 1; step < measured.steps(); ++step) {
    if (epochs[step - 1] < codec.warmup_epochs || row(first_visits, step, ranks) > 0) continue;
    sum += row(bytes, step, boundaries);
    crossed += values * samples[step] / all;
  }
  return crossed == 0 ? 0 : 8 * sum / crossed;
}

/// Refuses a run of other work than the deck's.
void compare_work(const Settings& settings, const Settings& run) {
  constexpr auto kKeys = std::to_array<std::string_view>(
      {"data.sequence_length", "training.precision", "training.optimizer.frozen",
       "training.optimizer.relative_embeddings", "data.images.size"});
  for (const auto& [key, left, right] : differences(run, settings))
    if (std::ranges::find(kKeys, key) != kKeys.end())
      refuse(settings, "the run has another " + key,
             fmt::format("{} (the deck has {})", left, right));
}

WorkRates measured_rates(const Settings& settings, const Model& model,
                         const std::vector<int>& partition, int most_tokens,
                         const MeanTokens& mean) {
  const std::string& name = settings.plan.run;
  const hdf5::File file = hdf5::File::open_read_only(name);
  if (!file.has_attribute("deck") || !file.exists("steps"))
    refuse(settings, "this is not a run file", "no deck or no steps");
  const Settings run = parse_stored_deck(file.read_string_attribute("deck"), name);
  const auto parameters = file.read_attribute<std::uint64_t>("parameters");
  const std::uint64_t expected = parameter_count(model).all;
  if (parameters != expected)
    refuse(settings, "the run is of another model",
           fmt::format("{} parameters, expected {}", parameters, expected));
  compare_work(settings, run);
  const auto ran = file.read_vector_attribute<int>("partition");
  const bool fits =
      static_cast<int>(ran.size()) == run.pipeline.stages &&
      std::ranges::all_of(ran, [](int blocks) { return blocks > 0; }) &&
      std::accumulate(ran.begin(), ran.end(), std::int64_t{0}) == model.shape().blocks;
  if (!fits)
    refuse(settings, "the run's partition is not one of this model",
           fmt::format("{} stages", ran.size()));

  const MeasuredSteps measured(settings, file);
  const int first_trained = first_trained_stage(model, ran);
  const std::vector<StageWork> work =
      stage_work(run, model.cost(static_cast<int>(std::lround(mean.computed))), ran, first_trained);
  const auto ranks = static_cast<std::size_t>(run.pipeline.pipeline_ranks());
  const std::vector<double> compute = measured.medians("compute_seconds", ranks);
  if (!std::ranges::all_of(compute, [](double seconds) { return seconds > 0; }))
    refuse(settings, "the run has ranks that did not compute", "0 s");
  std::vector<double> flop(ranks);
  for (std::size_t s = 0; s < work.size(); ++s)
    flop[s % ranks] += run.training.micro_batches * (work[s].forward + work[s].backward);
  WorkRates rates;
  rates.source = name;
  if (run.pipeline.stages == settings.pipeline.stages &&
      run.pipeline.stages_per_rank == settings.pipeline.stages_per_rank && ran == partition) {
    for (std::size_t r = 0; r < ranks; ++r) rates.flops.push_back(flop[r] / compute[r]);
  } else {
    rates.flops = {sum_of(flop) / sum_of(compute)};
  }
  rates.step_seconds = (sum_of(measured.medians("other_seconds", ranks)) +
                        sum_of(measured.medians("cache_seconds", ranks))) /
                       static_cast<double>(ranks);
  if (run.pipeline.stages == 1) return rates;
  const auto values = [&](int first_boundary) {
    return values_of_step(run, model, ran, most_tokens, mean.valid, first_boundary);
  };
  const double forward = values(0), backward = values(first_trained);
  const double codec_seconds = sum_of(measured.medians("codec_seconds", ranks));
  if (codec_seconds > 0) {
    const double rate = 2 * sizeof(float) * (forward + backward) / codec_seconds;
    const bool is_plain =
        run.forward.kind == CodecKind::none && run.backward.kind == CodecKind::none;
    (is_plain ? rates.plain_rate : rates.codec_rate) = rate;
  }
  if (run.forward == settings.forward && run.forward_rate == settings.forward_rate)
    rates.forward_bits = measured_bits(measured, "forward_bytes", run, run.forward, forward);
  if (run.backward == settings.backward && run.backward_rate == settings.backward_rate)
    rates.backward_bits = measured_bits(measured, "backward_bytes", run, run.backward, backward);
  return rates;
}

}  // namespace

WorkRates work_rates(const Settings& settings, const Model& model,
                     const std::vector<int>& partition, int most_tokens, const MeanTokens& mean) {
  constexpr double kLeast = 1e3;
  const PlanSettings& plan = settings.plan;
  WorkRates rates;
  if (!plan.run.empty())
    rates = measured_rates(settings, model, partition, most_tokens, mean);
  else if (plan.flops > 0 && plan.flops < kLeast)
    throw UserError({.what = "plan.flops is too small for the rate of a rank",
                     .value = fmt::format("{:g} flop/s", plan.flops),
                     .remedy = "write the rate with its prefix, as \"10 Tflop/s\"",
                     .keys = {"plan.flops"}});
  else if (plan.flops > 0)
    rates = {.flops = {plan.flops}, .source = "plan.flops"};
  else
    throw UserError({.what = "a plan requires the rate at which ranks compute",
                     .remedy = "set plan.run to the run.h5 of a short run of this model, or "
                               "plan.flops = \"10 Tflop/s\"",
                     .keys = {"plan.run", "plan.flops"}});
  if (rates.codec_rate == 0) rates.codec_rate = plan.codec_rate;
  if (plan.forward_bits > 0) rates.forward_bits = plan.forward_bits;
  if (plan.backward_bits > 0) rates.backward_bits = plan.backward_bits;
  return rates;
}

}  // namespace deltapipe
