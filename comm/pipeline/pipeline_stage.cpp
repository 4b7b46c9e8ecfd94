// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/pipeline_stage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "comm/boundary/end_name.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/trace.hpp"
#include "core/base/parallel/floating_point.hpp"
#include "core/data/image_view.hpp"
#include "core/kernels/layers/embedding.hpp"
#include "core/kernels/sample_rows.hpp"

namespace deltapipe {

namespace {

StagePlace place_of(const ProcessGrid& grid, int local) {
  return {grid.stage(local), grid.stages(), grid.replica(), grid.replicas(),
          grid.stages_per_rank()};
}

}  // namespace

PipelineStage::PipelineStage(const PipelineOptions& options, const PipelineShape& shape,
                             const PipelineRank& rank, int local, Stage<float>& stage)
    : instances_(rank.instances),
      grid_(rank.grid),
      place_(place_of(rank.grid, local)),
      progress_(rank.progress),
      account_(rank.progress.account()),
      stage_(stage),
      embedding_(stage.token_embedding()),
      common_(shape.training ? stage.common_parameters() : nullptr),
      shape_(shape),
      input_shape_(stage.input_shape(shape.tokens)),
      output_shape_(stage.output_shape(shape.tokens)),
      in_flight_(options.pipeline.in_flight),
      embedding_is_remote_(embedding_ && embedding_->lends_rows() && place_.stages > 1),
      moves_(options.moves),
      sums_(options, shape, rank, local, stage),
      rank_sums_(rank.sums) {
  rank_sums_.add(sums_);
  step_.seed = options.seed;
  const int rows = step_rows(shape);
  DELTAPIPE_ASSERT(place_.stage >= shape.first_trained_stage || !stage.has_trained(),
                   fmt::format("stage {} has parameters to train", place_.stage));
  StagePlan plan = plan_stage(options, shape, stage, place_);
  stage.reserve(plan.capacity);
  recomputes_ = plan.capacity.recompute;
  for (const EvaluationMode mode : {EvaluationMode::plain, EvaluationMode::codec})
    continues_texts_[static_cast<std::size_t>(mode)] =
        shape.keeps_text && continues_texts(options, mode, place_.stages, stage);
  for (auto* end :
       {&plan.send_forward, &plan.receive_forward, &plan.send_backward, &plan.receive_backward})
    if (*end) (*end)->memory.io = rank.cache_io;

  const int i = place_.stage;
  const MPI_Comm comm = grid_.pipeline_comm();
  const int next = grid_.owner_of(i + 1), before = place_.first() ? 0 : grid_.owner_of(i - 1);
  const auto tag = [&](ChannelTag what, int boundary) {
    return boundary_tag(what, boundary, grid_.pipeline_ranks());
  };
  const auto name = [](int boundary, bool backward) {
    return EndName{.boundary = boundary, .backward = backward}.link();
  };
  if (plan.send_forward)
    send_forward_.emplace(progress_, comm, next, tag(kForwardTag, i), *plan.send_forward,
                          rank.links.to(next), name(i, false), instances_);
  if (plan.receive_backward)
    receive_backward_.emplace(progress_, comm, next, tag(kBackwardTag, i), *plan.receive_backward,
                              name(i, true), instances_);
  if (plan.receive_forward)
    receive_forward_.emplace(progress_, comm, before, tag(kForwardTag, i - 1),
                             *plan.receive_forward, name(i - 1, false), instances_);
  if (plan.send_backward)
    send_backward_.emplace(progress_, comm, before, tag(kBackwardTag, i - 1), *plan.send_backward,
                           rank.links.to(before), name(i - 1, true), instances_);

  if (plan.has_token_index) index_.emplace(shape.vocabulary, rows, shape.micro_batches);
  if (plan.tokens) {
    const int other = place_.last() ? 0 : grid_.pipeline_ranks() - 1;
    tokens_.emplace(*plan.tokens, grid_, progress_, rank.links.to(other), instances_);
  }
  padded_NC_ = make_padded_rows(plan, {});
  if (plan.common)
    common_exchange_.emplace(*plan.common, grid_, local, progress_, rank.links, instances_);

  DELTAPIPE_ASSERT(
      !shape.pads_to_longest || ((place_.first() || input_shape_.tokens == shape.tokens) &&
                                 (place_.last() || output_shape_.tokens == shape.tokens)),
      "boundaries of another number of rows");
  DELTAPIPE_ASSERT(!embedding_ || shape.fields[Field::tokens] == shape.tokens,
                   fmt::format("{} tokens in a sample", shape.fields[Field::tokens]));
  samples_ =
      StepSamples(shape.fields, shape.samples, shape.micro_batches, place_.first(), place_.last());
}

void PipelineStage::add_micro_batch(std::span<const std::uint64_t> ids,
                                    std::span<const int> lengths) {
  const int m = static_cast<int>(micro_batches_.size());
  DELTAPIPE_ASSERT(m < shape_.micro_batches, "more micro-batches than reserved");
  Crossing& batch = micro_batches_.emplace_back(step_);
  batch.micro_batch = static_cast<std::uint32_t>(m);
  batch.sample_ids.assign(ids.begin(), ids.end());
  samples_.set(m, ids, lengths);
  int tokens = step_tokens_;
  if (shape_.pads_to_longest) {
    tokens = padded_tokens(*std::max_element(lengths.begin(), lengths.end()), shape_.tokens);
    samples_.shorten(m, ids.size(), shape_.tokens, tokens);
  }
  batch_tokens_.push_back(tokens);
  if (!index_ || rows_are_sent_) return;
  index_->add(samples_.integers(Field::tokens, m, ids.size()).first(ids.size() * tokens),
              m * shape_.samples * shape_.tokens);
}

void PipelineStage::begin_training_step(const StepPlan& plan, bool measure_errors) {
  begin_step(plan.step);
  step_.epoch = plan.epoch;
  step_.training = true;
  rank_sums_.begin_step();
  sums_.begin(plan.step, plan.epoch, measure_errors);
}

void PipelineStage::begin_evaluation_step(std::uint64_t step, EvaluationMode mode) {
  begin_step(step);
  step_.epoch = 0;
  step_.training = false;
  step_.evaluation = mode;
}

void PipelineStage::begin_step(std::uint64_t step) {
  instances_.copy.fence();  // the previous step's copies from the host's memory
  step_.step = step;
  rows_are_sent_ = rows_ahead_.has_value();
  DELTAPIPE_ASSERT(!rows_are_sent_ || *rows_ahead_ == step,
                   fmt::format("token rows of step {} were sent ahead, not of {}",
                               rows_ahead_.value_or(0), step));
  rows_ahead_.reset();
  score_ = RowScore::loss;
  step_tokens_ = shape_.tokens;
  kept_tokens_ = -1;
  micro_batches_.clear();
  batch_tokens_.clear();
  if (index_) index_->clear();
}

void PipelineStage::load(const Dataset& data, const StepPlan& plan) {
  std::vector<int> lengths;
  const SampleVisit visit{step_.seed, static_cast<std::uint64_t>(plan.epoch), step_.training};
  for (const std::vector<std::uint64_t>& ids : plan.micro_batches) {
    samples_.read(data, static_cast<int>(micro_batches_.size()), ids, visit);
    lengths.clear();
    for (const std::uint64_t id : ids) lengths.push_back(data.length(id));
    add_micro_batch(ids, lengths);
  }
}

void PipelineStage::finish_load(double loss_scale) {
  loss_scale_ = loss_scale;
  const ExecSpace& copy = instances_.copy;
  order_after(copy, instances_.compute);  // compute may still read the step before
  if (index_ && !rows_are_sent_) index_->finish(copy);
  if (place_.first() && embedding_is_remote_) {
    for (std::size_t m = 0; m < micro_batches_.size(); ++m) {
      const std::size_t samples = micro_batches_[m].samples();
      const std::span<std::int32_t> tokens =
          samples_.integers(Field::tokens, static_cast<int>(m), samples);
      for (std::int32_t& token : tokens.first(samples * batch_tokens_[m]))
        token = index_->row_of_token(token);
    }
  }
  samples_.copy(copy);
  order_after(instances_.compute, copy);
}

MicroBatch PipelineStage::micro_batch(int index) const {
  MicroBatch batch;
  batch.seed = step_.seed;
  batch.step = step_.step;
  batch.index = index;
  batch.samples = static_cast<int>(micro_batches_[index].samples());
  batch.tokens = batch_tokens_[index];
  batch.most_tokens = shape_.tokens;
  samples_.fill(batch);
  batch.score = score_;
  batch.loss_scale = loss_scale_;
  return batch;
}

template <class Send>
void PipelineStage::send_padded(int micro_batch, const MatrixRef<float>& x, const Send& send) {
  const int tokens = batch_tokens_[micro_batch], samples = this->samples(micro_batch);
  if (padded_NC_.size() == 0 || tokens == shape_.tokens) return send(x);
  const MatrixRef<float> all(padded_NC_.data(), samples * shape_.tokens, x.extent(1));
  {
    const ActivityScope activity(account_, Activity::compute);
    copy_sample_rows<float>(exec(), samples, x, tokens, all, shape_.tokens);
  }
  send(all);
}

template <class Receive>
void PipelineStage::receive_padded(int micro_batch, const MatrixRef<float>& x,
                                   const Receive& receive) {
  const int tokens = batch_tokens_[micro_batch], samples = this->samples(micro_batch);
  if (padded_NC_.size() == 0 || tokens == shape_.tokens) return receive(x);
  const MatrixRef<float> all(padded_NC_.data(), samples * shape_.tokens, x.extent(1));
  receive(all);
  const ActivityScope activity(account_, Activity::compute);
  copy_sample_rows<float>(exec(), samples, all, shape_.tokens, x, tokens);
}

std::vector<RowView> PipelineStage::views(std::span<const std::uint64_t> ids,
                                          const RowGrid& grid) const {
  std::vector<RowView> views;
  if (!moves_.has_any() || !grid.has_places() || !step_.training) return views;
  const auto epoch = static_cast<std::uint64_t>(step_.epoch);
  for (const std::uint64_t id : ids)
    views.push_back(row_view(grid, draw_view(step_.seed, epoch, id, moves_.padding, moves_.flips)));
  return views;
}

Crossing& PipelineStage::crossing(int index, CrossingKind kind, int boundary) {
  Crossing& c = micro_batches_[index];
  c.kind = kind;
  c.boundary = static_cast<std::uint32_t>(boundary);
  c.scale = kind == CrossingKind::gradient ? loss_scale_ : 1;
  const BoundaryShape& shape = boundary == place_.stage ? output_shape_ : input_shape_;
  const std::span<const int> valid = samples_.lengths(index, c.samples());
  if (shape.tokens == shape_.tokens)
    c.tokens.assign(valid.begin(), valid.end());
  else
    c.tokens.assign(c.samples(), shape.tokens);
  c.views = views(c.sample_ids, shape.grid);
  return c;
}

void PipelineStage::add_embedding_gradient() {
  const ExecSpace& exec = instances_.compute;
  ParameterArena<float>& parameters = stage_.parameters();
  const ActivityScope activity(account_, Activity::compute);
  const MatrixRef<float> rows =
      tokens_ ? tokens_->gradients(*index_)
              : embedding_->embedding_gradient(exec, index_->first_of_U(), index_->row_of(),
                                               index_->size());
  const int index = embedding_->wte();
  const MatrixRef<float> table = parameters.gradient_matrix(index);
  if (!embedding_->shared()) Kokkos::deep_copy(exec, table, 0.0f);
  add_rows<float>(exec, index_->token_by_last_use_U(), rows, table);
  sums_.start(parameters.info()[index].bucket);
}

void PipelineStage::add_common_gradient() {
  const ActivityScope activity(account_, Activity::compute);
  common_->add_gradients(exec(), place_.last());
  if (!place_.first()) return;
  common_->finish_gradients(exec());
  sums_.start(common_->bucket());
}

TraceScope PipelineStage::trace_of(const char* what, const StagePass& pass) const {
  return TraceScope(TraceCategory::compute, what, pass.micro_batch, "compute",
                    place_.stages_per_rank > 1 ? place_.stage : -1);
}

void PipelineStage::forward(const StagePass& pass) {
  const ActivityScope activity(account_, Activity::compute);
  const TraceScope trace = trace_of("forward", pass);
  const FlushedDenormals flushed;
  const MicroBatch batch = micro_batch(pass.micro_batch);
  if (kept_tokens_ >= 0)
    stage_.text_continuation()->continue_text(instances_.compute, batch, kept_tokens_, pass.slot);
  else
    stage_.forward(instances_.compute, batch, pass.slot, step_.training, pass.accumulate);
}

Stage<float>::BucketFinal PipelineStage::starts_reductions(const StagePass& pass) {
  if (!pass.gradients_are_final) return {};
  return [this](int bucket) { sums_.start(bucket); };
}

void PipelineStage::backward(const StagePass& pass) {
  const ActivityScope activity(account_, Activity::compute);
  const TraceScope trace = trace_of("backward", pass);
  const FlushedDenormals flushed;
  stage_.backward(instances_.compute, micro_batch(pass.micro_batch), pass.slot, pass.accumulate,
                  starts_reductions(pass));
}

void PipelineStage::backward_inputs(const StagePass& pass) {
  const ActivityScope activity(account_, Activity::compute);
  const TraceScope trace = trace_of("backward inputs", pass);
  const FlushedDenormals flushed;
  stage_.backward_inputs(instances_.compute, micro_batch(pass.micro_batch), pass.slot,
                         pass.accumulate);
}

void PipelineStage::backward_parameters(const StagePass& pass) {
  const ActivityScope activity(account_, Activity::compute);
  const TraceScope trace = trace_of("backward parameters", pass);
  const FlushedDenormals flushed;
  stage_.backward_parameters(instances_.compute, micro_batch(pass.micro_batch), pass.slot,
                             pass.accumulate, starts_reductions(pass));
}

ScheduleShape PipelineStage::schedule_shape() const {
  return {place_.stage,
          place_.stages,
          static_cast<int>(micro_batches_.size()),
          in_flight_,
          embedding_ == nullptr  ? EmbeddingPlace::none
          : embedding_->shared() ? EmbeddingPlace::shared
                                 : EmbeddingPlace::first_stage,
          shape_.first_trained_stage,
          embedding_ != nullptr && embedding_->wte_frozen(),
          recomputes_,
          place_.stages_per_rank,
          common_ != nullptr};
}

void PipelineStage::about_to(const Instruction& instruction) {
  progress_.check();  // a rank that waits for no message checks nothing else in a step
  if (progress_.watches_steps()) progress_.step_watch().doing(to_text(instruction));
  sums_.poll();  // those of other stages would delay this one's boundary messages on the wire
}

void PipelineStage::send(const Transfer& message) {
  const ExecSpace& exec = instances_.compute;
  const int m = message.micro_batch;
  switch (message.wire) {
    case Wire::activation:
      return send_padded(
          m, stage_.output(message.slot, rows(m, output_shape_)), [&](const auto& x) {
            send_forward_->send(exec, crossing(m, CrossingKind::activation, message.boundary), x);
          });
    case Wire::gradient:
      return send_padded(
          m, stage_.input_gradient(message.slot, rows(m, input_shape_)), [&](const auto& x) {
            send_backward_->send(exec, crossing(m, CrossingKind::gradient, message.boundary), x);
          });
    case Wire::embedding: {
      const ActivityScope activity(account_, Activity::compute);
      if (message.of_next_step && next_ != nullptr) load_next_rows();
      return tokens_->send_rows(exec, message.of_next_step ? next_step_ : step_, *index_, m,
                                stage_.parameters().table(embedding_->wte()));
    }
    case Wire::embedding_gradient: {
      const ActivityScope activity(account_, Activity::compute);
      return tokens_->send_gradients(exec, step_, *index_, m, *embedding_);
    }
    case Wire::common_gradient:
      return common_exchange_->send_gradient(exec, step_, common_->gradient_sum());
    case Wire::common_values:
      if (place_.first()) {
        const ActivityScope activity(account_, Activity::compute);
        common_->pack_values(exec);
      }
      return common_exchange_->send_values(exec, step_, common_->values());
  }
}

void PipelineStage::receive(const Transfer& message) {
  const ExecSpace& exec = instances_.compute;
  const int m = message.micro_batch;
  switch (message.wire) {
    case Wire::activation:
      return receive_padded(m, stage_.input(message.slot, rows(m, input_shape_)),
                            [&](const auto& x) {
                              receive_forward_->receive(
                                  exec, crossing(m, CrossingKind::activation, message.boundary), x);
                            });
    case Wire::gradient:
      return receive_padded(m, stage_.output_gradient(message.slot, rows(m, output_shape_)),
                            [&](const auto& x) {
                              receive_backward_->receive(
                                  exec, crossing(m, CrossingKind::gradient, message.boundary), x);
                            });
    case Wire::embedding:
      return tokens_->receive_rows(exec, step_, *index_, m, *embedding_);
    case Wire::embedding_gradient: {
      const ActivityScope activity(account_, Activity::compute);
      return tokens_->receive_gradients(exec, step_, *index_, m);
    }
    case Wire::common_gradient:
      return common_exchange_->receive_gradient(exec, step_, common_->gradient_sum());
    case Wire::common_values: {
      common_exchange_->receive_values(exec, step_, common_->values());
      const ActivityScope activity(account_, Activity::compute);
      return common_->unpack_values(exec);
    }
  }
}

void PipelineStage::load_training_step(const Dataset& data, const StepPlan& plan,
                                       bool measure_errors, const std::function<void()>& update) {
  begin_training_step(plan, measure_errors);
  for (BoundaryEnd* end : {static_cast<BoundaryEnd*>(send_forward_ ? &*send_forward_ : nullptr),
                           static_cast<BoundaryEnd*>(send_backward_ ? &*send_backward_ : nullptr)})
    if (end) end->measure_errors(measure_errors);
  if (tokens_) tokens_->measure_errors(measure_errors);
  load(data, plan);
  finish_load(1.0 / static_cast<double>(plan.targets));
  update_ = &update;
}

EvaluationRows PipelineStage::load_evaluation_step(const Dataset& data, const StepPlan& plan,
                                                   EvaluationMode mode, const StepPlan* next,
                                                   RowScore score) {
  begin_evaluation_step(plan.step, mode);
  score_ = score;
  load(data, plan);
  finish_load(0);
  EvaluationRows rows;
  if (embedding_is_remote_ && place_.last()) {
    rows.are_sent = rows_are_sent_;
    if (next != nullptr && !next->micro_batches.empty()) {
      rows.next_micro_batches = static_cast<int>(next->micro_batches.size());
      rows_ahead_ = next->step;
      next_ = next;
      next_data_ = &data;
    }
  }
  return rows;
}

void PipelineStage::load_next_rows() {
  const ExecSpace& copy = instances_.copy;
  copy.fence();  // before this step's index, whose rows have been sent, changes
  index_->clear();
  for (std::size_t m = 0; m < next_->micro_batches.size(); ++m) {
    const std::vector<std::uint64_t>& ids = next_->micro_batches[m];
    const int batch = static_cast<int>(m);
    samples_.read(*next_data_, batch, ids, {step_.seed, 0, false}, Field::tokens);
    index_->add(samples_.integers(Field::tokens, batch, ids.size()),
                batch * shape_.samples * shape_.tokens);
  }
  order_after(copy, instances_.compute);
  index_->finish(copy);
  order_after(instances_.compute, copy);
  next_step_ = step_;
  next_step_.step = next_->step;
  next_ = nullptr;
}

/// Calls take(micro-batch, its samples, their scores) for each micro-batch of the last step.
template <class Take>
void PipelineStage::read_scores(const Take& take) {
  if (!place_.last()) return;
  for (int m = 0; m < static_cast<int>(micro_batches_.size()); ++m) {
    const std::size_t samples = micro_batches_[m].samples();
    const std::size_t count =
        samples * static_cast<std::size_t>(stage_.scored_rows(batch_tokens_[m]) *
                                           stage_.score_values(score_));
    if (score_host_.extent(0) < count)
      score_host_ = Kokkos::create_mirror_view(Vector<float>("deltapipe::Pipeline::scores", count));
    const MirrorVector<float> host(score_host_.data(), count);
    Kokkos::deep_copy(exec(), host, stage_.scores(m, static_cast<int>(count)));
    exec().fence();
    take(m, samples, std::span<const float>(host.data(), count));
  }
}

double PipelineStage::loss_sum() {
  double sum = 0;
  read_scores([&](int, std::size_t, std::span<const float> losses) {
    for (const float loss : losses) sum += loss;
  });
  return sum;
}

void PipelineStage::add_scores(const Task& task, std::span<double> sums) {
  DELTAPIPE_ASSERT(score_ == task.score(), task.name());
  read_scores([&](int m, std::size_t samples, std::span<const float> scores) {
    task.add(scores, samples_.integers(task.targets(), m, samples), sums);
  });
}

std::vector<double> PipelineStage::sample_scores() {
  std::vector<double> sums;
  read_scores([&](int, std::size_t samples, std::span<const float> scores) {
    const std::size_t values = scores.size() / samples;
    for (std::size_t b = 0; b < samples; ++b) {
      const auto of_sample = scores.subspan(b * values, values);
      sums.push_back(std::accumulate(of_sample.begin(), of_sample.end(), 0.0));
    }
  });
  return sums;
}

std::vector<float> PipelineStage::row_scores() {
  std::vector<float> all;
  read_scores([&](int, std::size_t, std::span<const float> scores) {
    all.insert(all.end(), scores.begin(), scores.end());
  });
  return all;
}

void PipelineStage::prefetch(std::span<const std::uint64_t> sample_ids) {
  if (send_forward_) send_forward_->prefetch(sample_ids);
  if (receive_forward_) receive_forward_->prefetch(sample_ids);
  if (send_backward_) send_backward_->prefetch(sample_ids);
  if (receive_backward_) receive_backward_->prefetch(sample_ids);
}

void PipelineStage::take_measurements(StepMeasurements& into, bool is_outer) {
  using M = StepMeasurements;
  const int i = place_.stage, rank = grid_.pipeline_rank();
  const auto sent = [&](auto& end, int boundary, bool backward) {
    if (!end) return;
    const CodecStatistics codec = end->take_codec_statistics();
    into.direction(boundary, backward, M::bytes) +=
        static_cast<double>(end->take_statistics().bytes);
    into.direction(boundary, backward, M::error2) += codec.error2;
    into.direction(boundary, backward, M::signal2) += codec.signal2;
    const StepStatistics steps = end->take_steps();
    into.direction(boundary, backward, M::step_sum) += steps.sum;
    into.direction(boundary, backward, M::step_messages) += static_cast<double>(steps.messages);
  };
  // The receiver knows when a message arrived.
  const auto received = [&](auto& end, int boundary, bool backward) {
    if (end) into.direction(boundary, backward, M::wire) += end->take_statistics().wire_seconds;
  };
  sent(send_forward_, i, false);
  sent(send_backward_, i - 1, true);
  received(receive_forward_, i - 1, false);
  received(receive_backward_, i, true);
  if (tokens_) {
    const ChannelStatistics channel = tokens_->take_sent();
    const CodecStatistics codec = tokens_->take_codec_statistics();
    into.tied(place_.first(), M::bytes) += static_cast<double>(channel.bytes);
    into.tied(place_.first(), M::error2) += codec.error2;
    into.tied(place_.first(), M::signal2) += codec.signal2;
    tokens_->take_received();
  }
  if (common_exchange_) {
    into.tied(true, M::bytes) += static_cast<double>(common_exchange_->take_gradient_bytes());
    // Values are sent after this.
    if (!is_outer)
      into.tied(false, M::bytes) += static_cast<double>(common_exchange_->value_bytes());
  }
  sums_.take_measurements(into);

  for (ActivationCache* cache : caches()) {
    const CacheStatistics c = cache->take_statistics();
    into.rank(rank, RankValue::cache_stall) += c.stall_seconds;
    into.rank(rank, RankValue::cache_first_visits) += static_cast<double>(c.first_visits);
    into.rank(rank, RankValue::cache_hits) += static_cast<double>(c.hits);
    into.rank(rank, RankValue::cache_misses) += static_cast<double>(c.misses);
    into.rank(rank, RankValue::cache_late_misses) += static_cast<double>(c.late_misses);
    into.rank(rank, RankValue::cache_damaged) += static_cast<double>(c.damaged);
    into.rank(rank, RankValue::cache_read) += static_cast<double>(c.bytes_read);
    into.rank(rank, RankValue::cache_written) += static_cast<double>(c.bytes_written);
  }
}

void PipelineStage::add_step_totals(std::span<double> values) const {
  const auto add = [&](const std::optional<BoundarySender>& end, int boundary, bool backward) {
    if (!end || end->controller() == nullptr) return;
    const StepTotals& t = end->controller()->totals();
    const std::array<double, kStepTotals> all = {t.bits,    t.values,   t.error2, t.signal2,
                                                 t.steered, t.at_least, t.at_most};
    std::copy(
        all.begin(), all.end(),
        values.begin() + static_cast<std::ptrdiff_t>(kStepTotals * (2 * boundary + backward)));
  };
  add(send_forward_, place_.stage, false);
  add(send_backward_, place_.stage - 1, true);
}

void PipelineStage::take_sent_bytes(std::span<double> by_boundary, double& tied_rows) {
  if (send_forward_)
    by_boundary[static_cast<std::size_t>(place_.stage)] +=
        static_cast<double>(send_forward_->take_statistics().bytes);
  if (send_backward_) send_backward_->take_statistics();
  if (receive_forward_) receive_forward_->take_statistics();
  if (receive_backward_) receive_backward_->take_statistics();
  if (tokens_) {
    tied_rows += static_cast<double>(tokens_->take_sent().bytes);
    tokens_->take_received();
  }
}

std::vector<StatePart> PipelineStage::state() {
  std::vector<StatePart> parts = stage_.state(instances_.compute);
  const auto add = [&](auto& end) {
    if (!end) return;
    for (StatePart& part : end->state()) parts.push_back(std::move(part));
  };
  add(send_forward_);
  add(receive_forward_);
  add(send_backward_);
  add(receive_backward_);
  add(tokens_);
  for (StatePart& part : sums_.state(instances_.compute)) parts.push_back(std::move(part));
  return parts;
}

/// Visits the boundaries in the order of the pipeline.
template <class F>
void PipelineStage::for_memories(const F& f) {
  const int i = place_.stage;
  const auto call = [&](auto& end, int peer_stage, ChannelTag tag) {
    if (end && end->cache() != nullptr)
      f(*end, grid_.owner_of(peer_stage),
        boundary_tag(tag, std::min(i, peer_stage), grid_.pipeline_ranks()));
  };
  call(receive_forward_, i - 1, kResyncForwardTag);
  call(send_backward_, i - 1, kResyncBackwardTag);
  call(send_forward_, i + 1, kResyncForwardTag);
  call(receive_backward_, i + 1, kResyncBackwardTag);
}

ResyncCounts PipelineStage::resync_memories() {
  ResyncCounts counts;
  for_memories([&](BoundaryEnd& end, int peer, int tag) {
    counts += deltapipe::resync_memories(progress_, grid_.pipeline_comm(), peer, tag, end);
    if (!end.cache()->has_file()) ++counts.empty_ends;
  });
  return counts;
}

bool PipelineStage::has_damaged_records() {
  bool any = false;
  for_memories([&](BoundaryEnd& end, int, int) { any = any || end.cache()->has_damaged(); });
  return any;
}

void PipelineStage::forget_damaged_records(bool spoiled_step) {
  std::span<const Crossing> spoiled;
  if (spoiled_step) {
    spoiled = micro_batches_;
    sums_.reset(instances_.compute);
  }
  for_memories([&](BoundaryEnd& end, int peer, int tag) {
    forget_damaged(progress_, grid_.pipeline_comm(), peer, tag, end, spoiled);
  });
}

std::vector<ActivationCache*> PipelineStage::caches() {
  std::vector<ActivationCache*> all;
  if (send_forward_) all.push_back(send_forward_->cache());
  if (receive_forward_) all.push_back(receive_forward_->cache());
  if (send_backward_) all.push_back(send_backward_->cache());
  if (receive_backward_) all.push_back(receive_backward_->cache());
  std::erase(all, nullptr);
  return all;
}

}  // namespace deltapipe
