// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/traffic_counter.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/preflight/memory_prediction.hpp"
#include "app/preflight/message_sizes.hpp"
#include "app/preflight/planned_links.hpp"
#include "comm/pipeline/token_index.hpp"

namespace deltapipe {

namespace {

/// Samples, or tokens where token rows travel, that are looked at: less than a second.
constexpr std::uint64_t kMostCounted = std::uint64_t{1} << 25;
constexpr std::uint64_t kTokensOfCrossing = 16;  ///< a sample costs as much as these

/// One direction of consecutive boundaries.
class BoundaryDirection {
 public:
  /// Adds the next boundary. `tokens`: those of a whole sample.
  void add(const BoundaryEndPlan& plan, int tokens) {
    const BoundaryShape shape = {plan.codec.shape.tokens, plan.codec.shape.channels};
    if (kinds_.empty() || kinds_.back().shape != shape)
      kinds_.push_back({MessageSizes(plan), shape, shape.tokens == tokens});
    kind_.push_back(kinds_.size() - 1);
  }

  bool is_empty() const { return kind_.empty(); }
  /// Returns the number of different boundaries.
  std::size_t kinds() const { return kinds_.size(); }
  std::size_t kind(int boundary) const { return kind_[static_cast<std::size_t>(boundary)]; }
  bool remembers() const { return kinds_.front().messages.remembers(); }
  /// `crossing` has the samples' own tokens.
  WireBytes of(std::size_t kind, const Crossing& crossing) const {
    const Kind& boundary = kinds_[kind];
    if (boundary.has_tokens_of_samples) return boundary.messages.of(crossing);
    Crossing rows = crossing;
    rows.tokens.assign(crossing.samples(), boundary.shape.tokens);
    return boundary.messages.of(rows);
  }

 private:
  struct Kind {
    MessageSizes messages;
    BoundaryShape shape;
    bool has_tokens_of_samples;  ///< otherwise shape.tokens for every sample
  };
  std::vector<Kind> kinds_;
  std::vector<std::size_t> kind_;  ///< by boundary
};

class Counter {
 public:
  Counter(const Settings& settings, const ModelLayout& model, const PipelineShape& shape)
      : settings_(settings),
        boundaries_(settings.pipeline.stages - 1),
        first_gradient_(std::min(model.first_trained_stage, boundaries_)),
        links_(settings.network, settings.pipeline) {
    const PipelineSettings& p = settings.pipeline;
    StagePlan last;
    for (int stage = 0; stage < p.stages; ++stage) {
      StagePlan plan = stage_plan_of(settings, model, shape, stage);
      if (stage == 0 && plan.common) {
        // Neighbours exchange the same sizes at every boundary.
        common_gradient_.emplace(*plan.common->receive_gradient);
        common_values_.emplace(*plan.common->send_values);
        common_rows_ = {plan.common->receive_gradient->codec.shape.tokens,
                        plan.common->send_values->codec.shape.tokens};
        result_.shares_common_values = true;
      }
      if (plan.send_forward) forward_.add(*plan.send_forward, shape.tokens);
      // Stages before the first one that is trained send no gradients.
      if (stage > first_gradient_ && plan.send_backward)
        backward_.add(*plan.send_backward, shape.tokens);
      last = std::move(plan);
    }
    now_.forward.resize(forward_.kinds());
    now_.backward.resize(backward_.kinds());
    of_positions_ = {has_feedback_of_positions(settings.forward),
                     has_feedback_of_positions(settings.backward)};
    if (last.tokens) {
      rows_.emplace(last.tokens->rows);
      if (last.tokens->gradients) gradients_.emplace(*last.tokens->gradients);
      index_.emplace(shape.vocabulary, step_rows(shape), shape.micro_batches);
      inputs_.resize(static_cast<std::size_t>(shape.samples) * shape.tokens);
    }
    result_.forward.resize(boundaries_);
    result_.backward.resize(boundaries_);
    result_.evaluation_forward.resize(boundaries_);
    vocabulary_ = shape.vocabulary;
    tokens_ = shape.tokens;
  }

  TrafficPrediction run(const DataSplit& data, const StepPlanner& planner, std::uint64_t steps) {
    count_training(*data.train, planner, steps);
    result_.evaluations =
        data.validation->size() == 0 || boundaries_ == 0
            ? 0
            : evaluations_of_run(settings_.training, steps, planner.steps_per_epoch());
    if (result_.evaluations > 0) count_evaluations(data);
    return std::move(result_);
  }

 private:
  std::size_t places_of_step() const {
    return static_cast<std::size_t>(settings_.training.micro_batch_size) *
           settings_.training.micro_batches;
  }
  int rank_of(int stage) const { return stage % settings_.pipeline.pipeline_ranks(); }

  /// All that was counted of training so far.
  struct Totals {
    std::vector<WireBytes> forward, backward;  ///< by kind of boundary
    WireBytes rows, gradients;
    std::map<std::string, double> links;
    std::uint64_t steps = 0;
  };

  void count_training(const Dataset& data, const StepPlanner& planner, std::uint64_t steps) {
    result_.steps = result_.counted_steps = steps;
    if (boundaries_ == 0) return;
    const int replicas = settings_.pipeline.replicas;
    row_visits_.resize(replicas);
    for (auto& visits : place_visits_)
      visits.assign(replicas, std::vector<std::uint32_t>(places_of_step()));
    for (auto& visits : row_visits_)
      if (rows_) visits.assign(vocabulary_, 0);
    visits_.assign(data.size(), 0);
    std::vector<Totals> course;  // after every step
    std::uint64_t counted = 0;
    std::uint64_t step = 0;
    for (; step < steps && counted < kMostCounted; ++step) {
      for (int replica = 0; replica < replicas; ++replica) {
        const std::vector<std::uint64_t> ids = planner.samples(step, replica);
        counted += ids.size() * (rows_ ? static_cast<std::uint64_t>(tokens_) : kTokensOfCrossing);
        Crossing crossing;
        crossing.step = step;
        crossing.epoch = static_cast<double>(step) / static_cast<double>(planner.steps_per_epoch());
        count_step(data, ids, crossing, replica);
      }
      now_.links = links_.loads();
      ++now_.steps;
      course.push_back(now_);
    }
    result_.counted_steps = step;
    const Totals& middle = course[course.size() / 2];
    const double rest = now_.steps == steps ? 0
                                            : static_cast<double>(steps - now_.steps) /
                                                  static_cast<double>(now_.steps - middle.steps);
    const auto whole = [rest](const WireBytes& last, const WireBytes& at_middle) {
      if (rest == 0) return last;
      const auto grown = [rest](std::uint64_t b, std::uint64_t a) {
        return b + static_cast<std::uint64_t>(rest * static_cast<double>(b - a));
      };
      return WireBytes{grown(last.payload, at_middle.payload),
                       grown(last.headers, at_middle.headers), grown(last.fp32, at_middle.fp32),
                       grown(last.messages, at_middle.messages)};
    };
    for (int b = 0; b < boundaries_; ++b) {
      const std::size_t kind = forward_.kind(b);
      result_.forward[b] = whole(now_.forward[kind], middle.forward[kind]);
      if (b < first_gradient_ || backward_.is_empty()) continue;
      const std::size_t back = backward_.kind(b - first_gradient_);
      result_.backward[b] = whole(now_.backward[back], middle.backward[back]);
    }
    result_.tied_rows = whole(now_.rows, middle.rows);
    result_.tied_gradients = whole(now_.gradients, middle.gradients);
    for (const auto& [name, seconds] : now_.links) {
      const auto before = middle.links.find(name);
      const double later = seconds - (before == middle.links.end() ? 0 : before->second);
      result_.links.push_back(
          {name, (seconds + (rest > 0 ? rest * later : 0)) / static_cast<double>(steps)});
    }
  }

  /// Calls count() with `crossing` set to each micro-batch of a step, as first visits.
  template <class Count>
  void for_micro_batches(const Dataset& data, const std::vector<std::uint64_t>& ids,
                         Crossing& crossing, const Count& count) const {
    const auto batch = static_cast<std::size_t>(settings_.training.micro_batch_size);
    for (std::size_t first = 0; first < ids.size(); first += batch) {
      const std::size_t end = std::min(ids.size(), first + batch);
      crossing.micro_batch = static_cast<std::uint32_t>(first / batch);
      crossing.sample_ids.assign(ids.begin() + first, ids.begin() + end);
      crossing.tokens.clear();
      for (const std::uint64_t id : crossing.sample_ids) crossing.tokens.push_back(data.length(id));
      crossing.visits.assign(crossing.samples(), 0);
      count();
    }
  }

  /// `crossing`: what all of the step have in common.
  void count_step(const Dataset& data, const std::vector<std::uint64_t>& ids, Crossing crossing,
                  int replica) {
    for_micro_batches(data, ids, crossing, [&] {
      for (std::size_t i = 0; i < crossing.samples(); ++i)
        crossing.visits[i] = visits_[crossing.sample_ids[i]]++;
      count_boundaries(crossing, replica);
    });
    count_common(crossing, replica, !ids.empty());
    count_rows(data, ids, std::move(crossing), replica);
  }

  void count_common(const Crossing& step, int replica, bool has_samples) {
    if (!common_values_) return;
    const auto message = [&](const MessageSizes& messages, CrossingKind kind, int rows) {
      Crossing crossing = step;
      crossing.kind = kind;
      crossing.sample_ids = {0};
      crossing.tokens = {rows};
      crossing.visits = {0};
      return messages.of(crossing);
    };
    const WireBytes gradient =
        has_samples ? message(*common_gradient_, CrossingKind::common_gradients, common_rows_[0])
                    : WireBytes();
    const WireBytes values = message(*common_values_, CrossingKind::common_values, common_rows_[1]);
    for (int b = 0; b < boundaries_; ++b) {
      now_.gradients += gradient;
      now_.rows += values;
      if (replica != 0) continue;
      if (has_samples) links_.pass(rank_of(b + 1), rank_of(b), gradient.all());
      links_.pass(rank_of(b), rank_of(b + 1), values.all());
    }
  }

  void count_boundaries(Crossing& crossing, int replica) {
    const std::vector<std::uint32_t> visits = crossing.visits;
    // Adds the messages of all boundaries and returns their bytes, by kind.
    const auto count = [&](const BoundaryDirection& direction, CrossingKind kind,
                           std::vector<WireBytes>& sums) {
      const std::size_t d = kind == CrossingKind::gradient ? 1 : 0;
      crossing.kind = kind;
      crossing.visits = visits;
      if (!direction.remembers()) crossing.visits.assign(crossing.samples(), 0);
      const std::size_t first =
          crossing.micro_batch * static_cast<std::size_t>(settings_.training.micro_batch_size);
      for (std::size_t b = 0; of_positions_[d] && b < crossing.samples(); ++b)
        crossing.visits[b] = place_visits_[d][replica][first + b]++;
      std::vector<std::uint64_t> bytes;
      for (std::size_t i = 0; i < direction.kinds(); ++i) {
        const WireBytes messages = direction.of(i, crossing);
        sums[i] += messages;
        bytes.push_back(messages.all());
      }
      return bytes;
    };
    const std::vector<std::uint64_t> there =
        count(forward_, CrossingKind::activation, now_.forward);
    if (replica == 0)
      for (int b = 0; b < boundaries_; ++b)
        links_.pass(rank_of(b), rank_of(b + 1), there[forward_.kind(b)]);
    if (backward_.is_empty()) return;
    const std::vector<std::uint64_t> back = count(backward_, CrossingKind::gradient, now_.backward);
    if (replica == 0)
      for (int b = first_gradient_; b < boundaries_; ++b)
        links_.pass(rank_of(b + 1), rank_of(b), back[backward_.kind(b - first_gradient_)]);
  }

  /// Fills the index with the samples' tokens.
  void read_tokens(const Dataset& data, const std::vector<std::uint64_t>& ids) {
    const auto batch = static_cast<std::size_t>(settings_.training.micro_batch_size);
    const auto tokens = static_cast<std::size_t>(tokens_);
    index_->clear();
    for (std::size_t first = 0; first < ids.size(); first += batch) {
      const std::size_t count = std::min(ids.size() - first, batch);
      for (std::size_t b = 0; b < count; ++b) {
        SampleSpans fields;
        fields.set(Field::tokens, std::span(inputs_).subspan(b * tokens, tokens));
        data.read(ids[first + b], {}, fields);
      }
      index_->add(std::span<const std::int32_t>(inputs_).first(count * tokens),
                  static_cast<std::int32_t>(first * tokens));
    }
    index_->finish(ExecSpace());
  }

  /// As EmbeddingExchange groups them.
  void count_rows(const Dataset& data, const std::vector<std::uint64_t>& ids, Crossing crossing,
                  int replica) {
    if (!rows_ || ids.empty()) return;
    read_tokens(data, ids);
    const int last = rank_of(boundaries_);
    std::vector<std::uint32_t>& visits = row_visits_[replica];
    for (int m = 0; m < index_->micro_batches(); ++m) {
      const MicroBatchGroup needed = row_group(m, index_->micro_batches());
      const WireBytes rows = rows_of(*rows_, crossing, CrossingKind::tied_rows, needed,
                                     index_->needed_before(needed.begin),
                                     index_->needed_before(needed.end), index_->tokens(), visits);
      now_.rows += rows;
      if (!crossing.training) continue;
      if (replica == 0 && rows.messages > 0) links_.pass(last, 0, rows.all());
      if (!gradients_) continue;
      std::vector<std::uint32_t> none;
      const MicroBatchGroup done = gradient_group(m, index_->micro_batches());
      const WireBytes gradients =
          rows_of(*gradients_, crossing, CrossingKind::tied_gradients, done,
                  index_->final_before(done.begin), index_->final_before(done.end),
                  index_->tokens_by_last_use(), none);
      now_.gradients += gradients;
      if (replica == 0 && gradients.messages > 0) links_.pass(0, last, gradients.all());
    }
  }

  WireBytes rows_of(const MessageSizes& messages, Crossing& crossing, CrossingKind kind,
                    const MicroBatchGroup& group, int a, int b,
                    std::span<const std::int32_t> tokens,
                    std::vector<std::uint32_t>& visits) const {
    if (group.begin >= group.end || a == b) return {};
    crossing.kind = kind;
    crossing.micro_batch = static_cast<std::uint32_t>(group.begin);
    crossing.boundary = static_cast<std::uint32_t>(boundaries_);
    const std::span<const std::int32_t> chosen = tokens.subspan(a, b - a);
    crossing.sample_ids.assign(chosen.begin(), chosen.end());
    crossing.tokens.assign(chosen.size(), 1);
    crossing.visits.assign(chosen.size(), 0);
    if (messages.remembers() && crossing.training && !visits.empty())
      for (std::size_t i = 0; i < chosen.size(); ++i) crossing.visits[i] = visits[chosen[i]]++;
    return messages.of(crossing);
  }

  void count_evaluations(const DataSplit& data) {
    const Totals training = now_;
    now_ = {};
    now_.forward.resize(forward_.kinds());
    for (const EvaluationMode mode : settings_.evaluation.modes) {
      count_evaluation(*data.validation, mode);
      count_answers(data.answers, mode);
    }
    const auto times = [&](const WireBytes& once) {
      const std::uint64_t n = result_.evaluations;
      return WireBytes{n * once.payload, n * once.headers, n * once.fp32, n * once.messages};
    };
    for (int b = 0; b < boundaries_; ++b)
      result_.evaluation_forward[b] = times(now_.forward[forward_.kind(b)]);
    result_.evaluation_rows = times(now_.rows);
    now_ = training;
  }

  /// As if all answers were right: a wrong one is looked at no further where tokens take a pass
  /// each.
  void count_answers(const TokenDataset& answers, EvaluationMode mode) {
    if (answers.size() == 0) return;
    if (crosses_token_by_token(pipeline_options(settings_), mode, settings_.pipeline.stages))
      return count_evaluation(answers, mode);
    std::vector<std::uint64_t> undecided(answers.size());
    std::iota(undecided.begin(), undecided.end(), std::uint64_t{0});
    for (int target = 0; !undecided.empty(); ++target) {
      count_evaluation(answers.at_target(target, undecided), mode);
      std::erase_if(undecided, [&](std::uint64_t id) { return answers.targets(id) == target + 1; });
    }
  }

  void count_evaluation(const Dataset& data, EvaluationMode mode) {
    const StepPlanner planner(data, 0, false, step_layout(pipeline_options(settings_)));
    for (std::uint64_t step = 0; step < planner.steps_per_epoch(); ++step)
      for (int replica = 0; replica < settings_.pipeline.replicas; ++replica) {
        const std::vector<std::uint64_t> ids = planner.samples(step, replica);
        Crossing crossing;
        crossing.step = step;
        crossing.training = false;
        crossing.evaluation = mode;
        for_micro_batches(data, ids, crossing, [&] {
          for (std::size_t i = 0; i < forward_.kinds(); ++i)
            now_.forward[i] += forward_.of(i, crossing);
        });
        crossing.evaluation = EvaluationMode::plain;
        count_rows(data, ids, std::move(crossing), replica);
      }
  }

  const Settings& settings_;
  int boundaries_;
  int first_gradient_;
  int vocabulary_ = 0, tokens_ = 0;
  std::array<bool, 2> of_positions_ = {};  ///< forward and backward
  BoundaryDirection forward_, backward_;   ///< backward_ begins with boundary first_gradient_
  std::optional<MessageSizes> rows_, gradients_;
  std::optional<MessageSizes> common_gradient_, common_values_;
  std::array<int, 2> common_rows_ = {};  ///< of a gradient and of values
  std::optional<TokenIndex> index_;
  std::vector<std::int32_t> inputs_;
  std::vector<std::uint32_t> visits_;                   ///< by sample
  std::vector<std::vector<std::uint32_t>> row_visits_;  ///< by replica and token
  /// By direction, replica and place of a step; the last step of an epoch does not visit all.
  std::array<std::vector<std::vector<std::uint32_t>>, 2> place_visits_;
  PlannedLinks links_;
  Totals now_;
  TrafficPrediction result_;
};

}  // namespace

TrafficPrediction count_messages(const Settings& settings, const ModelLayout& model,
                                 const PipelineShape& shape, const DataSplit& data,
                                 const StepPlanner& planner, std::uint64_t steps) {
  return Counter(settings, model, shape).run(data, planner, steps);
}

}  // namespace deltapipe
