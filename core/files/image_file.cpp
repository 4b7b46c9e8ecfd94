// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/image_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "core/base/error.hpp"
#include "core/files/image_decoders.hpp"
#include "core/files/input_file.hpp"

namespace deltapipe {

namespace {

constexpr const char* kConvert = "convert it to PNG or JPEG, or remove it";

/// Deflate's largest ratio, which zlib's documentation gives as 1032:1.
constexpr std::uint64_t kDeflateRatio = 1032;
/// A block of 64 pixels of a JPEG has at least one bit.
constexpr std::uint64_t kMostPixelsPerByte = 512;

[[noreturn]] void refuse(const std::string& path, const std::string& what, const std::string& value,
                         const std::string& remedy) {
  throw UserError({.what = what, .file = path, .value = value, .remedy = remedy});
}

/// A position in a file, from which bytes are read.
class Cursor {
 public:
  explicit Cursor(const ReadOnlyFile& file) : file_(file) {}

  bool has(std::uint64_t bytes) const { return at_ <= file_.size() && bytes <= file_.size() - at_; }
  template <std::size_t N>
  std::array<std::uint8_t, N> read() {
    std::array<std::uint8_t, N> bytes{};
    if (!has(N)) refuse_damaged_image(file_.path(), "it ends within its header");
    file_.read_at(at_, std::as_writable_bytes(std::span(bytes)));
    at_ += N;
    return bytes;
  }
  void skip(std::uint64_t bytes) { at_ += bytes; }

 private:
  const ReadOnlyFile& file_;
  std::uint64_t at_ = 0;
};

std::uint32_t big_endian(std::span<const std::uint8_t> bytes) {
  std::uint32_t value = 0;
  for (const std::uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

/// `most`: the pixels that the file can hold.
ImageHeader checked(const ReadOnlyFile& file, ImageEncoding encoding, std::uint64_t height,
                    std::uint64_t width, std::uint64_t most) {
  const std::string value = fmt::format("{} x {}", height, width);
  constexpr std::uint64_t kMostSide = 65535;  // of JPEG
  if (height == 0 || width == 0) refuse_damaged_image(file.path(), "its size is " + value);
  if (height > kMostSide || width > kMostSide || height * width > image_limit::pixels)
    refuse(file.path(), "the image is larger than any that is read",
           fmt::format("{} pixels; the limits are {} pixels and sides of {}", value,
                       image_limit::pixels, kMostSide),
           "make it smaller, or remove it");
  if (height * width > most)
    refuse_damaged_image(
        file.path(), fmt::format("its header announces {} pixels in {} bytes", value, file.size()));
  return {encoding, static_cast<int>(height), static_cast<int>(width)};
}

/// The cursor is after the signature.
ImageHeader read_png_header(const ReadOnlyFile& file, Cursor& at) {
  const auto begin = at.read<8>();
  const std::string_view type(reinterpret_cast<const char*>(begin.data()) + 4, 4);
  if (type != "IHDR" || big_endian(std::span(begin).first(4)) != 13)
    refuse_damaged_image(file.path(), "it does not begin with the chunk IHDR");
  const auto size = at.read<8>();
  const auto format = at.read<2>();
  at.skip(7);
  const int channels = format[1] == 2 ? 3 : format[1] == 4 ? 2 : format[1] == 6 ? 4 : 1;
  const int bits = std::max(1, format[0] * channels);
  // Animations announce themselves before the pixels. A file with more chunks than these is not
  // one.
  constexpr int kMostChunks = 1000;
  for (int i = 0; i < kMostChunks && at.has(8); ++i) {
    const auto chunk = at.read<8>();
    const std::string_view name(reinterpret_cast<const char*>(chunk.data()) + 4, 4);
    if (name == "IDAT") break;
    if (name == "acTL")
      refuse(file.path(), "the image is an animation", "", "save one of its frames instead");
    at.skip(std::uint64_t{big_endian(std::span(chunk).first(4))} + 4);
  }
  return checked(file, ImageEncoding::png, big_endian(std::span(size).last(4)),
                 big_endian(std::span(size).first(4)), kDeflateRatio * 8 * file.size() / bits);
}

/// The cursor is after the first marker.
ImageHeader read_jpeg_header(const ReadOnlyFile& file, Cursor& at) {
  const auto is_frame = [](std::uint8_t marker) {
    return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
  };
  while (true) {
    std::uint8_t marker = at.read<1>()[0];
    if (marker != 0xFF) refuse_damaged_image(file.path(), "its markers are not in order");
    while (marker == 0xFF) marker = at.read<1>()[0];
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD7)) continue;  // without a segment
    if (marker == 0xD9 || marker == 0xDA)
      refuse_damaged_image(file.path(), "it does not announce its size");
    const auto length = big_endian(at.read<2>());
    if (length < 2) refuse_damaged_image(file.path(), "a segment has a length below 2");
    if (!is_frame(marker)) {
      at.skip(length - 2);
      continue;
    }
    if (marker > 0xC2)
      refuse(file.path(), "the image is a JPEG of a kind that is not read",
             marker > 0xC8 ? "arithmetic coding" : "lossless or hierarchical", kConvert);
    const auto frame = at.read<5>();  // precision, height, width
    return checked(file, ImageEncoding::jpeg, big_endian(std::span(frame).subspan(1, 2)),
                   big_endian(std::span(frame).subspan(3, 2)), kMostPixelsPerByte * file.size());
  }
}

/// Returns the name of a format by its first bytes, for messages.
const char* other_format(std::string_view begin) {
  const auto has = [&](std::string_view text, std::size_t place = 0) {
    return begin.size() >= place && begin.substr(place).starts_with(text);
  };
  if (has("GIF8")) return "GIF";
  if (has("RIFF") && has("WEBP", 8)) return "WebP";
  if (has("BM")) return "BMP";
  if (has({"II*\0", 4}) || has({"MM\0*", 4})) return "TIFF";
  if (has("ftyp", 4)) return "HEIF or AVIF";
  return "";
}

ImageHeader read_header(const ReadOnlyFile& file) {
  std::array<char, 12> begin{};
  const std::size_t count = std::min<std::uint64_t>(begin.size(), file.size());
  file.read_at(0, std::as_writable_bytes(std::span(begin).first(count)));
  const std::string_view text(begin.data(), count);
  Cursor at(file);
  if (text.starts_with("\x89PNG\r\n\x1a\n")) {
    at.skip(8);
    return read_png_header(file, at);
  }
  if (text.starts_with("\xff\xd8\xff")) {
    at.skip(2);
    return read_jpeg_header(file, at);
  }
  refuse(file.path(), count == 0 ? "the image is empty" : "the file is not a PNG or JPEG image",
         other_format(text), kConvert);
}

}  // namespace

void refuse_damaged_image(const std::string& path, const std::string& problem) {
  refuse(path, "the image is damaged: " + problem, "", "copy or download it again, or remove it");
}

ImageHeader read_image_header(const std::string& path) {
  return read_header(ReadOnlyFile(path));
}

Image read_image(const std::string& path, int channels) {
  DELTAPIPE_ASSERT(channels == 1 || channels == 3, fmt::format("{} channels", channels));
  const ReadOnlyFile file(path);
  const ImageHeader header = read_header(file);
  if (file.size() > image_limit::file)
    refuse(path, "the image's file is larger than any that is read",
           fmt::format("{} of at most {} bytes", file.size(), image_limit::file),
           "make it smaller, or remove it");
  std::vector<std::byte> bytes(file.size());
  file.read_at(0, bytes);
  Image image;
  image.shape = {header.height, header.width, channels};
  image.pixels_HWC = header.encoding == ImageEncoding::png ? decode_png(path, bytes, header)
                                                           : decode_jpeg(path, bytes, header);
  if (channels == 3) return image;
  std::vector<std::uint8_t>& pixels = image.pixels_HWC;
  for (std::size_t i = 0; i < pixels.size() / 3; ++i) {
    const std::uint32_t r = pixels[3 * i], g = pixels[3 * i + 1], b = pixels[3 * i + 2];
    pixels[i] = static_cast<std::uint8_t>((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16);
  }
  pixels.resize(image.shape.values());
  return image;
}

}  // namespace deltapipe
