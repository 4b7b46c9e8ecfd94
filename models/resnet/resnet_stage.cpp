// SPDX-License-Identifier: BSD-3-Clause
#include "models/resnet/resnet_stage.hpp"

#include <fmt/format.h>

#include "models/blocks/classification_head.hpp"
#include "models/blocks/convolution_stem.hpp"
#include "models/blocks/residual_block.hpp"

namespace deltapipe {

namespace {

/// Returns the shape of what enters a stage. Rows lie over every `stride`th pixel, from the first
/// one on, because convolutions pad their input by half a kernel.
BoundaryShape input_of(const ResnetConfig& config, const StagePart& part) {
  const std::vector<ResidualShape> blocks = config.block_shapes();
  const ImageShape shape = part.first ? config.image : blocks[part.first_block].input;
  int stride = part.first ? 1 : config.stem.stride * (config.stem.pools ? 2 : 1);
  for (int i = 0; i < part.first_block; ++i) stride *= blocks[i].stride;
  return {shape.height * shape.width,
          shape.channels,
          {.height = shape.height, .width = shape.width, .stride = stride}};
}

}  // namespace

template <class Real>
StageParts<Real> parts_of(const ResnetConfig& config, const StagePart& part,
                          ParameterArena<Real>& parameters) {
  const std::vector<ResidualShape> shapes = config.block_shapes();
  const BoundaryShape input = input_of(config, part);
  StageParts<Real> parts;
  parts.input_shape = [input](int) { return input; };
  int bucket = 0;
  if (part.first) {
    parts.first = std::make_unique<PixelInput<Real>>();
    parts.blocks.push_back({std::make_unique<ConvolutionStem<Real>>(
                                parameters, "embedder.embedder", config.stem_convolution(),
                                config.stem.pools, config.norm, bucket),
                            bucket});
    ++bucket;
  }
  for (int i = part.first_block; i < part.first_block + part.blocks; ++i, ++bucket) {
    const ResnetConfig::Place place = config.place(i);
    const std::string prefix =
        fmt::format("encoder.stages.{}.layers.{}.", place.group, place.index);
    parts.blocks.push_back(
        {std::make_unique<ResidualBlock<Real>>(parameters, prefix, shapes[i], config.norm, bucket),
         bucket});
  }
  if (part.last)
    parts.last = std::make_unique<ClassificationHead<Real>>(
        parameters, ClassificationNames{.dense = "", .output = "classifier.1"},
        ClassificationOptions{.channels = config.channels.back(),
                              .classes = static_cast<int>(config.classes.size()),
                              .pooling = Pooling::mean,
                              .layout = WeightLayout::outputs_inputs},
        bucket);
  return parts;
}

ModelCost resnet_cost(const ResnetConfig& config) {
  double blocks = 0;
  for (const ResidualShape& shape : config.block_shapes()) {
    for (const ConvolutionShape& convolution : shape.path()) blocks += convolution.operations();
    if (shape.has_projection()) blocks += shape.projection().operations();
  }
  const auto classes = static_cast<double>(config.classes.size());
  return {.block = 3 * blocks / config.blocks(),
          .head = 3 * 2 * config.channels.back() * classes,
          .stem = 2 * config.stem_convolution().operations()};
}

template StageParts<float> parts_of(const ResnetConfig&, const StagePart&, ParameterArena<float>&);
template StageParts<double> parts_of(const ResnetConfig&, const StagePart&,
                                     ParameterArena<double>&);

}  // namespace deltapipe
