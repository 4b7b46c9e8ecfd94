// SPDX-License-Identifier: BSD-3-Clause
// Texts that go on over 1 to 4 stages: the logits of passing every text as a whole, and a message
// of the new tokens only.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "comm/pipeline/pipeline.hpp"
#include "comm/transport/message.hpp"
#include "core/base/error.hpp"
#include "models/model.hpp"
#include "models/partition.hpp"
#include "mpi_test.hpp"
#include "small_run.hpp"

namespace deltapipe {
namespace {

constexpr int kPositions = 13, kChannels = 16, kWords = 23;

struct Case {
  std::string name;
  CodecSettings forward;
  PlainPrecision precision = PlainPrecision::fp32;
  bool tokens_alone = true;
  double tolerance = 1e-5;  // of logits, relative to the largest
};

CodecSettings codec(CodecKind kind, ScaleKind scale = ScaleKind::tile) {
  CodecSettings settings;
  settings.kind = kind;
  settings.scale = scale;
  settings.tile = 8;
  settings.bits = 8;
  settings.topk = 0.25;
  return settings;
}

/// A rounding error may move a value to the next code.
std::vector<Case> cases() {
  return {{"none", codec(CodecKind::none)},
          {"fp16", codec(CodecKind::fp16), PlainPrecision::fp16, true, 1e-2},
          {"aqsgd", codec(CodecKind::aqsgd), PlainPrecision::quantize8, true, 5e-2},
          {"tile", codec(CodecKind::directq, ScaleKind::tile), PlainPrecision::fp32, true, 5e-2},
          {"channel", codec(CodecKind::directq, ScaleKind::channel), PlainPrecision::fp32, false},
          {"topk", codec(CodecKind::topk), PlainPrecision::fp32, false}};
}

class Generation {
 public:
  Generation(const Case& c, bool keeps_text, int stages_per_rank = 1)
      : grid_(MPI_COMM_WORLD, test::world_size() * stages_per_rank, 1, stages_per_rank),
        progress_(MPI_COMM_WORLD) {
    NewModel shape;
    shape.blocks = 4;
    shape.heads = 2;
    shape.channels = kChannels;
    shape.positions = kPositions;
    shape.vocabulary = kWords;
    const std::unique_ptr<Model> model = model_types().front().create(shape);
    const std::vector<int> partition(balanced_partition(4, grid_.stages(), model->cost(5)));
    std::vector<Stage<float>*> stages;
    for (int local = 0; local < stages_per_rank; ++local) {
      const auto& stage =
          stages_.emplace_back(model->make_stage(stage_part(partition, grid_.stage(local))));
      stage->parameters().allocate(false);
      model->initialise(3, stage->parameters());
      stages.push_back(stage.get());
    }
    PipelineOptions options;
    options.pipeline.stages = grid_.stages();
    options.pipeline.stages_per_rank = stages_per_rank;
    if (stages_per_rank > 1) options.pipeline.schedule = "interleaved";
    options.forward = c.forward;
    options.evaluation.modes = {EvaluationMode::plain, EvaluationMode::codec};
    options.evaluation.precision = c.precision;
    options.cache.budget_bytes = 0;
    deltapipe::PipelineShape sizes;
    sizes.vocabulary = kWords;
    sizes.tokens = kPositions;
    sizes.fields = fields_of_text(sizes.tokens);
    sizes.training = false;
    sizes.keeps_text = keeps_text;
    pipeline_ = std::make_unique<Pipeline>(options, sizes, grid_, progress_, stages);
  }
  ~Generation() { barrier(progress_, MPI_COMM_WORLD); }

  const ProcessGrid& grid() const { return grid_; }
  Pipeline& pipeline() { return *pipeline_; }

  /// Logits behind each piece of a text.
  std::vector<std::vector<float>> logits(EvaluationMode mode,
                                         const std::vector<std::vector<std::int32_t>>& pieces) {
    std::vector<std::vector<float>> all;
    pipeline_->begin_text(mode);
    for (std::size_t i = 0; i < pieces.size(); ++i)
      all.push_back(pipeline_->continue_text(pieces[i], i));
    return all;
  }

 private:
  ProcessGrid grid_;
  ProgressThread progress_;
  std::vector<std::unique_ptr<Stage<float>>> stages_;
  std::unique_ptr<Pipeline> pipeline_;
};

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = a.size() == b.size() ? 0 : INFINITY, largest = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
    largest = std::max(largest, std::abs(static_cast<double>(b[i])));
  }
  return largest > 0 ? worst / largest : worst;
}

TEST_CASE("A text that goes on has the logits of the whole text", "[generation]") {
  const Case c = GENERATE(from_range(cases()));
  const int stages_per_rank = GENERATE(1, 2);
  if (stages_per_rank > 1 && test::world_size() != 2) return;  // four blocks
  CAPTURE(c.name, test::world_size(), stages_per_rank);
  Generation kept(c, true, stages_per_rank), whole(c, false, stages_per_rank);
  const std::vector<std::vector<std::int32_t>> first = {{4, 1, 7, 7, 2}, {9}, {22}, {0}},
                                               second = {{5},  {1}, {20, 3, 3}, {8, 1, 9, 2, 4, 6},
                                                         {11}, {12}};
  for (const EvaluationMode mode : {EvaluationMode::plain, EvaluationMode::codec})
    for (const auto& pieces : {first, second, first}) {
      const bool continues =
          kept.grid().stages() == 1 || mode == EvaluationMode::plain || c.tokens_alone;
      const auto made = kept.logits(mode, pieces), expected = whole.logits(mode, pieces);
      const double sent = sum_of(kept.pipeline().take_sent_bytes().forward);
      const double all = sum_of(whole.pipeline().take_sent_bytes().forward);
      REQUIRE(made.size() == expected.size());
      for (std::size_t i = 0; i < made.size(); ++i) {
        CHECK(made[i].size() == (kept.grid().last() ? kWords : 0));
        CHECK(difference(made[i], expected[i]) <= (continues ? c.tolerance : 0));
      }
      if (kept.grid().last()) continue;
      CHECK((sent < all) == continues);
      std::size_t tokens = 0;
      for (const auto& piece : pieces) tokens += piece.size();
      if (mode == EvaluationMode::plain && c.precision == PlainPrecision::fp32)
        CHECK(sent == stages_per_rank * (pieces.size() * sizeof(MessageHeader) +
                                         tokens * kChannels * sizeof(float)));
    }
}

TEST_CASE("A text holds as many tokens as the pipeline was built for", "[generation]") {
  Generation generation(cases().front(), GENERATE(true, false));
  Pipeline& pipeline = generation.pipeline();
  pipeline.begin_text();
  pipeline.continue_text(std::vector<std::int32_t>(kPositions, 1), 0);
  CHECK_THROWS_AS(pipeline.continue_text(std::vector<std::int32_t>{1}, 1), InternalError);
  CHECK_THROWS_AS(pipeline.continue_text(std::vector<std::int32_t>{}, 1), InternalError);
  pipeline.begin_text();
  CHECK_NOTHROW(pipeline.continue_text(std::vector<std::int32_t>{1}, 2));
}

}  // namespace
}  // namespace deltapipe
