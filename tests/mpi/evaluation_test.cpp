// SPDX-License-Identifier: BSD-3-Clause
// Evaluations through the codecs have the loss of a pipeline in one process in which the same codec
// stands at each boundary, and training does not notice them.
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "core/base/state/state_in_memory.hpp"
#include "small_run.hpp"
#include "support/in_process_pipeline.hpp"
#include "tests/unit/core/files/files_support.hpp"

namespace deltapipe {
namespace {

using namespace test;

/// Codecs with which a run trains and evaluates, and the codec that does the same without memory.
struct Case {
  std::string name;
  CodecSettings forward;
  ChangesWithoutMemory changes;
  CodecSettings plain;
};

CodecSettings codec(CodecKind kind, int bits, Rounding rounding = Rounding::nearest) {
  CodecSettings settings;
  settings.kind = kind;
  settings.bits = bits;
  settings.rounding = rounding;
  settings.tile = 8;
  settings.topk = 0.25;
  return settings;
}

CodecSettings with_feedback(CodecSettings settings, FeedbackKind kind) {
  settings.error_feedback = true;
  settings.feedback_kind = kind;
  return settings;
}

CodecSettings from_first_visit(CodecSettings settings, FirstVisit first_visit) {
  settings.first_visit = first_visit;
  return settings;
}

std::vector<Case> cases() {
  constexpr auto first = ChangesWithoutMemory::first_visit, direct = ChangesWithoutMemory::direct;
  constexpr auto stochastic = Rounding::stochastic;
  const CodecSettings quantize = codec(CodecKind::directq, 3, stochastic);
  const CodecSettings topk = codec(CodecKind::topk, 4);
  const CodecSettings delta = codec(CodecKind::aqsgd, 3, stochastic);
  return {
      {"none", codec(CodecKind::none, 4), first, codec(CodecKind::none, 4)},
      {"fp16", codec(CodecKind::fp16, 4), first, codec(CodecKind::fp16, 4)},
      {"directq, ef", with_feedback(quantize, FeedbackKind::ef), first, quantize},
      {"topk, mixed", with_feedback(topk, FeedbackKind::mixed), first, topk},
      {"topk, ef21", with_feedback(topk, FeedbackKind::ef21), first, topk},
      {"aqsgd, fp32", from_first_visit(delta, FirstVisit::fp32), first, codec(CodecKind::none, 4)},
      {"aqsgd, quantize8", from_first_visit(delta, FirstVisit::quantize8), first,
       codec(CodecKind::directq, 8)},
      {"aqsgd, direct", delta, direct, quantize},
      {"aqsgd_topk", codec(CodecKind::aqsgd_topk, 4), first, codec(CodecKind::directq, 8)},
      {"aqsgd_topk, direct", codec(CodecKind::aqsgd_topk, 4), direct, topk},
  };
}

PipelineOptions options_of(const Case& c, int stages, int replicas,
                           const std::string& directory = {}) {
  PipelineOptions options;
  options.pipeline.stages = stages;
  options.pipeline.replicas = replicas;
  options.seed = kSeed;
  options.micro_batch_size = 2;
  options.micro_batches = 2;
  options.forward = c.forward;
  options.backward = with_feedback(codec(CodecKind::directq, 4), FeedbackKind::ef21);
  options.evaluation = {{EvaluationMode::plain, EvaluationMode::codec}, c.changes};
  options.cache.storage = MemoryStorage::bf16;
  options.cache.budget_bytes = directory.empty() ? 0 : 1024;  // 5 records of 192 bytes
  options.cache.directory = directory;
  options.cache.verify_every = 1;
  return options;
}

/// The model in one process, with a codec at each boundary.
class Reference {
 public:
  Reference(const CodecSettings& settings, int stages)
      : pipeline_(config(), small_partition(stages), shape(), {}), data_(dataset()) {
    for (int k = 0; k < stages; ++k)
      small_model()->initialise(kSeed, pipeline_.stage(k).parameters());
    const CodecShape extents{2, kTokens, config().n_embd};
    codec_ = make_codec(settings, extents, MemoryStorage::fp32);
    payload_ = DeviceBytes("test::payload", codec_->max_payload_bytes());
    pipeline_.set_boundary([this](int boundary, int micro_batch, const MatrixRef<float>& x_BTC) {
      cross(boundary, micro_batch, x_BTC);
    });
  }

  /// Sum of the losses of a plan's samples.
  double evaluate(const StepPlanner& planner) {
    double sum = 0;
    for (std::uint64_t step = 0; step < planner.steps_per_epoch(); ++step)
      sum += evaluate(planner.plan(step, 0));
    return sum;
  }

 private:
  static Gpt2Config config() {
    Gpt2Config config;
    config.n_layer = kBlocks;
    config.n_head = 2;
    config.n_embd = 16;
    config.n_inner = 64;
    config.n_positions = kTokens;
    config.vocabulary_size = kVocabulary;
    return config;
  }
  static test::PipelineShape shape() {
    test::PipelineShape shape;
    shape.samples = shape.micro_batches = 2;
    shape.tokens = kTokens;
    return shape;
  }

  double evaluate(const StepPlan& plan) {
    plan_ = plan;
    StepData step;
    double targets = 0;
    for (const auto& ids : plan.micro_batches)
      for (const std::uint64_t id : ids) {
        std::vector<std::int32_t> inputs(kTokens), next(kTokens);
        targets += data_.read(id, inputs, next);
        step.tokens.insert(step.tokens.end(), inputs.begin(), inputs.end());
        step.targets.insert(step.targets.end(), next.begin(), next.end());
        step.sample_ids.push_back(id);
      }
    return pipeline_.evaluate(step) * targets;
  }

  void cross(int boundary, int micro_batch, const MatrixRef<float>& x_BTC) {
    Crossing crossing;
    crossing.training = false;
    crossing.seed = kSeed;
    crossing.step = plan_.step;
    crossing.boundary = static_cast<std::uint32_t>(boundary);
    crossing.micro_batch = static_cast<std::uint32_t>(micro_batch);
    crossing.sample_ids = plan_.micro_batches[micro_batch];
    for (const std::uint64_t id : crossing.sample_ids) crossing.tokens.push_back(data_.length(id));
    crossing.visits.assign(crossing.samples(), 0);
    const Activations x(x_BTC.data(), x_BTC.extent(0), x_BTC.extent(1));
    const std::size_t bytes = codec_->encode(ExecSpace(), crossing, x, {}, payload_);
    codec_->decode(ExecSpace(), crossing, payload_, bytes, {}, x);
    Kokkos::fence();
  }

  InProcessPipeline<float> pipeline_;
  TokenDataset data_;
  StepPlan plan_;
  std::unique_ptr<Codec> codec_;
  DeviceBytes payload_;
};

TEST_CASE("A loss through the codecs is that of codecs at the boundaries", "[evaluation]") {
  const int stages = world_size();
  const Case c = GENERATE(from_range(cases()));
  const bool training = GENERATE(true, false);
  CAPTURE(c.name, stages, training);
  PipelineOptions options = options_of(c, stages, 1);
  if (!training) options.evaluation.modes = {EvaluationMode::codec};
  SmallRun run(options, false, training);
  const double loss = run.evaluate(EvaluationMode::codec);
  const double bytes = run.take_sent_bytes();
  CHECK(run.evaluate(EvaluationMode::codec, false) == loss);
  CHECK(run.take_sent_bytes() == bytes);
  if (run.grid().last()) {
    CHECK(loss ==
          Approx(Reference(c.plain, stages).evaluate(run.evaluation_planner())).epsilon(1e-12));
  }
  if (!training) return;
  const double plain_loss = run.evaluate(EvaluationMode::plain);
  const double plain_bytes = run.take_sent_bytes();
  if (run.grid().last()) {
    const CodecSettings none = codec(CodecKind::none, 4);
    CHECK(plain_loss ==
          Approx(Reference(none, stages).evaluate(run.evaluation_planner())).epsilon(1e-12));
    const bool is_exact = stages == 1 || c.plain.kind == CodecKind::none;
    CHECK((loss == plain_loss) == is_exact);
  } else {
    CHECK((bytes == plain_bytes) == (c.plain.kind == CodecKind::none));
    CHECK(bytes <= plain_bytes);
    CHECK(bytes > 0);
  }
}

std::vector<Case> remembering() {
  std::vector<Case> found;
  for (const Case& c : cases())
    if (has_memory(c.forward)) found.push_back(c);
  return found;
}

TEST_CASE("Training does not notice evaluations", "[evaluation]") {
  const int ranks = world_size();
  const int replicas = ranks == 4 ? 2 : 1;
  const Case c = GENERATE(from_range(remembering()));
  CAPTURE(c.name, ranks, replicas);
  const testing::TemporaryDirectory directory;
  const PipelineOptions options = options_of(c, ranks / replicas, replicas, directory.path());
  const auto trained = [&](bool evaluates) {
    SmallRun run(options);
    const int steps = static_cast<int>(run.steps_per_epoch()) + 2;
    double first = 0;
    for (int step = 0; step < steps; ++step) {
      if (evaluates && step % 3 == 1) {
        const StateContent before = state_in_memory(run.state());
        const double loss = run.evaluate(EvaluationMode::codec);
        run.evaluate(EvaluationMode::plain);
        // Whatever was evaluated before: the same bits.
        CHECK(run.evaluate(EvaluationMode::codec) == loss);
        CHECK((first != loss || !run.grid().last()));
        first = loss;
        check_same(state_in_memory(run.state()), before);
      }
      run.train(1);
    }
    return std::pair(state_in_memory(run.state()), run.losses());
  };
  const auto [expected, expected_losses] = trained(false);
  const auto [content, losses] = trained(true);
  CHECK(losses == expected_losses);
  check_same(content, expected);
}

}  // namespace
}  // namespace deltapipe
