// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/image_preprocessor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <tuple>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/files/input_file.hpp"
#include "core/files/json.hpp"

namespace deltapipe {

namespace {

/// One value for each channel.
std::vector<double> by_channel(const std::vector<double>& values, int channels) {
  return values.size() == 1
             ? std::vector<double>(static_cast<std::size_t>(channels), values.front())
             : values;
}

/// Returns a number, or the numbers of a list; nothing for other values.
std::optional<std::vector<double>> numbers(const Json& value) {
  if (value.is_number()) return std::vector{value.get<double>()};
  if (!value.is_array() ||
      !std::ranges::all_of(value, [](const Json& one) { return one.is_number(); }))
    return std::nullopt;
  return value.get<std::vector<double>>();
}

/// Returns true if the file's numbers are those of values from 0 to 1.
bool normalizes_as_here(const Json& file) {
  for (const char* const key : {"do_normalize", "do_rescale"})
    if (const auto does = file.find(key); does != file.end() && *does == false) return false;
  const auto factor = file.find("rescale_factor");
  return factor == file.end() || !factor->is_number() ||
         std::abs(factor->get<double>() * 255 - 1) < 1e-3;
}

bool is_near(const std::vector<double>& a, const std::vector<double>& b) {
  constexpr double kRounding = 1e-3;  // of decks, which repeat published values
  return std::ranges::equal(a, b, [](double x, double y) { return std::abs(x - y) <= kRounding; });
}

}  // namespace

void add_image_preprocessor(const ImageSettings& settings, const ImageShape& shape,
                            std::vector<KeptFile>& files) {
  constexpr int kBilinear = 2;  // PIL.Image.Resampling
  // Only squares are resized by their shorter edge and cropped.
  const bool crops = settings.fit == ImageFit::crop && shape.height == shape.width;
  const OrderedJson size = {{"height", shape.height}, {"width", shape.width}};
  OrderedJson json;
  json["image_processor_type"] = crops ? "BitImageProcessor" : "ViTImageProcessor";
  json["do_resize"] = true;
  json["resample"] = kBilinear;
  json["size"] = crops ? OrderedJson{{"shortest_edge", shape.height}} : size;
  if (crops) {
    json["do_center_crop"] = true;
    json["crop_size"] = size;
  }
  json["do_rescale"] = true;
  json["rescale_factor"] = 1.0 / 255;
  json["do_normalize"] = true;
  json["image_mean"] = by_channel(settings.mean, shape.channels);
  json["image_std"] = by_channel(settings.deviation, shape.channels);
  json["do_convert_rgb"] = shape.channels == 3;
  std::erase_if(files, [](const KeptFile& file) { return file.name == kImagePreprocessorFile; });
  files.push_back({kImagePreprocessorFile, json.dump(2) + "\n"});
}

std::vector<std::string> warnings_of_preprocessor(const Settings& settings) {
  if (settings.model.path.empty() || settings.data.kind != DataKind::images) return {};
  const std::string path = settings.model.path + "/" + kImagePreprocessorFile;
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  const auto not_compared = [](const std::string& reason) {
    return std::vector{"the deck's mean and deviation are not compared with the model's: " +
                       reason};
  };
  Json file;
  try {
    file = read_json_file(path, file_limit::model_config);
  } catch (const UserError& broken) {  // the file sets nothing, so that runs do not need it
    return not_compared(broken.what());
  }
  if (!file.is_object()) return not_compared(printable(path, 200) + " is not a JSON object");
  if (!normalizes_as_here(file)) return {};
  std::string keys;
  const ImageSettings& images = settings.data.images;
  for (const auto& [key, name, own] :
       {std::tuple{"image_mean", "data.images.mean", &images.mean},
        std::tuple{"image_std", "data.images.deviation", &images.deviation}}) {
    const auto entry = file.find(key);
    if (entry == file.end() || entry->is_null()) continue;
    const std::optional<std::vector<double>> given = numbers(*entry);
    if (!given || given->empty())
      return not_compared(fmt::format("'{}' is not a number or a list of numbers in {}", key,
                                      printable(path, 200)));
    const auto channels = static_cast<int>(std::max(own->size(), given->size()));
    if (is_near(by_channel(*own, channels), by_channel(*given, channels))) continue;
    keys += (keys.empty() ? "" : " and ") + std::string(name) + " = " + Json(*given).dump();
  }
  if (keys.empty()) return {};
  return {"the model was trained with other values: " + printable(path, 200) + " has " +
          printable(keys, 200) + "; set them in the deck"};
}

}  // namespace deltapipe
