// SPDX-License-Identifier: BSD-3-Clause
#include "app/warnings.hpp"

#include <catch2/catch.hpp>

using namespace deltapipe;

namespace {

Settings delta_over(int stages) {
  Settings settings;
  settings.pipeline.stages = stages;
  settings.forward.kind = CodecKind::delta;
  return settings;
}

}  // namespace

TEST_CASE("delta with the dropout of GPT-2's own config.json is warned of, with the remedy") {
  const DropoutProbabilities dropout{0.1, 0.1, 0.1};
  const auto warnings = warnings_of(delta_over(2), dropout);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("dropout_attention 0.1") != std::string::npos);
  CHECK(warnings[0].find("set model.dropout_embedding = 0, model.dropout_attention = 0, "
                         "model.dropout_residual = 0") != std::string::npos);
}

TEST_CASE("dropout is warned of where it hurts and only there") {
  DropoutProbabilities dropout{0.1, 0.1, 0.1};
  CHECK(warnings_of(delta_over(1), dropout).empty());
  Settings direct = delta_over(2);
  direct.forward.kind = CodecKind::quantize;
  CHECK(warnings_of(direct, dropout).empty());
  dropout.embedding = dropout.attention = 0;
  const auto warnings = warnings_of(delta_over(2), dropout);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("attention") == std::string::npos);
  CHECK(warnings[0].find("set model.dropout_residual = 0") != std::string::npos);
  dropout.residual = 0;
  CHECK(warnings_of(delta_over(2), dropout).empty());
}

TEST_CASE("a trace of a step that does not come is warned of") {
  OutputSettings output;
  CHECK(warnings_of_steps(output, 3).empty());
  output.trace_step = 3;
  CHECK(warnings_of_steps(output, 3).empty());
  output.trace_step = 4;
  const auto warnings = warnings_of_steps(output, 3);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("output.trace_step is 4") != std::string::npos);
  CHECK(warnings[0].find("step 3") != std::string::npos);
}

TEST_CASE("evaluations through codecs that leave nothing out are warned of") {
  Settings settings = delta_over(2);
  CHECK(warnings_of_evaluation(settings).empty());
  settings.evaluation.modes = {EvaluationMode::plain, EvaluationMode::codec};
  CHECK(warnings_of_evaluation(settings).empty());
  const auto told = [&](const char* part) {
    const auto warnings = warnings_of_evaluation(settings);
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find(part) != std::string::npos);
  };
  settings.forward.first_visit = FirstVisit::fp32;
  told("first_visit = \"fp32\"");
  settings.evaluation.changes = ChangesWithoutMemory::direct;
  CHECK(warnings_of_evaluation(settings).empty());
  settings.pipeline.stages = 1;
  told("one stage");
  settings = {};
  settings.pipeline.stages = 2;
  settings.evaluation.modes = {EvaluationMode::codec};
  settings.forward.kind = CodecKind::none;
  told("boundary.forward.codec");
}

TEST_CASE("the use of a model that nothing trained is warned of") {
  Settings settings;
  settings.output.directory = "/does/not/exist";
  const auto warnings = warnings_of_untrained(settings);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("nothing has trained; set model.path to") != std::string::npos);
  settings.model.path = "m";
  CHECK(warnings_of_untrained(settings).empty());
}
