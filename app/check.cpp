#include <algorithm>
#include <cstdio>
#include <memory>

#include "app/commands.hpp"
#include "app/progress_display.hpp"
#include "app/session.hpp"
#include "app/step_plan.hpp"
#include "comm/message.hpp"
#include "comm/schedule.hpp"
#include "core/cache/activation_cache.hpp"
#include "core/codec/codec.hpp"
#include "core/deck/deck.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

/// Bytes of the activations that a stage keeps for its backward passes.
double activation_bytes(const Settings& settings, const ModelPlan& plan, int stage) {
  const TrainingSettings& t = settings.training;
  const double rows = static_cast<double>(t.micro_batch_size) * plan.tokens;
  const double C = plan.config.n_embd;
  const int slots = slots_needed(settings.pipeline.schedule, stage, settings.pipeline.stages,
                                 t.micro_batches, settings.pipeline.in_flight);
  const bool recompute =
      t.recompute || std::find(t.recompute_stages.begin(), t.recompute_stages.end(), stage) !=
                         t.recompute_stages.end();
  const double state = rows * (5 * C + plan.config.n_inner + plan.config.n_head + 4) * 4;
  const double blocks = plan.partition[stage];
  const double inputs = slots * (blocks + 1) * rows * C * 4;
  return inputs + (recompute ? state : slots * blocks * state);
}

}  // namespace

void run_check(const Settings& settings) {
  const ModelPlan plan = plan_model(settings);
  const DataSplit data = load_data(settings.data, plan.tokenizer, plan.tokens);
  const TrainingSettings& t = settings.training;
  const int stages = settings.pipeline.stages;
  std::printf("%s\n", effective_deck(settings).c_str());

  const StepPlanner planner(data.train, t.seed, settings.data.shuffle,
                            {t.micro_batch_size, t.micro_batches, settings.pipeline.replicas,
                             settings.forward.kind == CodecKind::delta});
  std::printf(
      "# data: %llu training samples (%s tokens), %llu validation samples; %llu steps an "
      "epoch\n",
      static_cast<unsigned long long>(data.train.size()),
      with_prefix(static_cast<double>(data.train.tokens())).c_str(),
      static_cast<unsigned long long>(data.validation.size()),
      static_cast<unsigned long long>(planner.steps_per_epoch()));
  std::printf("# ranks: %d stage(s) x %d replica(s); idle by the schedule: %.1f %%\n", stages,
              settings.pipeline.replicas, 100 * bubble_fraction(stages, t.micro_batches));

  const ModelCost cost = gpt2_cost(plan.config, plan.tokens);
  const double whole = plan.config.n_layer * cost.block + cost.head;
  std::printf(
      "#\n# stage  blocks  parameters  share of work  weights and optimizer  activations\n");
  for (int s = 0; s < stages; ++s) {
    double parameters = 0;
    for (const ParameterInfo& p : gpt2_parameters(plan.config, stage_part(plan.partition, s)))
      parameters += static_cast<double>(p.size);
    const double work = plan.partition[s] * cost.block + (s + 1 == stages ? cost.head : 0);
    std::printf("# %5d  %6d  %10s  %11.1f %%  %20sB  %10sB\n", s, plan.partition[s],
                with_prefix(parameters).c_str(), 100 * work / whole,
                with_prefix(16 * parameters).c_str(),
                with_prefix(activation_bytes(settings, plan, s)).c_str());
  }
  if (stages == 1) return;

  const CodecShape shape{t.micro_batch_size, plan.tokens, plan.config.n_embd};
  std::printf(
      "#\n# direction  payload of a micro-batch: first visit  later    wire a step and "
      "boundary\n");
  for (const bool backward : {false, true}) {
    const CodecSettings& codec_settings = backward ? settings.backward : settings.forward;
    const std::unique_ptr<Codec> codec = make_codec(codec_settings, shape, settings.cache.storage);
    Visit visit;
    visit.backward = backward;
    visit.epoch = codec_settings.warmup_epochs;
    for (int b = 0; b < t.micro_batch_size; ++b) {
      visit.sample_ids.push_back(b);
      visit.tokens.push_back(plan.tokens);
      visit.visits.push_back(0);
    }
    const double first = static_cast<double>(codec->payload_bytes(visit));
    // A refined first visit takes several; later ones are all alike.
    std::fill(visit.visits.begin(), visit.visits.end(), 1000u);
    const double later = static_cast<double>(codec->payload_bytes(visit));
    const double step = t.micro_batches * settings.pipeline.replicas *
                        (later + static_cast<double>(sizeof(MessageHeader)));
    std::printf("# %-9s  %36sB  %7sB  %20sB\n", backward ? "backward" : "forward",
                with_prefix(first).c_str(), with_prefix(later).c_str(), with_prefix(step).c_str());
    if (codec->record_bytes() == 0) continue;
    CacheShape cache;
    // The first replica has the most.
    cache.samples =
        StepPlanner::samples_of_replica(data.train.size(), 0, settings.pipeline.replicas);
    cache.record_bytes = codec->record_bytes();
    cache.max_samples_in_flight = t.micro_batch_size;
    cache.prefetch_samples = settings.cache.prefetch * t.micro_batch_size;
    const CacheMemory memory = ActivationCache::memory_bytes(cache, settings.cache.budget_bytes);
    std::printf("# activation cache at each boundary end: %sB in memory, %sB on disk\n",
                with_prefix(static_cast<double>(memory.pool_bytes + memory.staging_bytes +
                                                memory.table_bytes))
                    .c_str(),
                with_prefix(static_cast<double>(ActivationCache::disk_bytes_needed(
                                cache, settings.cache.budget_bytes)))
                    .c_str());
  }
}

}  // namespace deltapipe
