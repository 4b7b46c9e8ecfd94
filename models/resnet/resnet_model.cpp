// SPDX-License-Identifier: BSD-3-Clause
#include "models/resnet/resnet_model.hpp"

#include <fmt/format.h>

#include <cmath>
#include <string_view>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// Returns the standard deviation of initial weights, as transformers has it: convolutions keep the
/// variance of gradients through a relu (arXiv 1502.01852, equation 14), the classifier has that of
/// torch.nn.Linear.
double initial_deviation(const ParameterInfo& p) {
  if (p.shape.size() == 2) return 1 / std::sqrt(3.0 * static_cast<double>(p.shape[1]));
  return std::sqrt(2.0 / static_cast<double>(p.shape[0] * p.shape[2] * p.shape[3]));
}

}  // namespace

const WeightNames& resnet_names() {
  static const WeightNames names = {"ResNetForImageClassification",
                                    "resnet.",
                                    {"classifier.1.weight", "classifier.1.bias"},
                                    {"embedder.", "encoder.stages.", "classifier.1."},
                                    "depths",
                                    "encoder.stages.",
                                    "layers.0.layer.0.convolution.weight"};
  return names;
}

ModelShape ResnetModel::shape() const {
  const ImageShape last =
      config().image.height > 0 ? config().block_shapes().back().output() : ImageShape{};
  return {.blocks = config().blocks(),
          .channels = config().channels.back(),
          .positions = 1,
          .image = config().image,
          .normalized_rows = last.height * last.width};
}

std::string ResnetModel::description() const {
  std::string channels;
  for (const int count : config().channels)
    channels += (channels.empty() ? "" : "-") + std::to_string(count);
  return fmt::format("ResNet of {} {} blocks, {} channels, images of {}, {} classes",
                     config().blocks(), config().bottleneck ? "bottleneck" : "basic", channels,
                     text_of(config().image), config().classes.size());
}

void ResnetModel::set_dropout(const DropoutProbabilities& dropout) {
  if (dropout.embedding <= 0 && dropout.attention <= 0 && dropout.residual <= 0) return;
  throw UserError(
      {.what = "a residual network has no dropout",
       .remedy = "remove model.dropout_embedding, model.dropout_attention and "
                 "model.dropout_residual",
       .keys = {"model.dropout_embedding", "model.dropout_attention", "model.dropout_residual"}});
}

void ResnetModel::set_image(const ImageShape& image) {
  if (config().image.height > 0) return;
  config().image.height = image.height;
  config().image.width = image.width;
}

void ResnetModel::initialise(std::uint64_t seed, ParameterArena<float>& parameters) const {
  initialize_normal<float>(seed, initial_deviation, parameters);
}

std::vector<std::string> ResnetModel::saved_counters(const ParameterInfo& parameter) const {
  constexpr std::string_view kVariance = "running_var";
  const std::string name = saved_name(parameter.name);
  if (!name.ends_with(kVariance)) return {};
  return {name.substr(0, name.size() - kVariance.size()) + "num_batches_tracked"};
}

void ResnetModel::check_block_counts(const SafetensorsReader& weights,
                                     const std::string& directory) const {
  const auto groups = static_cast<int>(config().depths.size());
  check_block_count(weights, resnet_names(), directory, groups);
  for (int group = 0; group < groups; ++group) {
    WeightNames blocks = resnet_names();
    blocks.block_prefix += fmt::format("{}.layers.", group);
    blocks.block_tensor = "layer.0.convolution.weight";
    check_block_count(weights, blocks, directory, config().depths[group]);
  }
}

std::unique_ptr<Model> load_resnet(const ConfigFile& file, const SafetensorsReader* weights,
                                   std::vector<std::string>& warnings) {
  return load_classifier<ResnetModel>(file, weights, resnet_names(), {"classifier.1"}, warnings);
}

std::unique_ptr<Model> create_resnet(const NewModel& shape) {
  ResnetConfig config;
  config.image = shape.image;
  if (shape.image.values() == 0) config.image.channels = 3;  // no images, which is refused later
  config.stem = shape.cifar_stem ? kCifarStem : kImagenetStem;
  config.stem_channels = shape.channels;
  config.depths = shape.depths;
  config.channels.clear();
  for (std::size_t group = 0; group < shape.depths.size(); ++group)
    config.channels.push_back(shape.channels << group);
  config.bottleneck = false;
  config.classes = shape.class_names;
  config.check("[model.new]");
  return std::make_unique<ResnetModel>(std::move(config));
}

}  // namespace deltapipe
