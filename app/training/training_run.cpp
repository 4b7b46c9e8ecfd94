// SPDX-License-Identifier: BSD-3-Clause
#include "app/training/training_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "comm/transport/collectives.hpp"
#include "comm/transport/step_watch.hpp"
#include "core/base/number_text.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

/// Attempts at a step that damaged records spoil. Records that were found damaged are not read
/// again.
constexpr int kMostAttempts = 10;

/// Values that all ranks sum at the end of a step.
struct StepSums {
  std::vector<double> squared_norms;      ///< of all tensors of the model, in its order
  std::vector<double> losses;             ///< one entry per replica
  std::vector<double> damaged = {0};      ///< ranks that have found damaged records
  std::vector<double> measurements = {};  ///< StepMeasurements::values()
  std::vector<double> notes = {};         ///< StepObserver::notes()

  std::vector<double> packed() const {
    std::vector<double> all;
    for (const auto* part : {&squared_norms, &losses, &damaged, &measurements, &notes})
      all.insert(all.end(), part->begin(), part->end());
    return all;
  }
  void unpack(const std::vector<double>& all) {
    auto from = all.begin();
    for (auto* part : {&squared_norms, &losses, &damaged, &measurements, &notes})
      for (double& value : *part) value = *from++;
  }
};

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

TrainingRun::Pause::Pause(TrainingRun& run) : run_(run) {
  if (run_.pauses_++ > 0) return;
  run_.pipeline_.exec().fence();  // the optimizer's time is the training's
  run_.progress_.account().suspend(Clock::now());
}

TrainingRun::Pause::~Pause() {
  if (--run_.pauses_ == 0) run_.progress_.account().resume(Clock::now());
}

TrainingRun::TrainingRun(TrainingPlan plan, const Model& model, Stages stages, const Dataset& data,
                         const ProcessGrid& grid, ProgressThread& progress)
    : plan_(std::move(plan)),
      data_(data),
      task_(model.task()),
      grid_(grid),
      progress_(progress),
      stages_(std::move(stages)),
      planner_(data, plan_.pipeline.seed, plan_.shuffle, step_layout(plan_.pipeline)),
      pipeline_(plan_.pipeline, plan_.shape, grid, progress, pointers_to(stages_)) {
  for (const auto& stage : stages_) {
    optimizers_.emplace_back(plan_.optimizer, stage->parameters());
    if (const ReplicaSettings& replicas = plan_.pipeline.replicas; replicas.local_steps > 0)
      outer_optimizers_.emplace_back(pipeline_.exec(), replicas.outer_learning_rate,
                                     replicas.outer_momentum, stage->parameters());
    replica_checks_.emplace_back(stage->parameters(), grid, progress,
                                 static_cast<int>(replica_checks_.size()));
  }
  for (int s = 0; s < grid.stages(); ++s) {
    if (grid.owner_of(s) == grid.pipeline_rank()) tensors_before_.push_back(tensors_);
    tensors_ += model.parameters(stage_part(plan_.shape.partition, s)).size();
  }
  totals_.seed = plan_.pipeline.seed;
  totals_.data_fingerprint = plan_.shape.data_fingerprint;
  totals_.ranks.resize(grid.pipeline_ranks());
}

double TrainingRun::epochs_after(std::uint64_t steps) const {
  return static_cast<double>(steps) / static_cast<double>(planner_.steps_per_epoch());
}

void TrainingRun::start() {
  if (is_started_) return;
  is_started_ = true;
  progress_.take_collective_bytes();  // those of the set-up belong to no step
  progress_.account().resume(Clock::now());
}

void TrainingRun::end() {
  progress_.account().suspend(Clock::now());
  totals_.seconds += progress_.account().open_seconds(Clock::now());
}

/// Keeps the caches' reads ahead of training.
void TrainingRun::announce(std::uint64_t step) {
  const PipelineOptions& options = plan_.pipeline;
  const std::uint64_t ahead = 1 + options.cache.prefetch / std::max(1, options.micro_batches);
  announced_ = std::max(announced_, step);
  for (; announced_ < std::min(steps(), step + 1 + ahead); ++announced_)
    pipeline_.prefetch(planner_.samples(announced_, grid_.replica()));
}

StepRecord TrainingRun::step(const StepObserver& observer) {
  start();
  const std::uint64_t step = totals_.steps;
  announce(step);
  const StepPlan plan = planner_.plan(step, grid_.replica());
  const WatchedStep watched(progress_.step_watch(), step + 1);
  StepRecord record;
  record.step = step + 1;
  record.epoch = epochs_after(step + 1);
  record.tokens = plan.targets;
  record.samples = plan.samples;
  for (const auto& stage : stages_) stage->parameters().keep_statistics(pipeline_.exec());
  int attempts = 0;
  for (bool counts = false; !counts;) {
    pipeline_.train_step(data_, plan, step % plan_.measure_every == 0,
                         [&] { counts = update(plan, observer, record); });
    if (counts) break;
    if (++attempts == kMostAttempts)
      throw UserError({.what = fmt::format("step {} was spoiled by damaged records of activation "
                                           "caches in each of {} attempts",
                                           step + 1, attempts),
                       .file = plan_.pipeline.cache.directory,
                       .remedy = "check that disk, or set another cache.directory"});
    pipeline_.forget_damaged_records(true);
    for (const auto& stage : stages_) stage->parameters().restore_statistics(pipeline_.exec());
    if (observer.forgot_records) observer.forgot_records();
  }
  record.seconds = totals_.seconds;
  const std::uint64_t every = plan_.pipeline.pipeline.verify_replicas;
  if (every > 0 && replicas_agree(record.step) &&
      (record.step % every == 0 || record.step == steps() || !replicas_agree(record.step - 1)))
    compare_replicas(record.step);
  record.collective_bytes += progress_.take_collective_bytes();  // which rank 0 counts
  totals_.add(record);
  if (observer.done) observer.done(record);
  return record;
}

/// Fills the record's loss, norm and rate. Returns false if damaged records have spoiled the step
/// and nothing was updated.
bool TrainingRun::update(const StepPlan& plan, const StepObserver& observer, StepRecord& record) {
  record.learning_rate = learning_rate_at(plan_.optimizer, plan.step, steps());
  if (!share(plan, observer, record)) return false;
  if (!std::isfinite(record.loss) || !std::isfinite(record.gradient_norm))
    throw Diverged(
        {.what = fmt::format("loss or gradient is no longer finite at step {}", record.step),
         .value = fmt::format("loss {}, gradient norm {}", number_text("%g", record.loss),
                              number_text("%g", record.gradient_norm)),
         .remedy = "lower the learning rate, add warm-up steps, or use more bits at the "
                   "boundaries"});
  const ActivityScope activity(progress_.account(), Activity::compute);
  const TraceScope trace(TraceCategory::compute, "optimizer");
  const double clip = plan_.optimizer.clip_norm;
  // As torch.nn.utils.clip_grad_norm_.
  const double factor = clip > 0 ? std::min(1.0, clip / (record.gradient_norm + 1e-6)) : 1.0;
  if (pipeline_.sums_moments()) {
    update_from_moments(plan.step, record.learning_rate, factor);
    return true;
  }
  // Gradients that are not summed are those of a part of the mean loss.
  const double part = pipeline_.sums_gradients() ? 1 : grid_.replicas();
  for (Optimizer<float>& optimizer : optimizers_)
    optimizer.update(pipeline_.exec(), plan.step, record.learning_rate, part * factor);
  if (pipeline_.sums_changes()) {
    take_outer_step();
    measure_outer_step(record);
  }
  return true;
}

void TrainingRun::take_outer_step() {
  const ExecSpace& exec = pipeline_.exec();
  for (OuterOptimizer<float>& outer : outer_optimizers_) outer.write_changes(exec);
  pipeline_.sum_changes();
  for (OuterOptimizer<float>& outer : outer_optimizers_) outer.update(exec, grid_.replicas());
}

/// Adds the time, bytes and errors of the outer step to the record.
void TrainingRun::measure_outer_step(StepRecord& record) {
  StepMeasurements outer(grid_.stages(), grid_.pipeline_ranks(), grid_.replicas());
  pipeline_.take_measurements(outer, true);
  totals_.seconds += outer.rank(grid_.pipeline_rank(), RankValue::wall);
  const std::span<double> values = outer.values();
  std::vector<double> all(values.begin(), values.end());
  sum_over_ranks(all);
  std::copy(all.begin(), all.end(), values.begin());
  *measured_ += outer;
  measured_->fill(record);
}

/// Replicas sum what the first moments become with their own clipped gradients.
void TrainingRun::update_from_moments(std::uint64_t step, double learning_rate, double factor) {
  const ExecSpace& exec = pipeline_.exec();
  for (Optimizer<float>& optimizer : optimizers_)
    optimizer.share_moments(exec, grid_.replicas(), factor);
  pipeline_.sum_moments();
  const std::uint64_t frozen_after =
      plan_.pipeline.replicas.warmup_steps(planner_.steps_per_epoch());
  for (Optimizer<float>& optimizer : optimizers_)
    optimizer.update_from_moments(exec, step, frozen_after, learning_rate);
}

/// Shares gradient norm, loss and measurements of all ranks in one collective. Returns false if the
/// step does not count; its measurements are retained for the next attempt.
bool TrainingRun::share(const StepPlan& plan, const StepObserver& observer, StepRecord& record) {
  const auto replica = static_cast<std::size_t>(grid_.replica());
  StepSums sums{.squared_norms = std::vector<double>(tensors_),
                .losses = std::vector<double>(grid_.replicas())};
  put_squared_norms(sums.squared_norms);
  sums.losses[replica] = pipeline_.loss_sum();
  StepMeasurements measured(grid_.stages(), grid_.pipeline_ranks(), grid_.replicas());
  pipeline_.take_measurements(measured);
  totals_.seconds += measured.rank(grid_.pipeline_rank(), RankValue::wall);
  if (unrecorded_) measured += *std::exchange(unrecorded_, std::nullopt);
  sums.damaged = {pipeline_.has_damaged_records() ? 1.0 : 0.0};
  const std::span<double> values = measured.values();
  sums.measurements.assign(values.begin(), values.end());
  if (observer.notes) sums.notes = observer.notes();
  std::vector<double> all = sums.packed();
  sum_over_ranks(all);
  sums.unpack(all);

  record.gradient_norm = std::sqrt(sum_of(sums.squared_norms));
  record.loss = sum_of(sums.losses) / static_cast<double>(plan.targets);
  if (observer.hear) observer.hear(sums.notes);
  if (sums.damaged.front() > 0) {
    unrecorded_ = std::move(measured);
    return false;
  }
  std::copy(sums.measurements.begin(), sums.measurements.end(), values.begin());
  measured.fill(record);
  measured_ = std::move(measured);
  return true;
}

/// Writes the norms of this rank's tensors at their positions in the order of the model.
void TrainingRun::put_squared_norms(std::span<double> norms) {
  const ActivityScope activity(progress_.account(), Activity::compute);
  for (std::size_t local = 0; local < optimizers_.size(); ++local) {
    const std::vector<double>& mine = optimizers_[local].squared_norms(pipeline_.exec());
    const auto place = norms.begin() + static_cast<std::ptrdiff_t>(tensors_before_[local]);
    // Gradients that are not summed differ: then the mean over replicas of the squared norms of
    // gradients of their own mean losses, which are `replicas` times as large.
    const bool differ = !pipeline_.sums_gradients();
    const double weight = differ ? grid_.replicas() : grid_.replica() == 0 ? 1 : 0;
    std::transform(mine.begin(), mine.end(), place, [=](double norm) { return weight * norm; });
  }
}

/// Sums over all ranks. The values carry the time at which each rank arrived, so that the wait for
/// the last rank is separate from the wait for the network.
void TrainingRun::sum_over_ranks(std::vector<double>& values) {
  const int ranks = grid_.pipeline_ranks() * grid_.replicas();
  if (ranks == 1) return progress_.check();
  const std::size_t first = values.size();
  values.resize(first + ranks, 0);
  const TimePoint came = Clock::now();
  const auto common = came.time_since_epoch() + progress_.clock_offset();
  const double mine = std::chrono::duration<double>(common).count();
  values[first + grid_.rank()] = mine;
  all_reduce(progress_, grid_.world(), values, Reduction::sum);
  const std::chrono::duration<double> later(
      *std::max_element(values.begin() + first, values.end()) - mine);
  progress_.account().waited(came, came + std::chrono::duration_cast<Clock::duration>(later),
                             Clock::now());
  values.resize(first);
}

EvaluationContext TrainingRun::evaluation_context(const DataSplit& data) {
  return {pipeline_, data,     task_, step_layout(plan_.pipeline), plan_.pipeline.evaluation,
          grid_,     progress_};
}

std::optional<EvaluationRecord> TrainingRun::evaluate(const DataSplit& data,
                                                      const StopsEvaluation& stops) {
  const Pause pause(*this);
  std::optional<EvaluationRecord> found = deltapipe::evaluate(evaluation_context(data), stops);
  if (!found) return std::nullopt;
  found->step = totals_.evaluated = totals_.steps;
  found->epoch = epochs_after(totals_.steps);
  found->seconds = totals_.seconds + progress_.account().open_seconds(Clock::now());
  for (const EvaluationMode mode : plan_.pipeline.evaluation.modes)
    totals_.evaluation_bytes[static_cast<std::size_t>(mode)] += wire_bytes(*found->of(mode));
  return found;
}

void TrainingRun::compare_replicas() {
  if (plan_.pipeline.pipeline.verify_replicas > 0) compare_replicas(totals_.steps);
}

void TrainingRun::compare_replicas(std::uint64_t steps_done) {
  if (std::exchange(compared_after_, steps_done) == steps_done) return;
  for (ReplicaCheck& check : replica_checks_) check.compare(pipeline_.exec(), steps_done);
}

bool TrainingRun::forget_damaged_records() {
  for (ActivationCache* const cache : pipeline_.caches()) cache->find_damaged_records();
  const std::uint64_t mine = pipeline_.has_damaged_records() ? 1 : 0;
  if (all_reduce(progress_, grid_.world(), mine, Reduction::max) == 0) return false;
  pipeline_.forget_damaged_records(false);
  return true;
}

ResyncCounts TrainingRun::resync_memories() {
  const ResyncCounts mine = pipeline_.resync_memories();
  std::vector<std::uint64_t> sums = {mine.kept, mine.forgotten, mine.empty_ends};
  all_reduce(progress_, grid_.world(), sums, Reduction::sum);
  return {.kept = sums[0], .forgotten = sums[1], .empty_ends = sums[2]};
}

std::vector<StatePart> TrainingRun::state() {
  std::vector<std::vector<StatePart>> lists = {pipeline_.state()};
  for (const Optimizer<float>& optimizer : optimizers_)
    lists.push_back(optimizer.state(pipeline_.exec()));
  for (const OuterOptimizer<float>& outer : outer_optimizers_)
    lists.push_back({outer.state(pipeline_.exec())});
  lists.push_back({totals_.state()});
  return merged_parts(std::move(lists));
}

}  // namespace deltapipe
