// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/warnings.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "app/deck/deck.hpp"
#include "app/preflight/idle_settings.hpp"
#include "app/preflight/target_warnings.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"

using namespace deltapipe;

namespace {

Settings delta_over(int stages) {
  Settings settings;
  settings.pipeline.stages = stages;
  settings.forward.kind = CodecKind::aqsgd;
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
  direct.forward.kind = CodecKind::directq;
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
  Settings settings;
  CHECK(warnings_of_steps(settings, 3).empty());
  settings.output.trace_step = 3;
  CHECK(warnings_of_steps(settings, 3).empty());
  settings.output.trace_step = 4;
  const auto warnings = warnings_of_steps(settings, 3);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("output.trace_step is 4") != std::string::npos);
  CHECK(warnings[0].find("step 3") != std::string::npos);
}

TEST_CASE("keys of answers are warned of where no answers are compared") {
  Settings settings;
  CHECK(warnings_of_evaluation(settings).empty());
  settings.data.answers.end = "\n";
  settings.data.answers.prompt_field = "question";
  const auto warnings = warnings_of_evaluation(settings);
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].starts_with("evaluation.prompt_field, evaluation.answer_end: without effect"));
  settings.data.answers.files = {"a.jsonl"};
  CHECK(warnings_of_evaluation(settings).empty());
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

namespace {

/// The one warning that a deck gives, or nothing.
std::string told_of(const std::string& deck) {
  const auto warnings = warnings_without_effect(parse_deck(deck, "d.toml"));
  CAPTURE(deck);
  REQUIRE(warnings.size() <= 1);
  return warnings.empty() ? std::string() : warnings.front();
}

}  // namespace

TEST_CASE("warnings name settings without effect and what they require") {
  const std::string two = "pipeline.stages = 2\nboundary.forward.codec = ";
  const auto has = [](const std::string& text, const std::string& part) {
    CAPTURE(text, part);
    CHECK(text.find(part) != std::string::npos);
  };
  has(told_of(two + "\"fp16\"\nboundary.forward.quantizer.step = 0.5"),
      "boundary.forward.quantizer.step has no effect: it requires codec = \"directq\"");
  has(told_of(two + "\"aqsgd\"\nboundary.forward.bits = 3\nboundary.forward.rate = 2"),
      "boundary.forward.bits has no effect: it requires quantizer.step = 0 and no rate");
  has(told_of(two + "\"fp16\"\nboundary.forward.quantizer.scale = \"channel\""),
      "scale has no effect: it requires codec = \"directq\"");
  has(told_of(two + "\"aqsgd\"\nevaluation.changes = \"direct\""),
      "evaluation.changes has no effect: it requires evaluation.boundary = \"codec\" or \"both\"");
  has(told_of(two + "\"directq\"\nevaluation.boundary = \"codec\"\nevaluation.changes = "
                    "\"direct\""),
      "boundary.forward.codec = \"aqsgd\"");
  has(told_of("pipeline.stages = 2\nboundary.backward.codec = \"directq\"\n"
              "boundary.backward.topk = 0.5"),
      "boundary.backward.topk has no effect");
  has(told_of(two + "\"fp16\"\nboundary.forward.quantizer.rounding = \"stochastic\""), "rounding");
  has(told_of(two + "\"directq\"\nboundary.forward.memory.first_visit = \"fp32\""), "first_visit");
  for (const char* const codec : {"\"directq\"", "\"aqsgd\"",
                                  "\"auto\"\nboundary.forward.rate = 2\n"
                                  "boundary.forward.memory.first_visit = \"fp32\""})
    has(told_of(two + codec + "\nboundary.forward.memory.first_visit_step = 0.3"),
        "first_visit_step has no effect: it requires memory.first_visit = \"steps\"");
  has(told_of(two + "\"directq\"\nboundary.forward.feedback.of = \"position\""),
      "it requires feedback.kind");
  has(told_of(two + "\"directq\"\nboundary.forward.quantizer.scale = "
                    "\"channel\"\nboundary.forward.quantizer.tile = 8"),
      "tile has no effect: it requires quantizer.scale = \"tile\"");
  has(told_of(two + "\"auto\"\nboundary.forward.quantizer.budget = \"time\""), "it requires rate");
  has(told_of(two + "\"auto\"\nboundary.forward.rate = 2\nboundary.forward.quantizer.budget = "
                    "\"time\""),
      "it requires a network.bandwidth");
  const std::string error = "\nboundary.error = 0.1\nboundary.forward.rate = 2";
  has(told_of("pipeline.stages = 2\nboundary.error = 0.1"), "boundary.error has no effect");
  has(told_of(two + "\"auto\"" + error),
      "boundary.error has no effect: it requires codec = \"auto\"");
  CHECK(told_of(two + "\"auto\"" + error + "\nboundary.backward.codec = \"auto\"").empty());
}

TEST_CASE("warnings name keys of [model.new] that another architecture has") {
  const auto told_of_model = [](const std::string& type, const std::string& keys) {
    const bool is_image = type == "vit" || type == "resnet";
    return told_of("model.new.type = \"" + type + "\"\n" + keys +
                   (is_image ? "\ndata.kind = \"images\"" : ""));
  };
  CHECK(told_of_model("gpt2", "model.new.depths = [1, 1]") ==
        "model.new.depths has no effect on a model of type \"gpt2\"");
  CHECK(told_of_model("bert", "model.new.patch_size = 8").find("patch_size") != std::string::npos);
  CHECK(told_of_model("vit", "model.new.stem = \"imagenet\"").find("stem") != std::string::npos);
  CHECK(told_of_model("resnet", "model.new.n_layer = 8").find("n_layer") != std::string::npos);
  CHECK(told_of_model("resnet", "model.new.depths = [1, 1]\nmodel.new.n_embd = 16").empty());
  CHECK(told_of_model("vit", "model.new.patch_size = 8\nmodel.new.n_layer = 2").empty());
  CHECK(told_of("model.path = \"m\"\nmodel.new.depths = [1, 1]").empty());
}

TEST_CASE("settings of replicas and links that join nothing are warned of") {
  const std::string replicas = "pipeline.replicas = 2\n";
  CHECK(told_of("replicas.codec = \"topk\"") ==
        "replicas.codec has no effect: it requires pipeline.replicas = 2 or more");
  CHECK(told_of("pipeline.replicas = 2\nreplicas.codec = \"quantized\"\nreplicas.bits = 4\n"
                "training.epochs = 3\nreplicas.warmup_epochs = 3") ==
        "replicas.codec has no effect: it requires replicas.warmup_epochs below training.epochs");
  CHECK(told_of("replicas.codec = \"adam_moment\"\nreplicas.warmup_epochs = 0.5").empty());
  CHECK(told_of(replicas + "replicas.codec = \"topk\"").empty());
  const std::string local = "replicas.local_steps = 4\ntraining.evaluate_every = 4\n";
  CHECK(told_of(local).find("replicas.local_steps is set and there is one replica") == 0);
  CHECK(told_of(replicas + local + "replicas.outer_momentum = 0.9").empty());
  CHECK(told_of(replicas + "replicas.outer_momentum = 0.9") ==
        "replicas.outer_momentum has no effect: it requires replicas.local_steps");
  CHECK(told_of(replicas + "replicas.outer_learning_rate = 0.7").find("outer_learning_rate") !=
        std::string::npos);
  CHECK(told_of(
            "replicas.codec = \"adam_moment\"\nreplicas.warmup_epochs = 0.5\nreplicas.bits = 4") ==
        "replicas.bits has no effect: it requires pipeline.replicas = 2 or more");
  CHECK(told_of(replicas + "replicas.warmup_epochs = 1").find("warmup_epochs has no effect") !=
        std::string::npos);
  CHECK(told_of("network.bandwidth = 1e6").find("set pipeline.stages") != std::string::npos);
  CHECK(told_of(replicas + "network.latency = 0.1").find("[network.replicas]") !=
        std::string::npos);
  CHECK(told_of(replicas + "network.latency = 0.1\nnetwork.wire = \"rank\"").empty());
  CHECK(told_of("network.latency = 0.1\nnetwork.wire = \"rank\"").find("[network]") == 0);
  CHECK(told_of("network.replicas.latency = 0.1").find("[network.replicas] has no effect") == 0);
  CHECK(told_of(replicas + "network.replicas.latency = 0.1").empty());
}

TEST_CASE("memories that nothing moves are warned of") {
  const std::string moves = "pipeline.stages = 2\nboundary.move_memories = true\n";
  const std::string images = "data.kind = \"images\"\n", crops = "data.images.padding = 1\n";
  const std::string no_effect = "boundary.move_memories has no effect: it requires ";
  CHECK(told_of(moves) == no_effect + "data.kind = \"images\"");
  CHECK(told_of(moves + images) == no_effect + "data.images.padding");
  CHECK(told_of(moves + images + "data.images.flip = true") == no_effect + "data.images.padding");
  const std::string codec = "boundary.forward.codec = \"aqsgd\"";
  for (const char* const other :
       {"", "boundary.forward.codec = \"topk\"",
        "boundary.backward.codec = \"topk\"\nboundary.backward.feedback.kind = \"ef\"\n"
        "boundary.backward.feedback.of = \"position\""})
    CHECK(told_of(moves + images + crops + other).find(no_effect + codec) == 0);
  CHECK(told_of(moves + images + crops + codec).empty());
  CHECK(told_of(moves + images + crops +
                "boundary.backward.codec = \"topk\"\n"
                "boundary.backward.feedback.kind = \"ef21\"")
            .empty());
}

TEST_CASE("settings with an effect, or of what is turned off, are not warned of") {
  for (const char* const deck :
       {"", "pipeline.stages = 2", "boundary.error = 0.1",
        // One stage has no boundary, and a codec that is turned off keeps its settings.
        "boundary.forward.codec = \"aqsgd\"\nboundary.forward.quantizer.step = 0.5",
        "pipeline.stages = 2\nboundary.forward.quantizer.step = 0.5\nboundary.forward.topk = 0.2",
        "pipeline.stages = 2\nboundary.forward.codec = \"auto\"\nboundary.backward.codec = "
        "\"auto\"",
        // The deck does not set what \"auto\" sets.
        "pipeline.stages = 2\nboundary.forward.codec = \"auto\"\nboundary.forward.quantizer.error "
        "= "
        "0.1\nboundary.forward.memory.first_visit = \"fp32\"",
        "pipeline.stages = 2\nboundary.forward.codec = \"auto\"\nboundary.forward.quantizer.step = "
        "0.9",
        "pipeline.stages = 2\nboundary.forward.codec = \"topk\"\nboundary.forward.sparse.values = "
        "\"codes\"\nboundary.forward.quantizer.tile = 8",
        "pipeline.stages = 2\nboundary.forward.codec = \"aqsgd\"\nboundary.forward.quantizer.scale "
        "= "
        "\"channel\"\nboundary.forward.quantizer.tile = 32",
        "pipeline.stages = 2\nboundary.forward.codec = "
        "\"aqsgd_topk\"\nboundary.forward.quantizer.tile = 32\n"
        "boundary.forward.memory.first_visit = \"quantize8\"",
        "pipeline.stages = 2\nboundary.forward.codec = \"auto\"\nboundary.forward.quantizer.tile = "
        "128",
        "pipeline.stages = 3\nnetwork.bandwidth = [1e6, 2e6]\nboundary.forward.codec = \"auto\"\n"
        "boundary.forward.rate = 2\nboundary.forward.quantizer.budget = \"time\"",
        "pipeline.stages = 2\nboundary.forward.codec = \"aqsgd\"\nevaluation.boundary = \"both\"\n"
        "evaluation.changes = \"direct\""})
    CHECK(told_of(deck) == "");
}

TEST_CASE("missed targets are reported with the reason, and those that were met are not") {
  const auto warnings = [](const std::string& targets, const std::vector<double>& totals) {
    return warnings_of_targets(parse_deck("pipeline.stages = 3\nboundary.forward.codec = \"auto\"\n"
                                          "boundary.backward.codec = \"auto\"\n" +
                                              targets,
                                          "d.toml"),
                               totals);
  };
  // bits, values, error2, signal2, steered, at the least step, at the largest one
  const std::vector<double> none(kStepTotals, 0.0);
  const auto totals_of = [&](const std::vector<std::vector<double>>& ends) {
    std::vector<double> all;
    for (const auto& end : ends) all.insert(all.end(), end.begin(), end.end());
    return all;
  };
  const std::vector<double> held = {2010, 1000, 0, 0, 10, 0, 0};
  const std::vector<double> over = {2400, 1000, 0, 0, 10, 0, 4};
  const std::vector<double> under = {1500, 1000, 0, 0, 10, 5, 0};
  const std::string bits = "boundary.forward.rate = 2";
  CHECK(warnings(bits, totals_of({held, none, held, none})).empty());
  CHECK(warnings("", totals_of({over, none, over, none})).empty());
  auto told = warnings(bits, totals_of({held, none, over, over}));
  REQUIRE(told.size() == 1);
  CHECK(told[0] ==
        "boundary.forward.rate = 2 was missed at boundary 1: 2.4 bits per value were sent; "
        "40 % of the messages had the largest step, 2.5");
  told = warnings(bits, totals_of({under, over, held, over}));
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("boundary 0: 1.5 bits per value were sent; 50 % of the messages had the least "
                     "step, 0.05") != std::string::npos);
  told = warnings(bits, totals_of({{4200, 1000, 0, 0, 0, 0, 0}, none, held, none}));
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("first visits have formats of their own") != std::string::npos);
  told = warnings(bits, totals_of({{2200, 1000, 0, 0, 3, 0, 0}, none, held, none}));
  REQUIRE(told.size() == 1);
  CHECK(told[0].find("too short") != std::string::npos);

  const std::string error = "boundary.backward.quantizer.error = 0.1";
  const std::vector<double> fine = {0, 0, 0.9, 100, 10, 0, 10}, coarse = {0, 0, 4, 100, 10, 10, 0};
  told = warnings(error, totals_of({none, fine, none, coarse}));
  REQUIRE(told.size() == 1);
  CHECK(told[0] ==
        "boundary.backward.quantizer.error = 0.1 was missed at boundary 1: 0.2 was the relative "
        "error; "
        "100 % of the messages had the least step, 0.05");
}

TEST_CASE("ranks that emulate bf16 are warned of where the deck asks for bf16") {
  Settings settings;
  CHECK(warnings_of_precision(settings, {.count = 1, .all = 1}).empty());
  CHECK(emulating_ranks(settings).count == 0);
  settings.training.precision = ProductPrecision::bf16;
  CHECK(warnings_of_precision(settings, {.count = 0, .all = 4}).empty());
  CHECK_THAT(warnings_of_precision(settings, {.count = 1, .all = 1}).at(0),
             Catch::Contains("is emulated here, slower than \"fp32\""));
  CHECK_THAT(warnings_of_precision(settings, {.count = 1, .all = 4}).at(0),
             Catch::Contains("is emulated on 1 of 4 ranks, slower than \"fp32\""));
  CHECK(emulating_ranks(settings).count == (has_fast_bf16_gemm() ? 0 : 1));
}

TEST_CASE("relative errors that stay large are reported once for each boundary and direction") {
  const Settings settings = parse_deck(
      "pipeline.stages = 3\nboundary.forward.codec = \"topk\"\nboundary.backward.codec = "
      "\"auto\"\n",
      "d.toml");
  ErrorWatch watch(settings);
  const double unmeasured = std::numeric_limits<double>::quiet_NaN();
  const auto told = [&](std::uint64_t step, std::vector<double> forward,
                        std::vector<double> backward) {
    StepRecord record;
    record.step = step;
    record.forward.error = std::move(forward);
    record.backward.error = std::move(backward);
    return watch.look_at(record);
  };
  CHECK(told(1, {0.9, 0.1}, {0.7, 0.2}).empty());  // 0.7 is not above it
  CHECK(told(2, {unmeasured, unmeasured}, {unmeasured, unmeasured}).empty());
  auto warnings = told(11, {0.8, 0.9}, {0.9, 0.2});
  REQUIRE(warnings.size() == 1);
  CHECK(
      warnings[0] ==
      "activations at boundary 0 arrive with a relative error of 0.80 (steps 1 to 11), from which "
      "models learn little; set a larger boundary.forward.topk");
  CHECK(told(21, {0.8, 0.5}, {0.6, 0.2}).empty());  // back below it in time, and told already
  CHECK(told(31, {0.8, 0.9}, {76, 0.2}).empty());
  warnings = told(41, {0.8, 0.5}, {76, 0.2});
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0].find("gradients at boundary 0") != std::string::npos);
  CHECK(warnings[0].find("set a smaller boundary.backward.quantizer.error than 0.1") !=
        std::string::npos);
}
