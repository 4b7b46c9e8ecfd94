// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/traffic_prediction.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "app/preflight/planned_links.hpp"
#include "app/preflight/step_prediction.hpp"
#include "app/preflight/traffic_counter.hpp"
#include "comm/pipeline/step_plan.hpp"
#include "comm/replicas/replica_sum.hpp"

namespace deltapipe {

namespace {

/// Returns the mean bits of a value that crosses the boundaries; 0: none does.
double mean_bits(const std::vector<WireBytes>& boundaries) {
  WireBytes sum;
  for (const WireBytes& boundary : boundaries) sum += boundary;
  return sum.fp32 == 0
             ? 0
             : 8 * sizeof(float) * static_cast<double>(sum.all()) / static_cast<double>(sum.fp32);
}

/// Returns the mean seconds of a step in which stages and codecs compute in no time.
double seconds_on_links(const Settings& settings, const ModelLayout& model,
                        const PipelineShape& shape, const DataSplit& data,
                        const TrafficPrediction& traffic, double warmup_share) {
  double seconds = 0;
  for (const LinkLoad& link : traffic.links) seconds = std::max(seconds, link.busy_seconds);
  const PipelineSettings& p = settings.pipeline;
  constexpr std::int64_t kMostPasses = 200000;
  if (std::int64_t{2} * p.stages * settings.training.micro_batches > kMostPasses) return seconds;
  WorkRates rates;
  rates.flops = {std::numeric_limits<double>::infinity()};
  rates.forward_bits = mean_bits(traffic.forward);
  rates.backward_bits = mean_bits(traffic.backward);
  const auto predicted = [&](ReplicaCodec codec) {
    Settings planned = settings;
    planned.plan.receiver_wires = false;
    planned.replicas.codec = codec;
    return PlannedStep(planned, model, shape, data.train.get(), rates)
        .predict(settings.network)
        .step_seconds;
  };
  double step = 0;
  if (warmup_share < 1) step += (1 - warmup_share) * predicted(settings.replicas.codec);
  if (warmup_share > 0) step += warmup_share * predicted(ReplicaCodec::none);
  return std::max(seconds, step);
}

}  // namespace

WireBytes TrafficPrediction::boundaries() const {
  WireBytes sum = tied_rows;
  sum += tied_gradients;
  for (const auto* direction : {&forward, &backward})
    for (const WireBytes& boundary : *direction) sum += boundary;
  return sum;
}

std::uint64_t TrafficPrediction::replicas() const {
  std::uint64_t sum = 0;
  for (const std::uint64_t bytes : replica_bytes) sum += bytes;
  return sum;
}

WireBytes TrafficPrediction::evaluation_bytes() const {
  WireBytes sum = evaluation_rows;
  for (const WireBytes& boundary : evaluation_forward) sum += boundary;
  return sum;
}

std::uint64_t evaluations_of_run(const TrainingSettings& training, std::uint64_t steps,
                                 std::uint64_t steps_per_epoch) {
  const std::uint64_t every = training.evaluate_every > 0
                                  ? training.evaluate_every
                                  : std::max<std::uint64_t>(1, steps_per_epoch);
  const std::uint64_t at_start = training.evaluate_at_start ? 1 : 0;
  return at_start + (steps - 1) / every + 1;  // the last one comes at the end
}

TrafficPrediction predict_traffic(const Settings& settings, const ModelLayout& model,
                                  const PipelineShape& shape, const DataSplit& data,
                                  std::uint64_t steps) {
  const StepPlanner planner = step_planner(settings, *data.train);
  TrafficPrediction traffic = count_messages(settings, model, shape, data, planner, steps);
  const PipelineSettings& p = settings.pipeline;
  traffic.replica_bytes.assign(p.pipeline_ranks(), 0);
  const std::uint64_t warmup =
      std::min(settings.replicas.warmup_steps(planner.steps_per_epoch()), steps);
  PlannedLinks links(settings.network, p);
  for (int stage = 0; stage < p.stages && p.replicas > 1; ++stage) {
    const auto made = model.model->make_stage(stage_part(model.partition, stage));
    const std::vector<std::size_t> sizes = bucket_sizes(made->parameters());
    const std::uint64_t statistics =
        replica_sum_bytes(statistic_sizes(made->parameters()), p.replicas, {});
    const std::uint64_t all = settings.replicas.sums_until(steps, steps);
    const std::uint64_t first = settings.replicas.sums_until(warmup, steps);
    const std::uint64_t bytes =
        first * replica_sum_bytes(sizes, p.replicas, settings.replicas, true) +
        (all - first) * replica_sum_bytes(sizes, p.replicas, settings.replicas) + all * statistics;
    const int rank = stage % p.pipeline_ranks();
    traffic.replica_bytes[rank] += bytes;
    traffic.replica_fp32 += steps * (replica_sum_bytes(sizes, p.replicas, {}) + statistics);
    links.pass_sum(rank, bytes / static_cast<std::uint64_t>(p.replicas));
  }
  for (const auto& [name, seconds] : links.loads()) {
    auto link = std::ranges::find(traffic.links, name, &LinkLoad::name);
    if (link == traffic.links.end()) link = traffic.links.insert(link, {name, 0});
    link->busy_seconds += seconds / static_cast<double>(steps);
  }
  if (!traffic.links.empty())
    traffic.step_seconds =
        seconds_on_links(settings, model, shape, data, traffic,
                         has_errors(settings.replicas.codec)
                             ? static_cast<double>(warmup) / static_cast<double>(steps)
                             : 0);
  return traffic;
}

}  // namespace deltapipe
