// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/images.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "core/base/error.hpp"
#include "core/data/split.hpp"

namespace deltapipe {

Images::Images(std::shared_ptr<const LabelledImages> images, std::vector<std::uint32_t> index,
               const ImageSettings& settings, int rows)
    : images_(std::move(images)),
      index_(std::move(index)),
      padding_(settings.padding),
      flips_(settings.flip),
      rows_(rows) {
  const auto channels = static_cast<std::size_t>(images_->shape.channels);
  const auto of_channel = [&](const std::vector<double>& values, std::size_t c) {
    return values[values.size() == 1 ? 0 : c];
  };
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = of_channel(settings.mean, c);
    const double deviation = of_channel(settings.deviation, c);
    scale_C_.push_back(static_cast<float>(1 / (255 * deviation)));
    shift_C_.push_back(static_cast<float>(-mean / deviation));
  }
}

FieldSizes Images::fields() const {
  FieldSizes sizes;
  sizes[Field::values] = static_cast<int>(images_->shape.values());
  sizes[Field::label] = 1;
  return sizes;
}

ImageView Images::view_of(std::uint64_t id, const SampleVisit& visit) const {
  if (!visit.training) return {};
  return draw_view(visit.seed, visit.epoch, id, padding_, flips_);
}

void Images::read(std::uint64_t id, const SampleVisit& visit, const SampleSpans& fields) const {
  const std::size_t image = index_[id];
  if (const auto label = fields.integers(Field::label); !label.empty())
    label[0] = images_->label_N[image];
  const auto values = fields.reals(Field::values);
  if (values.empty()) return;
  const int height = images_->shape.height, width = images_->shape.width;
  const ImageView view = view_of(id, visit);
  const std::uint8_t* const pixels = images_->pixels_NHWC.data() + image * images_->shape.values();
  float* value = values.data();
  for (int y = 0; y < height; ++y) {
    const int from_y = y + view.dy;
    for (int x = 0; x < width; ++x) {
      const int from_x = (view.flipped ? width - 1 - x : x) + view.dx;
      const bool inside = from_y >= 0 && from_y < height && from_x >= 0 && from_x < width;
      const std::size_t place = inside ? static_cast<std::size_t>(from_y * width + from_x) : 0;
      for (std::size_t c = 0; c < scale_C_.size(); ++c) {
        const std::uint8_t pixel = inside ? pixels[place * scale_C_.size() + c] : 0;
        *value++ = static_cast<float>(pixel) * scale_C_[c] + shift_C_[c];
      }
    }
  }
}

std::uint64_t Images::fingerprint() const {
  const std::array<std::uint64_t, 4> shape = {static_cast<std::uint64_t>(images_->shape.height),
                                              static_cast<std::uint64_t>(images_->shape.width),
                                              static_cast<std::uint64_t>(images_->shape.channels),
                                              index_.size()};
  std::uint64_t hash = XXH64(shape.data(), sizeof shape, 0);
  const std::size_t bytes = images_->shape.values();
  for (const std::uint32_t image : index_) {
    hash = XXH64(images_->pixels_NHWC.data() + image * bytes, bytes, hash);
    const auto label = static_cast<std::uint8_t>(images_->label_N[image]);
    if (images_->label_N[image] >= 0) hash = XXH64(&label, 1, hash);
  }
  return hash;
}

namespace {

constexpr std::array kCifar10Names = {"airplane", "automobile", "bird",  "cat",  "deer",
                                      "dog",      "frog",       "horse", "ship", "truck"};

void check_normalisation(const DataSettings& settings, int channels) {
  const auto count = static_cast<std::size_t>(channels);
  for (const auto& [key, values] : {std::pair("data.images.mean", &settings.images.mean),
                                    std::pair("data.images.deviation", &settings.images.deviation)})
    if (values->size() != 1 && values->size() != count)
      throw UserError({.what = std::string(key) + " requires one value, or one for each channel",
                       .value = std::to_string(values->size()) + " values, " +
                                std::to_string(channels) + " channels",
                       .remedy = "give one value, or one for each channel",
                       .keys = {key}});
}

void check_labels(const LabelledImages& images, int classes, const char* key) {
  const auto label = std::ranges::find_if(images.label_N, [&](int l) { return l >= classes; });
  if (label == images.label_N.end()) return;
  throw UserError({.what = "the label of image " + std::to_string(label - images.label_N.begin()) +
                           " is not one of the model's " + std::to_string(classes) + " classes",
                   .value = std::to_string(*label),
                   .remedy = "use a model with more classes",
                   .keys = {key}});
}

std::string counts_text(const LabelledImages& images, const std::vector<std::uint32_t>& index,
                        int classes) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(classes));
  for (const std::uint32_t image : index) ++counts[images.label_N[image]];
  const auto [least, most] = std::ranges::minmax(counts);
  return "training images by class: " + std::to_string(classes) + " classes with " +
         std::to_string(least) + " to " + std::to_string(most) + " images of " +
         text_of(images.shape);
}

}  // namespace

ImageShape image_shape(const DataSettings& settings) {
  const std::vector<std::string>& files =
      settings.train.empty() ? settings.validation : settings.train;
  return image_file_info(files.front(), settings.format).shape;
}

std::vector<std::string> image_classes(const DataSettings& settings) {
  int classes = 0;
  DataFormat format = DataFormat::idx;
  for (const std::string& file : settings.train) {
    const ImageFileInfo info = image_file_info(file, settings.format);
    format = info.format;
    classes = std::max(classes, image_file_classes(file, info));
  }
  if (format == DataFormat::cifar10) return {kCifar10Names.begin(), kCifar10Names.end()};
  if (classes < 2)
    throw UserError({.what = "the training images have fewer than two classes",
                     .value = std::to_string(classes),
                     .keys = {"data.train"}});
  std::vector<std::string> names;
  for (int c = 0; c < classes; ++c) names.push_back(std::to_string(c));
  return names;
}

DataSplit load_images(const DataSettings& settings, const ImageShape& shape, int classes,
                      int rows) {
  const auto read = [&](const std::vector<std::string>& files, const char* key) {
    const auto images = std::make_shared<LabelledImages>(
        read_image_files(files, settings.format, settings.labels_optional));
    if (images->shape != shape)
      throw UserError({.what = "the images have another size than the model's",
                       .value = text_of(images->shape) + " and " + text_of(shape),
                       .remedy = "use images of the model's size, or another model",
                       .keys = {key, "model.path"}});
    if (const int known = classes_of(images->format); known > 0 && known != classes)
      throw UserError({.what = "the model has other classes than the images",
                       .value = std::to_string(classes) + " and " + std::to_string(known),
                       .remedy = "use a model for these images",
                       .keys = {"model.path", key}});
    check_labels(*images, classes, key);
    return images;
  };
  check_normalisation(settings, shape.channels);
  const std::shared_ptr<const LabelledImages> train =
      settings.train.empty()
          ? std::make_shared<LabelledImages>(LabelledImages{DataFormat::idx, shape, {}, {}})
          : read(settings.train, "data.train");
  std::vector<std::uint32_t> index(train->size());
  std::iota(index.begin(), index.end(), 0);
  std::shared_ptr<const LabelledImages> validation = train;
  std::vector<std::uint32_t> held_out;
  if (settings.validation.empty()) {
    held_out = hold_out_at_random(index, settings.validation_fraction);
  } else {
    validation = read(settings.validation, "data.validation");
    held_out.resize(validation->size());
    std::iota(held_out.begin(), held_out.end(), 0);
  }
  limit(index, settings.max_train_samples);
  limit(held_out, settings.max_validation_samples);
  DataSplit split;
  if (!settings.train.empty()) split.notes.push_back(counts_text(*train, index, classes));
  split.train = std::make_shared<Images>(train, std::move(index), settings.images, rows);
  split.validation =
      std::make_shared<Images>(std::move(validation), std::move(held_out), settings.images, rows);
  return split;
}

}  // namespace deltapipe
