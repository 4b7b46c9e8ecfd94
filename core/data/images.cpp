// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/images.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "core/base/error.hpp"
#include "core/data/image_directory.hpp"
#include "core/data/split.hpp"
#include "core/data/text_lines.hpp"

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

std::string Images::file(std::uint64_t id) const {
  return images_->name_N.empty() ? std::string() : images_->name_N[index_[id]];
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
    const std::int16_t label = images_->label_N[image];
    const std::array<std::uint8_t, 2> label_bytes = {static_cast<std::uint8_t>(label),
                                                     static_cast<std::uint8_t>(label >> 8)};
    if (label >= 0) hash = XXH64(label_bytes.data(), label < 256 ? 1 : 2, hash);
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
                       .value = fmt::format("{} values, {} channels", values->size(), channels),
                       .remedy = "give one value, or one for each channel",
                       .keys = {key}});
}

void check_labels(const LabelledImages& images, int classes, const char* key) {
  const auto label = std::ranges::find_if(images.label_N, [&](int l) { return l >= classes; });
  if (label == images.label_N.end()) return;
  throw UserError({.what = fmt::format("the label of image {} is not one of the model's {} classes",
                                       label - images.label_N.begin(), classes),
                   .value = std::to_string(*label),
                   .remedy = "use a model with more classes",
                   .keys = {key}});
}

std::string image_counts_text(const LabelledImages& images, const std::vector<std::uint32_t>& index,
                              int classes) {
  std::vector<std::uint64_t> counts(static_cast<std::size_t>(classes));
  for (const std::uint32_t image : index) ++counts[images.label_N[image]];
  const auto [least, most] = std::ranges::minmax(counts);
  return fmt::format("training images by class: {} classes with {} to {} images of {}", classes,
                     least, most, text_of(images.shape));
}

bool is_directory(const std::string& file, DataFormat format) {
  std::error_code ignored;
  const bool is_one = std::filesystem::is_directory(file, ignored);
  if (format == DataFormat::automatic) return is_one;
  if (format == DataFormat::directory && !is_one)
    refuse_line(file, "data.format is directory, and this is not one", "",
                "set data.format to automatic");
  return format == DataFormat::directory;
}

/// Returns true for directories. Throws UserError for directories among files.
bool are_directories(const std::vector<std::string>& files, DataFormat format) {
  const bool first = is_directory(files.front(), format);
  for (const std::string& file : files)
    if (is_directory(file, format) != first)
      refuse_line(file, "the file has another format than " + files.front(),
                  first ? "a file and a directory" : "a directory and a file",
                  "name files only, or directories only");
  return first;
}

/// Images of directories are listed first: only those that a run uses are read.
class Source {
 public:
  Source(const std::vector<std::string>& files, const char* key, const DataSettings& settings,
         const ImageShape& shape, const std::vector<std::string>& classes)
      : fit_(settings.images.fit), shape_(shape) {
    if (files.empty()) {
      read_ = std::make_shared<LabelledImages>(LabelledImages{DataFormat::idx, shape, {}, {}});
    } else if (are_directories(files, settings.format)) {
      listed_ = list_image_directories(files, classes, settings.labels_optional);
    } else {
      read_files(files, key, settings, static_cast<int>(classes.size()));
    }
  }

  std::vector<std::uint32_t> all() const {
    std::vector<std::uint32_t> index(listed_ ? listed_->size() : read_->size());
    std::iota(index.begin(), index.end(), 0);
    return index;
  }
  /// Reads what has not been read yet; `index` then counts in the returned images.
  std::shared_ptr<const LabelledImages> read(std::vector<std::uint32_t>& index) const {
    if (!listed_) return read_;
    auto images =
        std::make_shared<LabelledImages>(read_listed_images(*listed_, index, shape_, fit_));
    std::iota(index.begin(), index.end(), 0);
    return images;
  }
  void note_ignored(std::vector<std::string>& notes) const {
    if (listed_ && listed_->ignored > 0)
      notes.push_back(fmt::format(
          "files and hidden directories among the images that are ignored: {}, the first is {}",
          listed_->ignored, listed_->first_ignored));
  }

 private:
  void read_files(const std::vector<std::string>& files, const char* key,
                  const DataSettings& settings, int classes) {
    if (!settings.images.size.empty())
      throw UserError({.what = "data.images.size is for directories of PNG and JPEG files",
                       .value = files.front(),
                       .remedy = "remove data.images.size",
                       .keys = {"data.images.size", key}});
    auto images = std::make_shared<LabelledImages>(
        read_image_files(files, settings.format, settings.labels_optional));
    if (images->shape != shape_)
      throw UserError({.what = "the images have another size than the model's",
                       .value = text_of(images->shape) + " and " + text_of(shape_),
                       .remedy = "use images of the model's size, or another model",
                       .keys = {key, "model.path"}});
    if (const int known = classes_of(images->format); known > 0 && known != classes)
      throw UserError({.what = "the model has other classes than the images",
                       .value = fmt::format("{} and {}", classes, known),
                       .remedy = "use a model for these images",
                       .keys = {"model.path", key}});
    check_labels(*images, classes, key);
    read_ = std::move(images);
  }

  ImageFit fit_;
  ImageShape shape_;
  std::shared_ptr<const LabelledImages> read_;
  std::optional<ImageList> listed_;
};

void check_size(const ImageSettings& images, const ImageShape& shape) {
  if (images.size.empty() || (images.height() == shape.height && images.width() == shape.width))
    return;
  throw UserError(
      {.what = "data.images.size is not the size of the model's images",
       .value = fmt::format("{} x {} and {}", images.height(), images.width(), text_of(shape)),
       .remedy = "remove data.images.size: images get the model's size without it",
       .keys = {"data.images.size", "model.path"}});
}

}  // namespace

ImageShape image_shape(const DataSettings& settings) {
  const std::vector<std::string>& files =
      settings.train.empty() ? settings.validation : settings.train;
  if (!are_directories(files, settings.format))
    return image_file_info(files.front(), settings.format).shape;
  if (!settings.images.size.empty()) return {settings.images.height(), settings.images.width(), 3};
  return common_size(list_image_directories(files, {}, settings.labels_optional));
}

std::vector<std::string> image_classes(const DataSettings& settings) {
  const auto require_two = [](std::size_t classes) {
    if (classes < 2)
      throw UserError({.what = "the training images have fewer than two classes",
                       .value = std::to_string(classes),
                       .remedy = "add images of another class",
                       .keys = {"data.train"}});
  };
  if (are_directories(settings.train, settings.format)) {
    std::set<std::string> names;
    for (const std::string& directory : settings.train)
      for (std::string& name : directory_classes(directory)) names.insert(std::move(name));
    require_two(names.size());
    return {names.begin(), names.end()};
  }
  int classes = 0;
  DataFormat format = DataFormat::idx;
  for (const std::string& file : settings.train) {
    const ImageFileInfo info = image_file_info(file, settings.format);
    format = info.format;
    classes = std::max(classes, image_file_classes(file, info));
  }
  if (format == DataFormat::cifar10) return {kCifar10Names.begin(), kCifar10Names.end()};
  require_two(static_cast<std::size_t>(classes));
  std::vector<std::string> names;
  for (int c = 0; c < classes; ++c) names.push_back(std::to_string(c));
  return names;
}

DataSplit load_images(const DataSettings& settings, const ImageShape& shape,
                      const std::vector<std::string>& classes, int rows) {
  check_normalisation(settings, shape.channels);
  check_size(settings.images, shape);
  const Source train(settings.train, "data.train", settings, shape, classes);
  std::vector<std::uint32_t> index = train.all();
  std::optional<Source> validation;
  std::vector<std::uint32_t> held_out;
  if (settings.validation.empty()) {
    held_out = hold_out_at_random(index, settings.validation_fraction);
  } else {
    validation.emplace(settings.validation, "data.validation", settings, shape, classes);
    held_out = validation->all();
  }
  limit(index, settings.max_train_samples);
  limit(held_out, settings.max_validation_samples);
  const std::shared_ptr<const LabelledImages> images = train.read(index);
  const std::shared_ptr<const LabelledImages> validation_images =
      (validation ? *validation : train).read(held_out);
  DataSplit split;
  if (!settings.train.empty())
    split.notes.push_back(image_counts_text(*images, index, static_cast<int>(classes.size())));
  train.note_ignored(split.notes);
  if (validation) validation->note_ignored(split.notes);
  split.train = std::make_shared<Images>(images, std::move(index), settings.images, rows);
  split.validation =
      std::make_shared<Images>(validation_images, std::move(held_out), settings.images, rows);
  return split;
}

}  // namespace deltapipe
