// SPDX-License-Identifier: BSD-3-Clause
// PNG and JPEG files against what Pillow reads (tests/golden/make_image_directory_fixtures.py), and
// files that are cut, damaged, or not what they say.
#include "core/files/image_file.hpp"

#include <zlib.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "core/base/error.hpp"
#include "support/golden_values.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using namespace deltapipe::testing;
using Catch::Matchers::Contains;

namespace {

const std::string kFixtures = DELTAPIPE_FIXTURES "/image_files";

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

std::string chunk(const std::string& name, const std::string& data) {
  const std::string all = name + data;
  const auto sum =
      crc32(0, reinterpret_cast<const Bytef*>(all.data()), static_cast<uInt>(all.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + all +
         big_endian(static_cast<std::uint32_t>(sum));
}
const std::string kSignature = "\x89PNG\r\n\x1a\n";
std::string header(std::uint32_t width, std::uint32_t height, char depth = 8, char colour = 2) {
  return kSignature + chunk("IHDR", big_endian(width) + big_endian(height) + depth + colour +
                                        std::string(3, '\0'));
}

struct File {
  explicit File(const std::string& bytes) : path(directory / "an image") {
    write_bytes(path, bytes);
  }
  std::string message() const {
    const std::string read = message_of<UserError>([&] { read_image(path, 3); });
    CHECK_THAT(read, Contains("an image: ") && Contains("; "));
    return read;
  }
  TemporaryDirectory directory;
  std::string path;
};

std::string replaced(std::string text, const std::string& old, const std::string& with) {
  const std::size_t place = text.find(old);
  REQUIRE(place != std::string::npos);
  return text.replace(place, old.size(), with);
}

}  // namespace

TEST_CASE("Images have the pixels that Pillow reads", "[files][images]") {
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/golden.h5");
  const bool grey = GENERATE(false, true);
  const hdf5::Group group = golden.open_group(grey ? "grey" : "rgb");
  const std::vector<std::string> names = group.names();
  CHECK(names.size() == 17);
  for (const std::string& name : names) {
    INFO(name);
    const std::string path = kFixtures + "/" + name;
    const Image image = read_image(path, grey ? 1 : 3);
    const auto shape = group.open_dataset(name).shape();
    CHECK(image.shape ==
          ImageShape{static_cast<int>(shape[0]), static_cast<int>(shape[1]), grey ? 1 : 3});
    CHECK(image.pixels_HWC == test::read_all<std::uint8_t>(group, name));
    const ImageHeader head = read_image_header(path);
    CHECK(head.height == image.shape.height);
    CHECK(head.width == image.shape.width);
    CHECK((head.encoding == ImageEncoding::png) == name.ends_with(".png"));
  }
}

TEST_CASE("Images that are cut off anywhere are refused", "[files][images]") {
  const std::string name =
      GENERATE("rgb.png", "interlaced.png", "rgb.jpg", "progressive.jpg", "cmyk.jpg");
  const std::string whole = read_bytes(kFixtures + "/" + name);
  const File file(whole);
  REQUIRE_NOTHROW(read_image(file.path, 3));
  for (std::size_t size = 8; size < whole.size(); size += size + 60 < whole.size() ? 7 : 1) {
    INFO(name << ", " << size << " bytes");
    write_bytes(file.path, whole.substr(0, size));
    CHECK_THAT(file.message(), Contains("image is"));
  }
  // Cameras write more after the image.
  if (!name.ends_with("png")) {
    write_bytes(file.path, whole + "more");
    CHECK_NOTHROW(read_image(file.path, 3));
  }
}

TEST_CASE("Other files are refused by name", "[files][images]") {
  const auto [bytes, format] =
      GENERATE(table<std::string, std::string>({{"GIF89a........", "GIF"},
                                                {"RIFF....WEBPVP8 ", "WebP"},
                                                {"BM..............", "BMP"},
                                                {std::string("II*\0............", 16), "TIFF"},
                                                {std::string("\0\0\0 ftypheic", 12), "HEIF"},
                                                {"<svg></svg>", "is not a PNG or JPEG image; "},
                                                {"\xff\xd8", "is not a PNG or JPEG image; "},
                                                {"", "the image is empty"}}));
  CHECK_THAT(File(bytes).message(), Contains(format) && Contains("convert it to PNG or JPEG"));
}

TEST_CASE("Sizes are refused before memory is allocated for them", "[files][images]") {
  const std::string data = chunk("IDAT", "x");
  const auto [bytes, message] = GENERATE_COPY(table<std::string, std::string>(
      {{header(70000, 1) + data, "1 x 70000 pixels; the limits are"},
       {header(0x7fffffff, 0x7fffffff) + data, "larger than any that is read"},
       {header(10000, 10000) + data, "10000 x 10000 pixels; the limits are 89478485"},
       {header(9000, 9000) + data, "announces 9000 x 9000 pixels in 46 bytes"},
       {header(0, 5) + data, "its size is 5 x 0"},
       {header(1, 1).replace(12, 4, "IDAT"), "does not begin with the chunk IHDR"},
       {"\xff\xd8\xff\xc0" + std::string("\0\x11\x08\xff\xff\xff\xff\3", 8),
        "65535 x 65535 pixels; the limits are"},
       {"\xff\xd8\xff\xc0" + std::string("\0\x11\x08\x10\0\x10\0\3", 8),
        "announces 4096 x 4096 pixels in 12 bytes"},
       {"\xff\xd8\xff\xc0" + std::string("\0\x11\x08\0\0\0\5\3", 8), "its size is 0 x 5"},
       {"\xff\xd8\xff\xe0" + std::string("\0\1", 2), "a segment has a length below 2"},
       {"\xff\xd8\xff\xe0" + std::string("\0\2xx", 4), "its markers are not in order"},
       {"\xff\xd8\xff\xda" + std::string("\0\2xx", 4), "does not announce its size"},
       {"\xff\xd8\xff\xc3" + std::string("\0\x11\x08\0\1\0\1\3", 8), "lossless or hierarchical"},
       {"\xff\xd8\xff\xc9" + std::string("\0\x11\x08\0\1\0\1\3", 8), "arithmetic coding"}}));
  CHECK_THAT(File(bytes).message(), Contains(message));
}

TEST_CASE("Damaged and odd images are refused", "[files][images]") {
  const std::string png = read_bytes(kFixtures + "/rgb.png");
  const std::string jpeg = read_bytes(kFixtures + "/rgb.jpg");
  const std::string progressive = read_bytes(kFixtures + "/progressive.jpg");
  // A first scan of all bits may be repeated.
  const std::size_t scan = progressive.find("\xff\xda"), end = progressive.find("\xff\xc4", scan);
  std::string repeated = progressive.substr(scan, end - scan);
  repeated[1 + static_cast<std::size_t>(repeated[3])] = '\0';
  std::string scans = progressive.substr(0, scan);
  for (int i = 0; i <= image_limit::scans; ++i) scans += repeated;
  scans += "\xff\xd9";
  std::string sum = png;
  sum[png.size() - 20] = static_cast<char>(sum[png.size() - 20] ^ 1);
  // Another size in a second frame.
  const std::size_t frame = jpeg.find("\xff\xc0");
  std::string other_size = jpeg.substr(frame, 19);
  other_size[6] = 77;
  std::string bad_code = jpeg;  // no code has 16 ones
  for (std::size_t i = jpeg.size() - 300; i < jpeg.size() - 200; ++i)
    bad_code[i] = i % 2 == 0 ? '\xff' : '\0';
  const auto [bytes, message] = GENERATE_COPY(table<std::string, std::string>(
      {{sum, "the image is damaged: "},
       {replaced(png, "IDAT", "IDAX"), "the image is damaged: "},
       {header(2, 2) + chunk("acTL", std::string(8, '\1')) + png.substr(33), "an animation"},
       {header(2, 2) + chunk("IDAT", "") + chunk("IEND", ""), "the image is damaged: "},
       {header(2, 2, 8, 5) + chunk("IDAT", "x"), "the image is damaged: "},
       {header(2, 2, 3, 2) + chunk("IDAT", "x"), "the image is damaged: "},
       {scans, "it has more than 100 scans"},
       {jpeg.substr(0, frame) + other_size + jpeg.substr(frame), "the image is damaged: "},
       {bad_code, "the image is damaged: "}}));
  CHECK_THAT(File(bytes).message(), Contains(message));
}
