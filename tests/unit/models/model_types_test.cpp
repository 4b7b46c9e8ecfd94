// SPDX-License-Identifier: BSD-3-Clause
#include <catch2/catch.hpp>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "models/model.hpp"
#include "support/device_values.hpp"
#include "support/kernel_labels.hpp"
#include "tests/unit/core/files/files_support.hpp"

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
  shape.class_names = {"no", "yes", "may\"be"};
  shape.image = {4, 4, 3};
  shape.patch = 2;
  shape.depths = {2, 1};
  return shape;
}

/// A small model of every type, and a GPT-2 without classes.
struct Made {
  std::string name;
  std::unique_ptr<Model> model;
};
std::vector<Made> small_models() {
  std::vector<Made> models;
  for (const ModelType& type : model_types())
    models.push_back({type.name, type.create(small_model())});
  NewModel shape = small_model();
  shape.class_names.clear();
  models.push_back({"language model", model_types()[0].create(shape)});
  return models;
}

/// Returns the elements of parameters that are not copies of another stage's.
std::size_t elements(const std::vector<ParameterInfo>& parameters) {
  return std::accumulate(
      parameters.begin(), parameters.end(), std::size_t{0},
      [](std::size_t sum, const ParameterInfo& p) { return sum + (p.copied ? 0 : p.size); });
}

}  // namespace

TEST_CASE("Every model type makes a model that its config.json brings back", "[model_types]") {
  std::set<std::string> names;
  for (const ModelType& type : model_types()) {
    CAPTURE(type.name);
    CHECK(names.insert(type.name).second);
    const std::unique_ptr<Model> made = type.create(small_model());
    const bool is_convolutional = std::string(type.name) == "resnet";
    if (is_convolutional)
      CHECK_THROWS_AS(made->set_dropout({0.25, -1, 0.25}), UserError);
    else
      made->set_dropout({0.25, -1, 0.25});
    const deltapipe::testing::TemporaryDirectory directory;
    made->save_configuration(directory.path(), Precision::fp32);
    std::vector<std::string> warnings;
    const std::unique_ptr<Model> read = load_model(directory.path(), nullptr, warnings);
    CHECK(warnings.empty());
    CHECK(read->configuration() == made->configuration());
    CHECK(read->description() == made->description());
    const double dropout = is_convolutional ? 0 : 0.25;
    CHECK(read->dropout().embedding == dropout);
    CHECK(read->dropout().attention == 0);
    CHECK(read->dropout().residual == dropout);
    const ModelShape shape = read->shape();
    CHECK(shape.blocks == 3);
    CHECK(shape.channels == (is_convolutional ? 16 : 8));  // of the last group
    CHECK(shape.positions == (is_convolutional ? 1 : 5));
    CHECK(shape.vocabulary == (shape.image.channels > 0 ? 0 : 11));
  }
}

TEST_CASE("The stages of a model fit and have all of its parameters between them",
          "[model_types]") {
  constexpr int kTokens = 4;
  for (const auto& [name, model] : small_models()) {
    CAPTURE(name);
    const std::size_t whole = elements(model->parameters(stage_part({3}, 0)));
    std::size_t sum = 0;
    BoundaryShape before;
    for (int s = 0; s < 3; ++s) {
      const std::unique_ptr<Stage<float>> stage = model->make_stage(stage_part({1, 1, 1}, s));
      sum += elements(stage->parameters().info());
      if (s > 0) CHECK(stage->input_shape(kTokens) == before);
      before = stage->output_shape(kTokens);
      CHECK(before.tokens > 0);
      CHECK(before.channels > 0);
      const TokenEmbedding<float>* const embedding = stage->token_embedding();
      if (s == 1) CHECK(embedding == nullptr);
      if (s == 2 && embedding) CHECK(embedding->shared());
      if (embedding && embedding->wte() >= 0)
        CHECK(stage->parameters().info()[embedding->wte()].shape[1] ==
              static_cast<std::uint64_t>(embedding->embedding_channels()));
    }
    CHECK(sum == whole);
  }
}

TEST_CASE("The first stage of a model has a copy of a shared embedding that is frozen",
          "[model_types][frozen]") {
  for (const auto& [name, model] : small_models()) {
    CAPTURE(name);
    const std::unique_ptr<Stage<float>> alone = model->make_stage(stage_part({3}, 0));
    const TokenEmbedding<float>* embedding = alone->token_embedding();
    if (embedding == nullptr || !embedding->shared()) continue;
    const ParameterInfo table = alone->parameters().info()[embedding->wte()];
    CHECK_FALSE(table.copied);
    CHECK(embedding->lends_rows());
    CHECK(model->make_stage(stage_part({1, 1, 1}, 0))->token_embedding()->wte() < 0);

    model->freeze({table.name});
    CHECK(elements(model->parameters(stage_part({3}, 0))) == elements(alone->parameters().info()));
    std::size_t own = 0;
    for (int s = 0; s < 3; ++s) {
      CAPTURE(s);
      const std::unique_ptr<Stage<float>> stage = model->make_stage(stage_part({1, 1, 1}, s));
      std::vector<std::string> copies;
      for (const ParameterInfo& p : stage->parameters().info())
        if (p.copied) {
          copies.push_back(p.name);
          CHECK(p.frozen);
          CHECK(p.shape == table.shape);
        } else {
          own += p.size;
        }
      CHECK(copies == (s == 0 ? std::vector<std::string>{table.name} : std::vector<std::string>()));
      embedding = stage->token_embedding();
      if (s == 1) continue;
      CHECK_FALSE(embedding->lends_rows());
      REQUIRE(embedding->wte() >= 0);
      CHECK(stage->parameters().info()[embedding->wte()].name == table.name);
    }
    CHECK(own == elements(alone->parameters().info()));

    // The same values as the owner's, without memory for rows that do not come.
    const std::unique_ptr<Stage<float>> first = model->make_stage(stage_part({1, 1, 1}, 0));
    const std::unique_ptr<Stage<float>> last = model->make_stage(stage_part({1, 1, 1}, 2));
    for (Stage<float>* const stage : {first.get(), last.get()}) {
      stage->parameters().allocate(true);
      model->initialise(7, stage->parameters());
    }
    CHECK(test::to_host(first->parameters().value(first->token_embedding()->wte())) ==
          test::to_host(last->parameters().value(last->token_embedding()->wte())));
    StageCapacity capacity;
    capacity.tokens = 4;
    capacity.embedding_rows = 4;
    CHECK(first->memory(capacity).bytes(MemoryUse::embeddings) == 0);
  }
}

namespace {

std::uint64_t allocated = 0;

void count_allocation(Kokkos_Profiling_SpaceHandle, const char*, const void*, std::uint64_t bytes) {
  allocated += bytes;
}

}  // namespace

TEST_CASE("A stage takes the memory that it says, and none before", "[model_types][stage]") {
  namespace tools = Kokkos::Tools::Experimental;
  const bool training = GENERATE(true, false);
  const bool recompute = GENERATE(true, false);
  CAPTURE(training, recompute);
  StageCapacity capacity;
  capacity.samples = 3;
  capacity.tokens = 5;
  capacity.slots = 2;
  capacity.micro_batches = 4;
  capacity.embedding_rows = 7;
  capacity.training = training;
  capacity.recompute = recompute;
  capacity.input_gradient = GENERATE(true, false);
  const int every_frozen = GENERATE(0, 1, 3);  // none, all, every third tensor
  capacity.keeps_text = !training && GENERATE(true, false);
  if (!capacity.keeps_text)
    capacity.products = GENERATE(ProductPrecision::fp32, ProductPrecision::bf16);
  if (capacity.keeps_text) capacity.samples = 1;
  CAPTURE(capacity.input_gradient, every_frozen, capacity.keeps_text);
  for (const auto& [name, model] : small_models()) {
    CAPTURE(name);
    std::set<std::string> frozen;
    const std::vector<ParameterInfo> parameters = model->parameters(stage_part({3}, 0));
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (every_frozen > 0 && i % every_frozen == 0) frozen.insert(parameters[i].name);
    model->freeze(frozen);
    for (const std::vector<int>& partition : {std::vector<int>{3}, {1, 1, 1}})
      for (int s = 0; s < static_cast<int>(partition.size()); ++s) {
        allocated = 0;
        tools::set_allocate_data_callback(count_allocation);
        const std::unique_ptr<Stage<float>> stage = model->make_stage(stage_part(partition, s));
        stage->parameters().set_moments(1 + s % 2);
        const MemoryLedger said = stage->memory(capacity);
        // Whatever multiplies, a parameter takes four bytes; tensors start on cache lines.
        std::uint64_t least = 0;
        for (const ParameterInfo& p : stage->parameters().info()) least += 4 * p.size;
        CHECK(said.bytes(MemoryUse::weights) >= least);
        CHECK(said.bytes(MemoryUse::weights) <= least + 2 * 62 * stage->parameters().info().size());
        const std::uint64_t before = allocated;
        stage->parameters().allocate(training, capacity.products);
        stage->reserve(capacity);
        deltapipe::test::watch_kernel_labels();
        CHECK(before == 0);
        // Kokkos adds a header to each View.
        CHECK(allocated >= said.host_bytes() + said.device_bytes());
        CHECK(allocated <= said.host_bytes() + said.device_bytes() + 128 * 200);
        CHECK(said.host_bytes() + said.device_bytes() > 0);
      }
  }
}

TEST_CASE("The gradients at a stage's ends alias nothing that their contract keeps apart",
          "[model_types][stage]") {
  StageCapacity capacity;
  capacity.samples = 2;
  capacity.tokens = 4;
  capacity.slots = 2;
  capacity.embedding_rows = 8;
  const int rows = 2 * 4;
  using Range = std::pair<const float*, const float*>;
  const auto range = [](const MatrixRef<float>& m) { return Range(m.data(), m.data() + m.size()); };
  const auto overlap = [](const Range& a, const Range& b) {
    return std::less<>()(a.first, b.second) && std::less<>()(b.first, a.second);
  };
  for (const auto& [name, model] : small_models()) {
    CAPTURE(name);
    const std::unique_ptr<Stage<float>> stage = model->make_stage(stage_part({1, 1, 1}, 1));
    stage->parameters().allocate(true);
    stage->reserve(capacity);
    std::vector<Range> activations, gradients;
    for (int slot = 0; slot < capacity.slots; ++slot) {
      activations.push_back(range(stage->input(slot, rows)));
      activations.push_back(range(stage->output(slot, rows)));
      gradients.push_back(range(stage->output_gradient(slot, rows)));
      gradients.push_back(range(stage->input_gradient(slot, rows)));
    }
    for (std::size_t i = 0; i < activations.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) CHECK_FALSE(overlap(activations[i], activations[j]));
      for (const Range& gradient : gradients) CHECK_FALSE(overlap(activations[i], gradient));
    }
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
  CHECK_THAT(refusal(R"({"model_type": 2})"), Contains("got 2"));
  CHECK_THAT(refusal("{}"), Contains("got none"));
  CHECK_THAT(refusal("[]"), Contains("is not a JSON object"));
  CHECK_THAT(refusal("{"), Contains("is not valid JSON"));
}
