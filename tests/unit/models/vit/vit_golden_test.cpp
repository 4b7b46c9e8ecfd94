// SPDX-License-Identifier: BSD-3-Clause
// VitStage against what transformers computes (tests/golden/make_vit_fixtures.py).
#include <catch2/catch.hpp>

#include "core/kernels/gemm/blas.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/vit/vit_model.hpp"
#include "support/golden_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSamples = 4;
const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_vit";

VitConfig read_config(const std::string& name) {
  const ConfigFile file = read_config_file(kFixtures + "/" + name);
  VitConfig config = VitConfig::read(file);
  config.classes = classes_of_classifier(file);
  return config;
}

StageCapacity capacity_of(const VitConfig& config, bool split, bool recompute) {
  StageCapacity capacity;
  capacity.samples = kSamples;
  capacity.tokens = config.tokens();
  capacity.splits_backward = split;
  capacity.recompute = recompute;
  return capacity;
}

template <class Real>
class Vit final : public GoldenClassifier<Real> {
 public:
  Vit(const std::string& name, const VitConfig& config, bool split, bool recompute,
      const OptimizerSettings& settings = {})
      : GoldenClassifier<Real>(
            std::make_unique<VitStage<Real>>(config, StagePart{0, config.layers, true, true}),
            vit_names(), kFixtures + "/" + name, capacity_of(config, split, recompute),
            static_cast<int>(config.classes.size()), settings),
        values_(kSamples * config.image.values()) {}

 private:
  void set_inputs(const hdf5::Location& golden, std::size_t step, MicroBatch& batch) override {
    images_ = to_device(batch_of<float>(golden, "images", step, values_));
    batch.fields.set(Field::values, images_);
  }

  std::size_t values_;
  Vector<float> images_;
};

}  // namespace

TEMPLATE_TEST_CASE("A ViT's probabilities, loss and gradients are those of transformers",
                   "[models][vit][golden]", float, double) {
  use_single_threaded_blas();
  const std::string name = GENERATE("model", "wide");
  const bool split = GENERATE(false, true), recompute = GENERATE(false, true);
  if (split && recompute) return;
  CAPTURE(name, split, recompute);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const VitConfig config = read_config(name);
  Vit<TestType> vit(name, config, split, recompute);
  check_gradients(vit, file.open_group(name), static_cast<int>(config.classes.size()));
}

TEMPLATE_TEST_CASE("Ten steps of AdamW and SGD with a ViT are those of PyTorch",
                   "[models][vit][golden]", float, double) {
  const std::string name = GENERATE("model", "wide");
  const char* const training = GENERATE("training", "sgd");
  CAPTURE(name, training);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group(name);
  Vit<TestType> vit(name, read_config(name), false, false,
                    golden_settings(golden.open_group(training)));
  check_training(vit, golden, training);
}

TEST_CASE("A ViT's configuration is read and checked", "[models][vit]") {
  CHECK(read_config("wide").image == ImageShape{6, 9, 1});
  CHECK(read_config("wide").tokens() == 7);
  const auto message = [](const char* patch) {
    return refusal_of<VitConfig>(kFixtures + "/model", patch);
  };
  using Catch::Matchers::Contains;
  CHECK(message("{}").empty());
  CHECK_THAT(message(R"({"image_size": 13})"), Contains("must be a multiple of 'patch_size'"));
  CHECK_THAT(message(R"({"image_size": [12]})"), Contains("'image_size' must be"));
  CHECK_THAT(message(R"({"num_channels": 0})"), Contains("'num_channels' must be"));
  CHECK_THAT(message(R"({"hidden_act": "silu"})"), Contains("'hidden_act' must be one of"));
  CHECK_THAT(message(R"({"qkv_bias": false})"), Contains("qkv_bias"));
  CHECK_THAT(message(R"({"num_attention_heads": 5})"), Contains("must be a multiple of"));
}
