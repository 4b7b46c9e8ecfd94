// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/images.hpp"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "core/base/row_grid.hpp"
#include "tests/unit/core/data/image_support.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using namespace deltapipe::testing;
using Catch::Matchers::Contains;

namespace {

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

/// Pixel p of image i is (7 i + p) mod 251.
std::string idx_images(std::uint32_t count, std::uint32_t height, std::uint32_t width) {
  std::string bytes =
      big_endian(0x803) + big_endian(count) + big_endian(height) + big_endian(width);
  for (std::uint32_t i = 0; i < count; ++i)
    for (std::uint32_t p = 0; p < height * width; ++p)
      bytes += static_cast<char>((7 * i + p) % 251);
  return bytes;
}
std::string idx_labels(const std::string& labels) {
  return big_endian(0x801) + big_endian(static_cast<std::uint32_t>(labels.size())) + labels;
}

void write_gzip(const std::string& path, const std::string& bytes) {
  const gzFile file = gzopen(path.c_str(), "wb");
  REQUIRE(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())) ==
          static_cast<int>(bytes.size()));
  REQUIRE(gzclose(file) == Z_OK);
}

/// A CIFAR record: planes of red, green and blue, whose pixel p has 3 times p mod 80 plus the
/// plane.
std::string cifar_record(const std::string& labels) {
  std::string bytes = labels;
  for (int plane = 0; plane < 3; ++plane)
    for (int p = 0; p < 1024; ++p) bytes += static_cast<char>(3 * (p % 80) + plane);
  return bytes;
}

std::vector<std::string> numbers(int classes) {
  std::vector<std::string> names;
  for (int c = 0; c < classes; ++c) names.push_back(std::to_string(c));
  return names;
}

struct Files {
  Files() {
    settings.kind = DataKind::images;
    settings.validation_fraction = 0;
  }
  void idx(std::uint32_t count, std::uint32_t height, std::uint32_t width,
           const std::string& labels) {
    write_bytes(directory / "a-images-idx3-ubyte", idx_images(count, height, width));
    write_bytes(directory / "a-labels-idx1-ubyte", idx_labels(labels));
    settings.train = {directory / "a-images-idx3-ubyte"};
  }
  std::string message(const ImageShape& shape, int classes = 10) const {
    return message_of<UserError>([&] { load_images(settings, shape, numbers(classes), 1); });
  }

  TemporaryDirectory directory;
  DataSettings settings;
};

}  // namespace

TEST_CASE("IDX files are read, plain and compressed", "[data][images]") {
  Files files;
  files.idx(3, 2, 5, std::string("\0\4\1", 3));
  files.settings.images = {.mean = {0.25}, .deviation = {0.5}};
  if (GENERATE(false, true)) {
    write_gzip(files.directory / "b-images-idx3-ubyte.gz", idx_images(3, 2, 5));
    write_gzip(files.directory / "b-labels-idx1-ubyte.gz", idx_labels(std::string("\0\4\1", 3)));
    files.settings.train = {files.directory / "b-images-idx3-ubyte.gz"};
  }
  CHECK(image_shape(files.settings) == ImageShape{2, 5, 1});
  CHECK(image_classes(files.settings) == std::vector<std::string>{"0", "1", "2", "3", "4"});
  const DataSplit split = load_images(files.settings, {2, 5, 1}, numbers(5), 11);
  REQUIRE(split.train->size() == 3);
  CHECK(split.validation->size() == 0);
  CHECK(split.train->sequence_length() == 11);
  CHECK(split.train->length(2) == 11);
  CHECK(split.train->all_targets() == 3);
  CHECK_THAT(split.notes.front(), Contains("5 classes with 0 to 1 images of 2 x 5 x 1"));
  const ImageSample sample = read_image_sample(*split.train, 1);
  CHECK(sample.label == 4);
  REQUIRE(sample.values.size() == 10);
  for (int p = 0; p < 10; ++p)
    CHECK(sample.values[static_cast<std::size_t>(p)] ==
          Approx(((7 + p) / 255.0 - 0.25) / 0.5).margin(1e-6));
}

TEST_CASE("CIFAR's planes become channels", "[data][images]") {
  Files files;
  const bool ten = GENERATE(true, false);
  const std::string label = ten ? std::string("\7", 1) : std::string("\3\x63", 2);
  write_bytes(
      files.directory / "data_batch_1.bin",
      cifar_record(ten ? std::string("\0", 1) : std::string("\0\0", 2)) + cifar_record(label));
  files.settings.train = {files.directory / "data_batch_1.bin"};
  files.settings.images = {.mean = {0, 0, 0}, .deviation = {1, 1, 1}};
  CHECK(image_shape(files.settings) == ImageShape{32, 32, 3});
  const std::vector<std::string> classes = image_classes(files.settings);
  CHECK(classes.size() == (ten ? 10 : 100));
  CHECK(classes.front() == (ten ? "airplane" : "0"));
  const DataSplit split = load_images(files.settings, {32, 32, 3}, classes, 1);
  const ImageSample sample = read_image_sample(*split.train, 1);
  CHECK(sample.label == (ten ? 7 : 99));
  for (std::size_t p : {0u, 1u, 79u, 80u, 1023u})
    for (std::size_t plane = 0; plane < 3; ++plane)
      CHECK(sample.values[3 * p + plane] == Approx((3 * (p % 80) + plane) / 255.0).margin(1e-6));
}

TEST_CASE("Several files are one set, and a part is held out", "[data][images]") {
  Files files;
  files.idx(40, 1, 2, std::string(20, '\0') + std::string(20, '\1'));
  files.settings.train.push_back(files.settings.train.front());
  files.settings.validation_fraction = 0.25;
  const DataSplit split = load_images(files.settings, {1, 2, 1}, numbers(2), 1);
  CHECK(split.train->size() == 60);
  CHECK(split.validation->size() == 20);
  int ones = 0;
  for (std::uint64_t id = 0; id < 20; ++id) ones += read_image_sample(*split.validation, id).label;
  CHECK(ones > 3);
  CHECK(ones < 17);
  CHECK(split.train->fingerprint() ==
        load_images(files.settings, {1, 2, 1}, numbers(2), 1).train->fingerprint());
  files.settings.max_train_samples = 10;
  const DataSplit few = load_images(files.settings, {1, 2, 1}, numbers(2), 1);
  CHECK(few.train->size() == 10);
  CHECK(few.train->fingerprint() != split.train->fingerprint());
}

TEST_CASE("Views are functions of seed, epoch and sample", "[data][images]") {
  CHECK(draw_view(1, 2, 3, 0, false) == ImageView{});
  CHECK(draw_view(1, 2, 3, 4, true) == draw_view(1, 2, 3, 4, true));
  std::map<int, int> rows, columns;
  int flips = 0;
  std::set<std::tuple<int, int, bool>> views;
  for (std::uint64_t id = 0; id < 9000; ++id) {
    const ImageView view = draw_view(7, 5, id, 4, true);
    ++rows[view.dy];
    ++columns[view.dx];
    flips += view.flipped ? 1 : 0;
    views.insert({view.dy, view.dx, view.flipped});
  }
  CHECK(views.size() == 2 * 9 * 9);
  CHECK(std::abs(flips - 4500) < 250);
  for (const auto& counts : {rows, columns}) {
    REQUIRE(counts.size() == 9);
    CHECK(counts.begin()->first == -4);
    for (const auto& [offset, count] : counts) CHECK(std::abs(count - 1000) < 150);
  }
  int same = 0;
  for (std::uint64_t id = 0; id < 1000; ++id)
    same += draw_view(7, 0, id, 4, true) == draw_view(7, 1, id, 4, true) ? 1 : 0;
  CHECK(same < 30);
}

TEST_CASE("Training sees crops and flips, evaluations the image", "[data][images]") {
  Files files;
  files.idx(2, 3, 4, std::string("\0\1", 2));
  files.settings.images = {.mean = {0}, .deviation = {1.0 / 255}, .padding = 2, .flip = true};
  const DataSplit split = load_images(files.settings, {3, 4, 1}, numbers(2), 1);
  const std::vector<float> plain = read_image_sample(*split.train, 1).values;
  CHECK(read_image_sample(*split.train, 1, {.seed = 1, .epoch = 9, .training = false}).values ==
        plain);
  int padded = 0, flipped = 0;
  for (std::uint64_t epoch = 0; epoch < 60; ++epoch) {
    const SampleVisit visit{.seed = 1, .epoch = epoch, .training = true};
    const ImageView view = draw_view(1, epoch, 1, 2, true);
    const std::vector<float> seen = read_image_sample(*split.train, 1, visit).values;
    for (int y = 0; y < 3; ++y)
      for (int x = 0; x < 4; ++x) {
        const int from_y = y + view.dy, from_x = (view.flipped ? 3 - x : x) + view.dx;
        const bool inside = from_y >= 0 && from_y < 3 && from_x >= 0 && from_x < 4;
        padded += inside ? 0 : 1;
        CHECK(seen[static_cast<std::size_t>(4 * y + x)] ==
              (inside ? plain[static_cast<std::size_t>(4 * from_y + from_x)] : 0));
      }
    const RowGrid grid = {.height = 3, .width = 4, .stride = 1};
    const RowView rows = row_view(grid, view);
    for (int row = 0; row < grid.rows(); ++row) {
      const int from = row_in_image(grid, rows, row);  // of the image or the flipped image
      const int unflipped = view.flipped ? from / 4 * 4 + 3 - from % 4 : from;
      CHECK(seen[static_cast<std::size_t>(row)] ==
            (from == kNoRow ? 0 : plain[static_cast<std::size_t>(unflipped)]));
    }
    flipped += view.flipped ? 1 : 0;
  }
  CHECK(padded > 0);
  CHECK(flipped > 0);
}

TEST_CASE("Files of images that cannot be used are refused", "[data][images]") {
  Files files;
  files.idx(3, 2, 2, std::string("\0\1\2", 3));
  const std::string images = files.directory / "a-images-idx3-ubyte";
  const std::string labels = files.directory / "a-labels-idx1-ubyte";
  const std::string good = idx_images(3, 2, 2);
  constexpr ImageShape kShape = {2, 2, 1};
  REQUIRE(files.message(kShape, 3).empty());
  SECTION("images") {
    const auto [bytes, message] = GENERATE_COPY(table<std::string, std::string>(
        {{"", "ends before the images"},
         {good.substr(0, 15), "ends before the images"},
         {good.substr(0, good.size() - 1), "ends before the images"},
         {good + "x", "has more bytes than"},
         {idx_labels("abc"), "not an IDX file of images"},
         {idx_images(0, 2, 2), "sizes that cannot be used"},
         {idx_images(3, 0, 2), "sizes that cannot be used"},
         {big_endian(0x803) + big_endian(4000000000u) + big_endian(9999) + big_endian(9999),
          "announces more bytes than it can hold"},
         {big_endian(0x803) + big_endian(3) + big_endian(4000000000u) + big_endian(2),
          "sizes that cannot be used"}}));
    write_bytes(images, bytes);
    CHECK_THAT(files.message(kShape), Contains(message) && Contains("a-images"));
  }
  SECTION("labels") {
    const auto [bytes, message] = GENERATE_COPY(table<std::string, std::string>(
        {{"", "ends before"},
         {idx_labels("ab"), "differ in number (got 3 and 2)"},
         {idx_labels(std::string("\0\1\2", 3)) + "x", "has more bytes than"},
         {good, "not an IDX file of labels"}}));
    write_bytes(labels, bytes);
    CHECK_THAT(files.message(kShape), Contains(message) && Contains("a-labels"));
  }
  SECTION("damage") {
    write_gzip(images + ".gz", good);
    write_gzip(labels + ".gz", idx_labels(std::string("\0\1\2", 3)));
    std::string bytes = read_bytes(images + ".gz");
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);
    write_bytes(images + ".gz", bytes);
    files.settings.train = {images + ".gz"};
    CHECK(!files.message(kShape).empty());
  }
  SECTION("contradictions") {
    CHECK_THAT(files.message({2, 3, 1}), Contains("another size than the model's"));
    CHECK_THAT(files.message(kShape, 2),
               Contains("the label of image 2 is not one of the model's 2 classes (got 2)"));
    files.settings.images.mean = {1, 2};
    CHECK_THAT(files.message(kShape), Contains("2 values, 1 channels"));
    files.settings.images.mean = {1};
    write_bytes(files.directory / "b-images-idx3-ubyte", idx_images(1, 3, 2));
    write_bytes(files.directory / "b-labels-idx1-ubyte", idx_labels("a"));
    files.settings.train.push_back(files.directory / "b-images-idx3-ubyte");
    CHECK_THAT(files.message(kShape), Contains("differ in size from those of"));
  }
  SECTION("missing labels") {
    std::filesystem::remove(labels);
    CHECK_THAT(files.message(kShape), Contains("the file of the labels is missing"));
    std::filesystem::rename(images, files.directory / "odd-idx");
    files.settings.train = {files.directory / "odd-idx"};
    CHECK_THAT(files.message(kShape), Contains("does not tell where its labels are"));
  }
  SECTION("CIFAR") {
    const std::string path = files.directory / "batch.bin";
    files.settings.train = {path};
    write_bytes(path, cifar_record("\7") + "xy");
    CHECK_THAT(files.message({32, 32, 3}), Contains("matches neither CIFAR-10 nor CIFAR-100"));
    files.settings.format = DataFormat::cifar10;
    CHECK_THAT(files.message({32, 32, 3}), Contains("is not a multiple of the record size"));
    write_bytes(path, cifar_record("\x0b"));
    CHECK_THAT(files.message({32, 32, 3}),
               Contains("image 0 has a label outside the classes (got 11)"));
  }
  SECTION("unknown") {
    write_bytes(files.directory / "x.png", "x");
    files.settings.train = {files.directory / "x.png"};
    CHECK_THAT(files.message(kShape), Contains("does not identify its format"));
  }
}
