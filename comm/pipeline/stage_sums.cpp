// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/stage_sums.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "core/kernels/add_values.hpp"

namespace deltapipe {

namespace {

/// Returns a step's sums of gradients: buckets in the order in which backward passes finish them,
/// then the token embedding's and that of common parameters. Buckets without trained parameters are
/// left out.
std::vector<SumBucket> gradient_buckets(Stage<float>& stage) {
  const ParameterArena<float>& parameters = stage.parameters();
  const std::array<int, 2> late = stage.late_buckets();
  std::vector<SumBucket> buckets;
  for (int b = static_cast<int>(parameters.buckets().size()) - 1; b >= 0; --b)
    if (b != late[0] && b != late[1]) buckets.push_back({b, parameters.bucket_gradient(b)});
  for (const int b : late)
    if (b >= 0) buckets.push_back({b, parameters.bucket_gradient(b)});
  std::erase_if(buckets, [](const auto& bucket) { return bucket.values.extent(0) == 0; });
  return buckets;
}

/// Returns the same for first moments.
std::vector<SumBucket> moment_buckets(const ParameterArena<float>& parameters,
                                      std::vector<SumBucket> buckets) {
  for (SumBucket& bucket : buckets)
    for (std::size_t i = 0; i < parameters.info().size(); ++i) {
      const ParameterInfo& p = parameters.info()[i];
      if (p.frozen || p.bucket != bucket.id) continue;
      // Moments are laid out as gradients, and a bucket begins with its first trained tensor.
      bucket.values =
          Vector<float>(parameters.moment1(static_cast<int>(i)).data(), bucket.values.extent(0));
      break;
    }
  return buckets;
}

/// Returns these sums without null.
std::vector<ReplicaSum*> present(std::vector<ReplicaSum*> sums) {
  std::erase(sums, nullptr);
  return sums;
}

}  // namespace

StageSums::StageSums(const PipelineOptions& options, const PipelineShape& shape,
                     const PipelineRank& rank, int local, Stage<float>& stage)
    : progress_(rank.progress),
      instances_(rank.instances),
      settings_(options.replicas),
      steps_(shape.steps),
      stage_(rank.grid.stage(local)),
      rank_(rank.grid.pipeline_rank()),
      replica_(rank.grid.replica()),
      replicas_(rank.grid.replicas()),
      parameters_(stage.parameters()) {
  const auto make = [&](const std::vector<SumBucket>& buckets, const ReplicaSettings& settings,
                        int number, const char* what) {
    return std::make_unique<ReplicaSum>(
        rank.progress,
        ReplicaSum::Place{stage_, rank.grid.stage_comm(local), rank.links.to_replicas(),
                          number * ReplicaSum::kTags, what},
        buckets, settings, options.pipeline.payload_memory());
  };
  if (shape.training) gradients_ = gradient_buckets(stage);
  gradient_sum_ = make(gradients_, settings_.of_gradients(), 0, "gradients");
  if (!shape.training || replicas_ == 1) return;
  if (settings_.codec == ReplicaCodec::adam_moment) {
    moments_ = moment_buckets(parameters_, gradients_);
    moment_bytes_ = replica_sum_bytes(sizes_of(moments_), replicas_, settings_.of_moments());
    moment_sum_ = make(moments_, settings_.of_moments(), 1, "moments");
  }
  if (parameters_.statistic_size() > 0)
    statistic_sum_ = make({{0, parameters_.statistics()}}, {}, 2, "statistics");
}

void StageSums::begin(std::uint64_t steps_done, double epoch, bool measures_errors) {
  // Also with one replica: second moments freeze alike, whatever the number of replicas.
  sums_moments_ = settings_.sums_moments(epoch);
  sums_changes_ = settings_.is_outer_step(steps_done + 1, steps_);
  gradient_sum_->begin(epoch, measures_errors || sums_changes_);
  if (moment_sum_ && sums_moments_) moment_sum_->begin(epoch, measures_errors);
  if (statistic_sum_) statistic_sum_->begin(epoch, false);
}

/// Clears the elements between a bucket's tensors, which codes with errors change.
void StageSums::clear_padding(const SumBucket& bucket) {
  if (replicas_ == 1 || !has_errors(settings_.codec)) return;
  const BucketRange& range = parameters_.buckets()[static_cast<std::size_t>(bucket.id)];
  const auto clear = [&](std::size_t begin, std::size_t end) {
    if (begin < end)
      Kokkos::deep_copy(instances_.compute,
                        VectorRef<float>(bucket.values.data() + (begin - range.begin), end - begin),
                        0.0f);
  };
  std::size_t end = range.begin;
  for (const ParameterInfo& p : parameters_.info()) {
    if (p.frozen || p.bucket != bucket.id) continue;
    clear(end, p.gradient_offset);
    end = p.gradient_offset + p.size;
  }
  clear(end, range.end);
}

void StageSums::start(int bucket) {
  if (settings_.local_steps == 0) start_statistics();  // the passes forward are complete
  const auto gradients = std::ranges::find(gradients_, bucket, &SumBucket::id);
  if (gradients == gradients_.end() || !sums_gradients()) return;
  clear_padding(*gradients);
  order_after(instances_.copy, instances_.compute);
  gradient_sum_->start(instances_.copy, bucket);
}

void StageSums::start_zeros() {
  Kokkos::deep_copy(instances_.compute, parameters_.all_gradients(), 0.0f);
  if (settings_.local_steps == 0) start_statistics();
  if (!sums_gradients()) return;
  order_after(instances_.copy, instances_.compute);
  gradient_sum_->start_all(instances_.copy);
}

void StageSums::poll() {
  gradient_sum_->poll(instances_.copy);
  if (statistic_sum_) statistic_sum_->poll(instances_.copy);
}

std::vector<ReplicaSum*> StageSums::start_rest() {
  if (settings_.local_steps > 0) return {};
  start_statistics();  // of a stage without gradients
  return present({sums_gradients() ? gradient_sum_.get() : nullptr, statistic_sum_.get()});
}

void StageSums::complete(std::span<ReplicaSum* const> sums) {
  deltapipe::complete(sums, instances_.copy, progress_);
}

void StageSums::finish(std::span<ReplicaSum* const> sums) {
  if (sums.empty()) return;
  for (ReplicaSum* sum : sums) {
    sum->finish(instances_.copy);
    if (sum != moment_sum_.get()) continue;
    const SumStatistics measured = sum->take_statistics(instances_.copy);
    if (measured.signal2 > 0) moment_errors_ = measured;
  }
  if (statistic_sum_ && std::exchange(has_started_statistics_, false))
    divide_values("deltapipe::StageSums::meanStatistics", instances_.copy,
                  static_cast<float>(replicas_), VectorRef<float>(parameters_.statistics()));
  order_after(instances_.compute, instances_.copy);
}

void StageSums::start_statistics() {
  if (!statistic_sum_ || has_started_statistics_) return;
  has_started_statistics_ = true;
  order_after(instances_.copy, instances_.compute);
  statistic_sum_->start_all(instances_.copy);
}

void StageSums::start_at_once(ReplicaSum& sum, const std::vector<SumBucket>& buckets) {
  for (const SumBucket& bucket : buckets) clear_padding(bucket);
  order_after(instances_.copy, instances_.compute);
  sum.start_all(instances_.copy);
}

std::vector<ReplicaSum*> StageSums::start_moments() {
  if (!moment_sum_) return {};
  start_at_once(*moment_sum_, moments_);
  return {moment_sum_.get()};
}

std::vector<ReplicaSum*> StageSums::start_changes() {
  if (replicas_ == 1) return {};
  start_at_once(*gradient_sum_, gradients_);
  start_statistics();
  return present({gradient_sum_.get(), statistic_sum_.get()});
}

void StageSums::take_measurements(StepMeasurements& into) {
  SumStatistics sums = gradient_sum_->take_statistics(instances_.copy);
  if (statistic_sum_) sums.bytes += statistic_sum_->take_statistics(instances_.copy).bytes;
  // Moments are summed after this. Their bytes are known before; their errors are reported in the
  // next step.
  if (sums_moments_ && replica_ == 0) sums.bytes += moment_bytes_;
  into.rank(rank_, RankValue::replica_bytes) += static_cast<double>(sums.bytes);
  into.replica_error2() += sums.error2 + moment_errors_.error2;
  into.replica_signal2() += sums.signal2 + moment_errors_.signal2;
  moment_errors_ = {};
}

std::vector<StatePart> StageSums::state(const ExecSpace& exec) {
  std::vector<StatePart> parts = gradient_sum_->state(exec);
  if (!moment_sum_) return parts;
  for (StatePart& part : moment_sum_->state(exec)) parts.push_back(std::move(part));
  StatePart& unreported = parts.emplace_back();
  unreported.name = kReplicaErrorsPart + std::to_string(stage_) + ", unreported";
  unreported.write = [this](StateWriter& writer) {
    write_scalar(writer, "error2", moment_errors_.error2);
    write_scalar(writer, "signal2", moment_errors_.signal2);
  };
  unreported.read = [this](StateReader& reader) {
    moment_errors_.error2 = read_scalar<double>(reader, "error2");
    moment_errors_.signal2 = read_scalar<double>(reader, "signal2");
  };
  return parts;
}

}  // namespace deltapipe
