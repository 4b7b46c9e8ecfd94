// SPDX-License-Identifier: BSD-3-Clause
// ResnetStage against what transformers computes (tests/golden/make_resnet_fixtures.py).
#include <catch2/catch.hpp>

#include "core/kernels/gemm/blas.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/resnet/resnet_model.hpp"
#include "support/golden_classifier.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kSamples = 4;
const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_resnet";

ImageShape image_of(const std::string& name) {
  if (name == "model") return {13, 17, 3};
  return name == "cifar" ? ImageShape{9, 7, 1} : ImageShape{22, 19, 2};
}

ResnetConfig read_config(const std::string& name) {
  const ConfigFile file = read_config_file(kFixtures + "/" + name);
  ResnetConfig config = ResnetConfig::read(file);
  config.image = image_of(name);
  config.classes = classes_of_classifier(file);
  return config;
}

StageCapacity capacity_of(bool split, bool recompute) {
  StageCapacity capacity;
  capacity.samples = kSamples;
  capacity.splits_backward = split;
  capacity.recompute = recompute;
  return capacity;
}

template <class Real>
class Resnet final : public GoldenClassifier<Real> {
 public:
  Resnet(const std::string& name, const ResnetConfig& config, bool split, bool recompute,
         const OptimizerSettings& settings = {})
      : GoldenClassifier<Real>(
            std::make_unique<ResnetStage<Real>>(config, StagePart{0, config.blocks(), true, true}),
            resnet_names(), kFixtures + "/" + name, capacity_of(split, recompute),
            static_cast<int>(config.classes.size()), settings),
        values_(kSamples * config.image.values()),
        lengths_(to_device(std::vector<std::int32_t>(kSamples, 1))) {}

 private:
  void set_inputs(const hdf5::Location& golden, std::size_t step, MicroBatch& batch) override {
    images_ = to_device(batch_of<float>(golden, "images", step, values_));
    batch.fields.set(Field::values, images_);
    batch.length_B = lengths_;
  }

  std::size_t values_;
  Vector<float> images_;
  Vector<std::int32_t> lengths_;  ///< an image is one row of the data
};

}  // namespace

TEMPLATE_TEST_CASE("A ResNet's probabilities, loss and gradients are those of transformers",
                   "[models][resnet][golden]", float, double) {
  use_single_threaded_blas();
  const std::string name = GENERATE("model", "bottleneck", "cifar");
  const bool split = GENERATE(false, true), recompute = GENERATE(false, true);
  if (split && recompute) return;
  CAPTURE(name, split, recompute);
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const ResnetConfig config = read_config(name);
  Resnet<TestType> resnet(name, config, split, recompute);
  check_gradients(resnet, file.open_group(name), static_cast<int>(config.classes.size()));
}

TEMPLATE_TEST_CASE("Ten steps of AdamW and SGD with a ResNet are those of PyTorch",
                   "[models][resnet][golden]", float, double) {
  const std::string name = GENERATE("model", "bottleneck", "cifar");
  const char* const training = GENERATE("training", "sgd");
  CAPTURE(name, training);
  // In fp32 a value crosses a relu's kink, and AdamW's steps do not shrink with the gradient.
  const bool is_chaotic = name == "bottleneck" && std::string(training) == "training";
  if (is_chaotic && std::is_same_v<TestType, float>) return;
  const hdf5::File file = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const hdf5::Group golden = file.open_group(name);
  Resnet<TestType> resnet(name, read_config(name), false, true,
                          golden_settings(golden.open_group(training)));
  check_training(resnet, golden, training);
}

TEST_CASE("A ResNet's configuration is read and checked", "[models][resnet]") {
  CHECK(read_config("cifar").stem == kCifarStem);
  CHECK(read_config("model").stem == kImagenetStem);
  CHECK(read_config("model").blocks() == 3);
  const auto message = [](const char* patch) {
    return refusal_of<ResnetConfig>(kFixtures + "/model", patch);
  };
  using Catch::Matchers::Contains;
  CHECK(message("{}").empty());
  CHECK_THAT(message(R"({"depths": [1]})"), Contains("same number of entries"));
  CHECK_THAT(message(R"({"depths": [0, 1]})"), Contains("'depths' must be a list"));
  CHECK_THAT(message(R"({"hidden_sizes": []})"), Contains("'hidden_sizes' must be a list"));
  CHECK_THAT(message(R"({"layer_type": "wide"})"), Contains("'layer_type' must be"));
  CHECK_THAT(message(R"({"layer_type": "bottleneck", "hidden_sizes": [6, 8]})"),
             Contains("multiples of 4"));
  CHECK_THAT(message(R"({"hidden_act": "gelu"})"), Contains("hidden_act"));
  CHECK_THAT(message(R"({"stem_kernel_size": 4})"), Contains("must be odd"));
  CHECK_THAT(message(R"({"image_size": 0})"), Contains("'image_size' must be"));
}
