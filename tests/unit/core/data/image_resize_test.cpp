// SPDX-License-Identifier: BSD-3-Clause
// Resizing against Pillow (tests/golden/make_image_directory_fixtures.py).
#include "core/data/image_resize.hpp"

#include <catch2/catch.hpp>

#include "support/golden_values.hpp"

using namespace deltapipe;

namespace {

const std::string kFixtures = DELTAPIPE_FIXTURES "/image_files";

/// The upper left corner.
Image cut(const Image& image, int height, int width) {
  Image result{{height, width, image.shape.channels}, {}};
  const int channels = image.shape.channels;
  for (int y = 0; y < height; ++y)
    for (int i = 0; i < width * channels; ++i)
      result.pixels_HWC.push_back(
          image.pixels_HWC[static_cast<std::size_t>(y * image.shape.width * channels + i)]);
  return result;
}

}  // namespace

TEST_CASE("Images are resized to the bit as by Pillow", "[data][images]") {
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const bool crop = GENERATE(true, false);
  const hdf5::Group group = golden.open_group(crop ? "crop" : "stretch");
  const std::vector<std::string> names = group.names();
  CHECK(names.size() == 12);
  for (const std::string& name : names) {
    const hdf5::Dataset dataset = group.open_dataset(name);
    const auto source = dataset.read_vector_attribute<std::int32_t>("source");
    const ImageShape target = {static_cast<int>(dataset.shape()[0]),
                               static_cast<int>(dataset.shape()[1]),
                               static_cast<int>(dataset.shape()[2])};
    INFO(name << ": " << source[0] << " x " << source[1] << " to " << text_of(target));
    const Image image =
        cut(read_image(kFixtures + "/source.png", target.channels), source[0], source[1]);
    const ResizePlan plan =
        plan_resize(source[0], source[1], target, crop ? ImageFit::crop : ImageFit::stretch);
    const Image result = resized(image, plan, target.height, target.width);
    CHECK(result.shape == target);
    CHECK(result.pixels_HWC == test::read_all<std::uint8_t>(group, name));
  }
}

TEST_CASE("The centre of an image is kept", "[data][images]") {
  const auto plan = [](int height, int width, ImageShape target) {
    return plan_resize(height, width, target, ImageFit::crop);
  };
  CHECK(plan(300, 400, {224, 224, 3}) == ResizePlan{224, 298, 0, 37});
  CHECK(plan(400, 300, {224, 224, 3}) == ResizePlan{298, 224, 37, 0});
  // Halves are rounded to even numbers: 0.5 to 0, 1.5 to 2.
  CHECK(plan(10, 11, {10, 10, 3}) == ResizePlan{10, 11, 0, 0});
  CHECK(plan(10, 13, {10, 10, 3}) == ResizePlan{10, 13, 0, 2});
  CHECK(plan(10, 20, {10, 20, 3}) == ResizePlan{10, 20, 0, 0});
  // An image of one row is enlarged only where it is kept.
  CHECK(plan(1, 65535, {224, 224, 3}) == ResizePlan{224, 14679840, 0, 7339808});
  Image line{{1, 65535, 1}, std::vector<std::uint8_t>(65535, 7)};
  const Image square = resized(line, plan(1, 65535, {224, 224, 1}), 224, 224);
  CHECK(square.pixels_HWC == std::vector<std::uint8_t>(224 * 224, 7));
  CHECK(plan_resize(300, 400, {224, 200, 3}, ImageFit::stretch) == ResizePlan{224, 200, 0, 0});
}
