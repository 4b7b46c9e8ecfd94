// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/work_rates.hpp"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>

#include "app/deck/deck.hpp"
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

/// The second half of a column's steps, whose shape is [steps, entries].
class Column {
 public:
  Column(const hdf5::File& file, const std::string& name) {
    const hdf5::Dataset dataset = file.open_dataset("steps/" + name);
    dataset.expect_stored();
    entries_ = dataset.row_elements();
    first_ = dataset.rows() / 2;
    values_.resize((dataset.rows() - first_) * entries_);
    dataset.read(first_, std::span<double>(values_));
  }
  std::size_t entries() const { return entries_; }
  double median(std::size_t entry) const {
    std::vector<double> one = steps_of(entry);
    const auto middle = one.begin() + static_cast<std::ptrdiff_t>(one.size() / 2);
    std::nth_element(one.begin(), middle, one.end());
    return *middle;
  }
  /// Returns the sum of the entries' medians.
  double sum_of_medians() const {
    double sum = 0;
    for (std::size_t entry = 0; entry < entries_; ++entry) sum += median(entry);
    return sum;
  }
  /// Returns the mean over steps of the sum over entries.
  double mean() const {
    return std::accumulate(values_.begin(), values_.end(), 0.0) /
           static_cast<double>(values_.size() / entries_);
  }

 private:
  std::vector<double> steps_of(std::size_t entry) const {
    std::vector<double> one;
    for (std::size_t i = entry; i < values_.size(); i += entries_) one.push_back(values_[i]);
    return one;
  }
  std::size_t entries_ = 0;
  std::uint64_t first_ = 0;
  std::vector<double> values_;
};

[[noreturn]] void refuse(const Settings& settings, const std::string& what,
                         const std::string& value) {
  throw UserError({.what = what,
                   .file = settings.plan.run,
                   .value = value,
                   .remedy = "name a finished run of this deck's model in plan.run",
                   .keys = {"plan.run"}});
}

/// Values that cross all boundaries in one direction in a step of one replica.
double values_of_step(const Settings& settings, const Model& model,
                      const std::vector<int>& partition, int tokens, int first_boundary) {
  double values = 0;
  int boundary = 0;
  for (const BoundaryShape& shape : boundary_shapes(model, partition, tokens))
    if (boundary++ >= first_boundary) values += static_cast<double>(shape.tokens) * shape.channels;
  return values * settings.training.micro_batch_size * settings.training.micro_batches;
}

/// Returns the bits of a value if the run has the codec of this direction, else 0.
double measured_bits(const hdf5::File& file, const char* column, const Settings& run,
                     bool is_same_codec, double values) {
  if (!is_same_codec || values == 0) return 0;
  return 8 * Column(file, column).mean() / (values * run.pipeline.replicas);
}

WorkRates measured_rates(const Settings& settings, const Model& model,
                         const std::vector<int>& partition, int tokens) {
  const std::string& name = settings.plan.run;
  const hdf5::File file = hdf5::File::open_read_only(name);
  if (!file.has_attribute("deck") || !file.exists("steps"))
    refuse(settings, "this is not a run file", "no deck or no steps");
  const Settings run = parse_stored_deck(file.read_string_attribute("deck"), name);
  const auto parameters = file.read_attribute<std::uint64_t>("parameters");
  const std::uint64_t expected = parameter_count(model).all;
  if (parameters != expected)
    refuse(settings, "the run is of another model",
           std::to_string(parameters) + " parameters, expected " + std::to_string(expected));
  const std::uint64_t steps = file.open_dataset("steps/step").rows();
  if (steps < kLeastSteps)
    refuse(settings, "the run has too few steps to measure", std::to_string(steps));

  const auto ran = file.read_vector_attribute<int>("partition");
  const int first_trained = first_trained_stage(model, ran);
  const std::vector<StageWork> work = stage_work(run, model.cost(tokens), ran, first_trained);
  const int ranks = run.pipeline.pipeline_ranks();
  const Column compute(file, "compute_seconds");
  std::vector<double> flop(static_cast<std::size_t>(ranks));
  for (std::size_t s = 0; s < work.size(); ++s)
    flop[s % flop.size()] += run.training.micro_batches * (work[s].forward + work[s].backward);
  WorkRates rates;
  rates.source = name;
  if (run.pipeline.stages == settings.pipeline.stages &&
      ranks == settings.pipeline.pipeline_ranks() && ran == partition) {
    for (std::size_t r = 0; r < flop.size(); ++r)
      rates.flops.push_back(flop[r] / compute.median(r));
  } else {
    rates.flops = {std::accumulate(flop.begin(), flop.end(), 0.0) / compute.sum_of_medians()};
  }
  rates.step_seconds = (Column(file, "other_seconds").sum_of_medians() +
                        Column(file, "cache_seconds").sum_of_medians()) /
                       ranks;
  const double forward = values_of_step(run, model, ran, tokens, 0);
  const double backward = values_of_step(run, model, ran, tokens, first_trained);
  const double codec_seconds = Column(file, "codec_seconds").sum_of_medians();
  if (codec_seconds > 0) {
    const double rate = 2 * sizeof(float) * (forward + backward) / codec_seconds;
    const bool is_plain =
        run.forward.kind == CodecKind::none && run.backward.kind == CodecKind::none;
    (is_plain ? rates.plain_rate : rates.codec_rate) = rate;
  }
  if (run.pipeline.stages > 1) {
    rates.forward_bits =
        measured_bits(file, "forward_bytes", run, run.forward == settings.forward, forward);
    rates.backward_bits =
        measured_bits(file, "backward_bytes", run, run.backward == settings.backward, backward);
  }
  return rates;
}

}  // namespace

WorkRates work_rates(const Settings& settings, const Model& model,
                     const std::vector<int>& partition, int tokens) {
  const PlanSettings& plan = settings.plan;
  WorkRates rates;
  if (!plan.run.empty())
    rates = measured_rates(settings, model, partition, tokens);
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
