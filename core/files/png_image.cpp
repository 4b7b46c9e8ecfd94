// SPDX-License-Identifier: BSD-3-Clause
#include <png.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/base/error.hpp"
#include "core/files/image_decoders.hpp"

namespace deltapipe {

namespace {

/// libpng leaves a call at an error by longjmp. Calls are therefore in functions whose frames hold
/// nothing that a destructor would free, and all memory belongs to this class or to its user.
class PngReader {
 public:
  explicit PngReader(std::span<const std::byte> bytes) : rest_(bytes) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, ignore_warning);
    if (png_ != nullptr) info_ = png_create_info_struct(png_);
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  /// Reads up to the pixels, which are to become red, green and blue. False at an error.
  bool begin() {
    if (info_ == nullptr) return false;
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(cert-err52-cpp)
    png_set_read_fn(png_, this, read);
    // The pixels are all that is used: no memory for profiles and texts.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_set_chunk_malloc_max(png_, png_alloc_size_t{1} << 20);
    png_set_user_limits(png_, 65535, 65535);
    png_read_info(png_, info_);
    const int colour = png_get_color_type(png_, info_), depth = png_get_bit_depth(png_, info_);
    if (depth == 16) png_set_strip_16(png_);
    if (colour == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    // This also gives grey images of fewer bits 8.
    if ((colour & PNG_COLOR_MASK_COLOR) == 0) png_set_gray_to_rgb(png_);
    png_set_strip_alpha(png_);
    passes_ = png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }
  ImageHeader header() const {
    return {ImageEncoding::png, static_cast<int>(png_get_image_height(png_, info_)),
            static_cast<int>(png_get_image_width(png_, info_))};
  }
  std::size_t row_bytes() const { return png_get_rowbytes(png_, info_); }

  /// Fills `pixels`, of the size of header() and row_bytes(), and reads to the file's end.
  bool read_pixels(std::uint8_t* pixels) {
    if (setjmp(png_jmpbuf(png_)) != 0) return false;  // NOLINT(cert-err52-cpp)
    const png_uint_32 rows = png_get_image_height(png_, info_);
    const std::size_t bytes = png_get_rowbytes(png_, info_);
    for (int pass = 0; pass < passes_; ++pass)
      for (png_uint_32 row = 0; row < rows; ++row)
        png_read_row(png_, pixels + row * bytes, nullptr);
    png_read_end(png_, nullptr);
    return true;
  }
  /// Returns what libpng says of the error.
  std::string problem() const {
    return info_ == nullptr ? "libpng cannot be used" : problem_.data();
  }

 private:
  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto* const self = static_cast<PngReader*>(png_get_error_ptr(png));
    std::strncpy(self->problem_.data(), message, self->problem_.size() - 1);
    png_longjmp(png, 1);
  }
  /// Damage is an error; warnings are about what is not used.
  static void ignore_warning(png_structp, png_const_charp) {}

  static void read(png_structp png, png_bytep target, std::size_t count) {
    auto* const self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->rest_.size()) png_error(png, "it is cut off");
    std::memcpy(target, self->rest_.data(), count);
    self->rest_ = self->rest_.subspan(count);
  }

  std::span<const std::byte> rest_;
  std::array<char, 200> problem_{};
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  int passes_ = 1;
};

}  // namespace

std::vector<std::uint8_t> decode_png(const std::string& path, std::span<const std::byte> bytes,
                                     const ImageHeader& header) {
  PngReader reader(bytes);
  if (!reader.begin()) refuse_damaged_image(path, reader.problem());
  const std::size_t row = 3 * static_cast<std::size_t>(header.width);
  DELTAPIPE_ASSERT(reader.header() == header && reader.row_bytes() == row, path);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(header.height) * row);
  if (!reader.read_pixels(pixels.data())) refuse_damaged_image(path, reader.problem());
  return pixels;
}

}  // namespace deltapipe
