// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/pipeline.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/pipeline/stage_check.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

Pipeline::Pipeline(const PipelineOptions& options, const PipelineShape& shape,
                   const ProcessGrid& grid, ProgressThread& progress,
                   std::span<Stage<float>* const> stages)
    : grid_(grid),
      progress_(progress),
      schedule_(find_schedule(options.pipeline.schedule)),
      links_(options.network, grid.pipeline_rank(),
             {grid.pipeline_ranks(), grid.stages_per_rank() > 1}),
      handlers_(static_cast<std::size_t>(grid.stages()), nullptr) {
  DELTAPIPE_ASSERT(static_cast<int>(stages.size()) == grid.stages_per_rank(),
                   fmt::format("{} stages on a rank", stages.size()));
  compare_stages(progress, grid, stages, shape.tokens);
  for (const EvaluationMode mode : {EvaluationMode::plain, EvaluationMode::codec})
    is_causal_[static_cast<std::size_t>(mode)] =
        crosses_token_by_token(options, mode, grid.stages());
  if (options.cache.budget_bytes > 0) cache_io_ = std::make_unique<CacheIoThread>();
  progress.set_wire(links_.wire());
  const PipelineRank rank{grid, progress, instances_, cache_io_.get(), links_, sums_};
  for (int local = 0; local < grid.stages_per_rank(); ++local) {
    stages_.push_back(std::make_unique<PipelineStage>(options, shape, rank, local, *stages[local]));
    handlers_[static_cast<std::size_t>(grid.stage(local))] = stages_.back().get();
  }
}

std::vector<ScheduleShape> Pipeline::schedule_shapes() const {
  std::vector<ScheduleShape> shapes;
  for (const auto& stage : stages_) shapes.push_back(stage->schedule_shape());
  return shapes;
}

void Pipeline::train_step(const Dataset& data, const StepPlan& plan, bool measure_errors,
                          const std::function<void()>& update) {
  for (const auto& stage : stages_) stage->load_training_step(data, plan, measure_errors, update);
  run(training_program(schedule_, schedule_shapes()), handlers_);
}

void Pipeline::evaluate_step(const Dataset& data, const StepPlan& plan, EvaluationMode mode,
                             const StepPlan* next, RowScore score) {
  EvaluationRows rows;
  for (const auto& stage : stages_)
    rows = stage->load_evaluation_step(data, plan, mode, next, score);
  run(evaluation_program(schedule_, schedule_shapes(), rows), handlers_);
}

void Pipeline::begin_text(EvaluationMode mode) {
  for (const auto& stage : stages_) stage->begin_text(mode);
}

std::vector<float> Pipeline::continue_text(std::span<const std::int32_t> tokens,
                                           std::uint64_t call) {
  for (const auto& stage : stages_) stage->load_text_step(tokens, call);
  run(evaluation_program(schedule_, schedule_shapes()), handlers_);
  return grid_.last() ? stages_.back()->text_logits() : std::vector<float>();
}

void Pipeline::prefetch(std::span<const std::uint64_t> sample_ids) {
  for (const auto& stage : stages_) stage->prefetch(sample_ids);
}

void Pipeline::take_measurements(StepMeasurements& into, bool is_outer) {
  for (const auto& stage : stages_) stage->take_measurements(into, is_outer);
  into.collectives() += static_cast<double>(progress_.take_collective_bytes());

  const TimeReport time = progress_.account().take(Clock::now());
  const int rank = grid_.pipeline_rank();
  into.rank(rank, RankValue::wall) += time.wall;
  into.rank(rank, RankValue::compute) += time[Activity::compute];
  into.rank(rank, RankValue::codec) += time[Activity::codec];
  into.rank(rank, RankValue::cache) += time[Activity::cache];
  into.rank(rank, RankValue::wire_exposed) += time[Activity::wire_exposed];
  into.rank(rank, RankValue::bubble) += time[Activity::bubble];
  into.rank(rank, RankValue::replicas) += time[Activity::replicas];
  into.rank(rank, RankValue::other) += time[Activity::other];
  into.rank(rank, RankValue::wire) += time.wire;
  into.rank(rank, RankValue::wire_hidden) += time.wire_hidden;
}

Pipeline::SentBytes Pipeline::take_sent_bytes() {
  SentBytes sent;
  sent.forward.resize(static_cast<std::size_t>(grid_.stages() - 1));
  for (const auto& stage : stages_) stage->take_sent_bytes(sent.forward, sent.tied_rows);
  return sent;
}

std::vector<double> Pipeline::step_totals() const {
  std::vector<double> values(kStepTotals * 2 * static_cast<std::size_t>(grid_.stages() - 1), 0);
  for (const auto& stage : stages_) stage->add_step_totals(values);
  return values;
}

std::vector<StatePart> Pipeline::state() {
  std::vector<std::vector<StatePart>> of_stages;
  for (const auto& stage : stages_) of_stages.push_back(stage->state());
  return merged_parts(std::move(of_stages));
}

ResyncCounts Pipeline::resync_memories() {
  ResyncCounts counts;
  for (const auto& stage : stages_) counts += stage->resync_memories();
  return counts;
}

bool Pipeline::has_damaged_records() {
  bool any = false;
  for (const auto& stage : stages_) any = stage->has_damaged_records() || any;
  return any;
}

void Pipeline::forget_damaged_records(bool spoiled_step) {
  for (const auto& stage : stages_) stage->forget_damaged_records(spoiled_step);
}

std::vector<ActivationCache*> Pipeline::caches() {
  std::vector<ActivationCache*> all;
  for (const auto& stage : stages_) {
    const std::vector<ActivationCache*> of_stage = stage->caches();
    all.insert(all.end(), of_stage.begin(), of_stage.end());
  }
  return all;
}

}  // namespace deltapipe
