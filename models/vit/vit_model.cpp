// SPDX-License-Identifier: BSD-3-Clause
#include "models/vit/vit_model.hpp"

#include <fmt/format.h>

#include "core/base/error.hpp"

namespace deltapipe {

const WeightNames& vit_names() {
  static const WeightNames names = {
      "ViTForImageClassification",
      "vit.",
      {"classifier.weight", "classifier.bias"},
      {"embeddings.", "encoder.layer.", "layernorm.", "classifier."},
      "num_hidden_layers",
      "encoder.layer.",
      "output.dense.weight",
      {{".attention.qkv.", {".attention.query.", ".attention.key.", ".attention.value."}}}};
  return names;
}

ModelShape VitModel::shape() const {
  return {.blocks = config().layers,
          .channels = config().channels,
          .positions = config().tokens(),
          .image = config().image};
}

std::string VitModel::description() const {
  return fmt::format(
      "ViT of {} blocks x {} channels, images of {} in patches of {} x {}, {} classes",
      config().layers, config().channels, text_of(config().image), config().patch, config().patch,
      config().classes.size());
}

std::unique_ptr<Model> load_vit(const ConfigFile& file, const SafetensorsReader* weights,
                                std::vector<std::string>& warnings) {
  return load_classifier<VitModel>(file, weights, vit_names(), {"classifier"}, warnings);
}

std::unique_ptr<Model> create_vit(const NewModel& shape) {
  auto config = new_encoder<VitConfig>(shape);
  if (shape.image.values() > 0) {  // else the data are no images, which is refused later
    if (shape.image.height % shape.patch != 0 || shape.image.width % shape.patch != 0)
      throw UserError({.what = "model.new.patch_size does not divide the images' sides",
                       .value = fmt::format("{}, images of {}", shape.patch, text_of(shape.image)),
                       .remedy = "use a divisor of height and width",
                       .keys = {"model.new.patch_size"}});
    config.image = shape.image;
    config.patch = shape.patch;
  }
  config.check("[model.new]");
  return std::make_unique<VitModel>(std::move(config));
}

}  // namespace deltapipe
