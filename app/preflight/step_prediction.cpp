// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/step_prediction.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "app/preflight/memory_prediction.hpp"
#include "app/preflight/message_sizes.hpp"
#include "app/preflight/planned_links.hpp"
#include "comm/replicas/replica_sum.hpp"
#include "models/model.hpp"

namespace deltapipe {

namespace {

constexpr std::uint64_t kMostSamples = 4096;  ///< looked at for means

/// A crossing of samples that were visited before.
Crossing steady_crossing(CrossingKind kind, int samples, int tokens, double warmup_epochs) {
  Crossing crossing;
  crossing.kind = kind;
  crossing.epoch = warmup_epochs;
  for (int i = 0; i < samples; ++i) crossing.sample_ids.push_back(static_cast<std::uint64_t>(i));
  crossing.tokens.assign(static_cast<std::size_t>(samples), tokens);
  crossing.visits.assign(static_cast<std::size_t>(samples), 1);
  return crossing;
}

std::uint64_t message_bytes(const BoundaryEndPlan& plan, CrossingKind kind, int samples,
                            int tokens) {
  return MessageSizes(plan)
      .of(steady_crossing(kind, samples, tokens, plan.codec.settings.warmup_epochs))
      .all();
}

int count(const std::vector<Program>& programs, Action action) {
  std::ptrdiff_t found = 0;
  for (const Program& program : programs)
    found += std::ranges::count(program, action, &Instruction::action);
  return static_cast<int>(found);
}

/// Returns what latency adds to the time in which a sum's messages pass the link: one there and one
/// back. Each further round waits for a free buffer, unless the link is busy for so long.
double latency_of_sum(double latency, int rounds, double busy_seconds) {
  return 2 * latency + std::max(0.0, (rounds - 1) * latency - busy_seconds);
}

}  // namespace

MeanTokens mean_tokens(const PipelineShape& shape, const Dataset* data) {
  const auto all = static_cast<double>(shape.tokens);
  if (data == nullptr || data->size() == 0) return {all, all};
  const std::uint64_t looked_at = std::min(data->size(), kMostSamples);
  double valid = 0, computed = 0;
  int longest = 0, batches = 0;
  for (std::uint64_t i = 0; i < looked_at; ++i) {
    const int length = data->length(i * data->size() / looked_at);
    valid += length;
    longest = std::max(longest, length);
    const bool is_last = (i + 1) % static_cast<std::uint64_t>(shape.samples) == 0;
    if (!is_last && i + 1 < looked_at) continue;
    computed += padded_tokens(longest, shape.tokens);
    longest = 0;
    ++batches;
  }
  return {valid / static_cast<double>(looked_at), shape.pads_to_longest ? computed / batches : all};
}

PlannedStep::PlannedStep(const Settings& settings, const ModelLayout& model,
                         const PipelineShape& shape, const Dataset* data, const WorkRates& rates)
    : settings_(settings),
      traits_(step_traits(model)),
      programs_(step_programs(settings, traits_)),
      step_seconds_(rates.step_seconds) {
  const MeanTokens mean = mean_tokens(shape, data);
  const ModelCost cost = model.model->cost(static_cast<int>(std::lround(mean.computed)));
  const int ranks = settings.pipeline.pipeline_ranks();
  int stage = 0;
  for (const StageWork& work :
       stage_work(settings, cost, model.partition, model.first_trained_stage)) {
    const std::size_t rank = static_cast<std::size_t>(stage++ % ranks);
    const double rate = rates.flops.size() == 1 ? rates.flops.front() : rates.flops.at(rank);
    passes_.push_back({work.forward / rate, work.backward / rate});
  }
  plan_boundaries(model, shape, mean, rates);
  plan_rows(model, shape, data, mean);
  plan_sums(model);
}

void PlannedStep::plan_boundaries(const ModelLayout& model, const PipelineShape& shape,
                                  const MeanTokens& mean, const WorkRates& rates) {
  // Boundaries of one shape have messages of one size.
  std::map<std::pair<int, int>, std::pair<MessageCost, MessageCost>> known;
  int boundary = 0;
  for (const BoundaryShape& crossing :
       boundary_shapes(*model.model, model.partition, model.tokens)) {
    const auto [entry, is_new] =
        known.try_emplace({crossing.tokens, crossing.channels}, MessageCost(), MessageCost());
    const int before = boundary++;
    if (is_new) {
      const int tokens = crossing.tokens == shape.tokens ? static_cast<int>(std::lround(mean.valid))
                                                         : crossing.tokens;
      const double values = static_cast<double>(shape.samples) * tokens * crossing.channels;
      const auto cost = [&](const BoundaryEndPlan& plan, CrossingKind kind, double bits) {
        MessageCost message;
        if (bits == 0 && !has_fixed_length(plan.codec.settings)) is_upper_bound_ = true;
        message.bytes = bits > 0 ? static_cast<std::uint64_t>(values * bits / 8)
                                 : message_bytes(plan, kind, shape.samples, tokens);
        const double rate =
            plan.codec.settings.kind == CodecKind::none ? rates.plain_rate : rates.codec_rate;
        if (rate > 0) message.codec_seconds = sizeof(float) * values / rate;
        return message;
      };
      entry->second.first = cost(*stage_plan_of(settings_, model, shape, before).send_forward,
                                 CrossingKind::activation, rates.forward_bits);
      // Stages before the first one that is trained send no gradients.
      const int after =
          std::min(std::max(before, model.first_trained_stage) + 1, settings_.pipeline.stages - 1);
      if (const StagePlan plan = stage_plan_of(settings_, model, shape, after); plan.send_backward)
        entry->second.second =
            cost(*plan.send_backward, CrossingKind::gradient, rates.backward_bits);
    }
    forward_.push_back(entry->second.first);
    backward_.push_back(entry->second.second);
  }
}

void PlannedStep::plan_rows(const ModelLayout& model, const PipelineShape& shape,
                            const Dataset* data, const MeanTokens& mean) {
  const int stages = settings_.pipeline.stages;
  if (stages == 1) return;
  const bool sends_rows = traits_.embedding == EmbeddingPlace::shared && !traits_.embedding_frozen;
  if (!sends_rows && !traits_.trains_common) return;
  const StagePlan plan = stage_plan_of(settings_, model, shape, sends_rows ? stages - 1 : 0);
  if (traits_.trains_common) {
    const auto bytes = [](const BoundaryEndPlan& end, CrossingKind kind) {
      return message_bytes(end, kind, 1, end.codec.shape.tokens);
    };
    common_gradient_.bytes = bytes(*plan.common->receive_gradient, CrossingKind::common_gradients);
    common_values_.bytes = bytes(*plan.common->send_values, CrossingKind::common_values);
  }
  if (!sends_rows) return;
  const int samples = shape.samples * shape.micro_batches;
  std::set<std::int32_t> tokens;  // different ones of a step
  std::vector<std::int32_t> inputs(static_cast<std::size_t>(shape.tokens));
  for (int i = 0; data != nullptr && i < samples && static_cast<std::uint64_t>(i) < data->size();
       ++i) {
    SampleSpans fields;
    fields.set(Field::tokens, std::span(inputs));
    data->read(static_cast<std::uint64_t>(i), {}, fields);
    tokens.insert(inputs.begin(), inputs.begin() + data->length(static_cast<std::uint64_t>(i)));
  }
  const int rows = data != nullptr
                       ? static_cast<int>(tokens.size())
                       : static_cast<int>(std::min<double>(shape.vocabulary, samples * mean.valid));
  const auto cost = [&](const BoundaryEndPlan& end, CrossingKind kind, Action action) {
    const int messages = std::max(1, count(programs_, action));
    return message_bytes(end, kind, rows, 1) / static_cast<std::uint64_t>(messages);
  };
  rows_.bytes = cost(plan.tokens->rows, CrossingKind::tied_rows, Action::send_embedding);
  if (plan.tokens->gradients)
    row_gradients_.bytes = cost(*plan.tokens->gradients, CrossingKind::tied_gradients,
                                Action::send_embedding_gradient);
}

void PlannedStep::plan_sums(const ModelLayout& model) {
  const int replicas = settings_.pipeline.replicas;
  if (replicas == 1) return;
  for (int stage = 0; stage < settings_.pipeline.stages; ++stage) {
    const auto made = model.model->make_stage(stage_part(model.partition, stage));
    const std::vector<std::size_t> sizes = bucket_sizes(made->parameters());
    const auto bytes = [&](int bucket) {
      return replica_sum_bytes(std::span(sizes).subspan(static_cast<std::size_t>(bucket), 1),
                               replicas, settings_.replicas) /
             static_cast<std::uint64_t>(replicas);
    };
    const auto [embedding, common] = made->late_buckets();
    Sum sum;
    std::vector<std::size_t> early;
    for (int bucket = 0; bucket < static_cast<int>(sizes.size()); ++bucket) {
      const std::size_t size = sizes[static_cast<std::size_t>(bucket)];
      if (size == 0) continue;
      (bucket == embedding ? sum.embedding_bytes
       : bucket == common  ? sum.common_bytes
                           : sum.bytes) += bytes(bucket);
      if (bucket != embedding && bucket != common) early.push_back(size);
    }
    // They travel beside gradients.
    const std::vector<std::size_t> statistics = statistic_sizes(made->parameters());
    const int rounds_of_statistics = replica_sum_rounds(statistics, replicas, {});
    sum.bytes += replica_sum_bytes(statistics, replicas, {}) / static_cast<std::uint64_t>(replicas);
    sum.rounds_at_once =
        rounds_of_statistics + replica_sum_rounds(sizes, replicas, settings_.replicas);
    sum.parts = std::max(1, static_cast<int>(early.size()));
    sum.pieces = replica_sum_pieces(early, replicas, settings_.replicas);
    sum.rounds = rounds_of_statistics + replica_sum_rounds(early, replicas, settings_.replicas);
    if (embedding >= 0)
      sum.embedding_rounds =
          replica_sum_rounds(std::span(sizes).subspan(static_cast<std::size_t>(embedding), 1),
                             replicas, settings_.replicas);
    sums_.push_back(sum);
  }
}

/// Sums that overlap with passes.
void PlannedStep::set_sums(const NetworkSettings& network, SimulationCosts& costs) const {
  const PlannedLinks links(network, settings_.pipeline);
  costs.sums.clear();
  for (std::size_t stage = 0; stage < sums_.size(); ++stage) {
    const int rank = static_cast<int>(stage) % settings_.pipeline.pipeline_ranks();
    const auto cost = [&](std::uint64_t bytes, int rounds) {
      SumCost sum;
      if (bytes == 0) return sum;
      sum.seconds = links.sum_seconds_of(rank, bytes);
      sum.latency_seconds = latency_of_sum(links.sum_latency_of(rank), rounds, sum.seconds);
      return sum;
    };
    const Sum& sum = sums_[stage];
    costs.sums.push_back(cost(sum.bytes, sum.rounds));
    costs.sums.back().parts = sum.parts;
    costs.sums.back().pieces = sum.pieces;
    if (sum.embedding_bytes > 0)
      costs.embedding_sum = cost(sum.embedding_bytes, sum.embedding_rounds);
    if (sum.common_bytes > 0) costs.common_sum = cost(sum.common_bytes, 1);
  }
}

/// The slowest rank's. They hide behind nothing.
double PlannedStep::seconds_of_sums_at_once(const NetworkSettings& network) const {
  const PlannedLinks links(network, settings_.pipeline);
  const std::vector<std::uint64_t> bytes = replica_bytes_of_ranks();
  double most = 0;
  for (std::size_t rank = 0; rank < bytes.size(); ++rank) {
    if (bytes[rank] == 0) continue;
    int rounds = 0;
    for (std::size_t stage = rank; stage < sums_.size(); stage += bytes.size())
      rounds += sums_[stage].rounds_at_once;
    const int r = static_cast<int>(rank);
    const double busy = links.sum_seconds_of(r, bytes[rank]);
    most = std::max(most, busy + latency_of_sum(links.sum_latency_of(r), rounds, busy));
  }
  return most;
}

LinkCost PlannedStep::link_cost(const NetworkSettings& network, int from, int to,
                                const MessageCost& message) const {
  LinkCost cost;
  cost.encode_seconds = cost.decode_seconds = message.codec_seconds;
  if (from == to) return cost;
  const PlannedLinks links(network, settings_.pipeline);
  cost.message_seconds = links.seconds_of(from, to, message.bytes);
  cost.latency_seconds = links.latency_of(from, to);
  return cost;
}

StepPrediction PlannedStep::predict(const NetworkSettings& network) const {
  const PipelineSettings& p = settings_.pipeline;
  const int ranks = p.pipeline_ranks();
  SimulationCosts costs;
  costs.stages = passes_;
  costs.update = step_seconds_;
  costs.sharing = settings_.plan.receiver_wires       ? LinkSharing::receiver_wires
                  : network.wire == WireSharing::rank ? LinkSharing::rank_wires
                                                      : LinkSharing::rank_pairs;
  costs.buffers = message_buffers(find_schedule(p.schedule), step_shape(settings_, 0));
  if (p.stages > 1) {
    costs.activations.clear();
    costs.gradients.clear();
    for (int b = 0; b + 1 < p.stages; ++b) {
      const int before = b % ranks, after = (b + 1) % ranks;
      const auto i = static_cast<std::size_t>(b);
      costs.activations.push_back(link_cost(network, before, after, forward_[i]));
      costs.gradients.push_back(link_cost(network, after, before, backward_[i]));
    }
    costs.embedding = link_cost(network, ranks - 1, 0, rows_);
    costs.embedding_gradient = link_cost(network, 0, ranks - 1, row_gradients_);
    costs.common_gradient = link_cost(network, 1 % ranks, 0, common_gradient_);
    costs.common_values = link_cost(network, 0, 1 % ranks, common_values_);
  }
  // AdamW's first moments are exchanged when all ranks know the norm of the gradients, changes of
  // local steps after the last of them.
  const int local_steps = settings_.replicas.local_steps;
  const bool sums_at_once =
      local_steps > 0 || settings_.replicas.codec == ReplicaCodec::adam_moment;
  const double sum_seconds =
      sums_at_once ? seconds_of_sums_at_once(network) / std::max(1, local_steps) : 0;
  if (!sums_.empty() && !sums_at_once) set_sums(network, costs);
  double norm_seconds = 0;  // of the sum over all ranks
  for (const LinkSettings& link : network.ranks) {
    const auto wires = [&] { return std::make_shared<EmulatedLink>(link, Framing::ethernet); };
    const TimePoint begin{};
    const TimePoint end =
        RankWire{wires(), wires()}.book_tree(begin, ranks * p.replicas, sizeof(double));
    norm_seconds = std::max(norm_seconds, std::chrono::duration<double>(end - begin).count());
  }
  costs.update += norm_seconds;

  const Simulation simulation = simulate(programs_, costs);
  DELTAPIPE_ASSERT(simulation.deadlock.empty(), simulation.deadlock);
  StepPrediction prediction;
  prediction.step_seconds = simulation.makespan() + sum_seconds;
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankSeconds& rank = simulation.seconds[r];
    const double end = simulation.ranks[r].empty() ? 0 : simulation.ranks[r].back().end;
    RankSeconds& sum = prediction.parts;
    sum.compute += rank.compute;
    sum.codec += rank.codec;
    sum.wire += rank.wire;
    sum.bubble += rank.bubble + simulation.makespan() - end;
    sum.replicas += rank.replicas + sum_seconds;
  }
  for (double* const part :
       {&prediction.parts.compute, &prediction.parts.codec, &prediction.parts.wire,
        &prediction.parts.bubble, &prediction.parts.replicas})
    *part /= ranks;
  return prediction;
}

std::uint64_t PlannedStep::largest(const std::vector<MessageCost>& messages) {
  std::uint64_t bytes = 0;
  for (const MessageCost& message : messages) bytes = std::max(bytes, message.bytes);
  return bytes;
}

std::vector<std::uint64_t> PlannedStep::replica_bytes_of_ranks() const {
  std::vector<std::uint64_t> ranks(static_cast<std::size_t>(settings_.pipeline.pipeline_ranks()));
  for (std::size_t stage = 0; stage < sums_.size(); ++stage)
    ranks[stage % ranks.size()] += sums_[stage].all();
  return ranks;
}

std::uint64_t PlannedStep::replica_bytes() const {
  return std::ranges::max(replica_bytes_of_ranks());
}

NetworkSettings with_bandwidth(NetworkSettings network, double bits_per_second) {
  const auto set = [&](std::vector<LinkSettings>& links) {
    if (links.empty()) links.emplace_back();
    for (LinkSettings& link : links) link.bits_per_second = bits_per_second;
  };
  if (network.wire == WireSharing::rank) {
    set(network.ranks);
  } else {
    set(network.forward);
    set(network.backward);
    network.replicas.bits_per_second = bits_per_second;
  }
  return network;
}

double bandwidth_needed(const PlannedStep& step, const NetworkSettings& network, double part) {
  const auto seconds = [&](double bandwidth) {
    return step.predict(with_bandwidth(network, bandwidth)).step_seconds;
  };
  const double most = (1 + part) * seconds(0);
  double low = 1e3, high = 1e15;
  if (seconds(low) <= most) return 0;
  while (high / low > 1.01) {
    const double middle = std::sqrt(low * high);
    (seconds(middle) <= most ? high : low) = middle;
  }
  return high;
}

}  // namespace deltapipe
