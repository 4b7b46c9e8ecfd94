// SPDX-License-Identifier: BSD-3-Clause
#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "core/base/error.hpp"
#include "files_support.hpp"
#include "models/model.hpp"

using namespace deltapipe;
using Catch::Matchers::Contains;

namespace {

NewModel small_model() {
  NewModel shape;
  shape.blocks = 3;
  shape.heads = 2;
  shape.channels = 8;
  shape.positions = 5;
  shape.vocabulary = 11;
  return shape;
}

std::size_t elements(const std::vector<ParameterInfo>& parameters) {
  return std::accumulate(parameters.begin(), parameters.end(), std::size_t{0},
                         [](std::size_t sum, const ParameterInfo& p) { return sum + p.size; });
}

}  // namespace

TEST_CASE("Every model type makes a model that its config.json brings back", "[model_types]") {
  std::set<std::string> names;
  for (const ModelType& type : model_types()) {
    CAPTURE(type.name);
    CHECK(names.insert(type.name).second);
    const std::unique_ptr<Model> made = type.create(small_model());
    made->set_dropout({0.25, -1, 0.5});
    const deltapipe::testing::TemporaryDirectory directory;
    made->save_configuration(directory.path());
    std::vector<std::string> warnings;
    const std::unique_ptr<Model> read = load_model(directory.path(), nullptr, warnings);
    CHECK(warnings.empty());
    CHECK(read->configuration() == made->configuration());
    CHECK(read->description() == made->description());
    CHECK(read->dropout().embedding == 0.25);
    CHECK(read->dropout().attention == 0);
    CHECK(read->dropout().residual == 0.5);
    const ModelShape shape = read->shape();
    CHECK(shape.blocks == 3);
    CHECK(shape.channels == 8);
    CHECK(shape.positions == 5);
    CHECK(shape.vocabulary == 11);
  }
}

TEST_CASE("The stages of a model have all of its parameters between them", "[model_types]") {
  for (const ModelType& type : model_types()) {
    CAPTURE(type.name);
    const std::unique_ptr<Model> model = type.create(small_model());
    const std::size_t whole = elements(model->parameters(stage_part({3}, 0)));
    std::size_t sum = 0;
    for (int s = 0; s < 3; ++s) {
      const StagePart part = stage_part({1, 1, 1}, s);
      const std::vector<ParameterInfo> parameters = model->parameters(part);
      sum += elements(parameters);
      const std::unique_ptr<Stage<float>> stage = model->make_stage(part, false);
      CHECK(stage->is_first() == (s == 0));
      CHECK(stage->is_last() == (s == 2));
      CHECK(stage->channels() == model->shape().channels);
      CHECK(elements(stage->parameters().info()) == elements(parameters));
    }
    CHECK(sum == whole);
  }
}

TEST_CASE("A model of another type is refused with the known ones", "[model_types]") {
  const deltapipe::testing::TemporaryDirectory directory;
  std::vector<std::string> warnings;
  const auto refusal = [&](const std::string& json) {
    deltapipe::testing::write_bytes(directory / "config.json", json);
    try {
      load_model(directory.path(), nullptr, warnings);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refusal(R"({"model_type": "t5"})"), Contains("got \"t5\"") && Contains("\"gpt2\""));
  CHECK_THAT(refusal("{}"), Contains("got none"));
  CHECK_THAT(refusal("[]"), Contains("is not a JSON object"));
  CHECK_THAT(refusal("{"), Contains("is not valid JSON"));
}
