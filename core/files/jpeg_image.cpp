// SPDX-License-Identifier: BSD-3-Clause
#include <csetjmp>
#include <cstdio>
// jpeglib.h requires the declarations of <cstdio>.
#include <jerror.h>
#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <string>

#include "core/base/error.hpp"
#include "core/files/image_decoders.hpp"

namespace deltapipe {

namespace {

/// The error manager of libjpeg, which must not return from an error: it leaves the call by
/// longjmp. Calls are therefore in functions whose frames hold nothing that a destructor would
/// free, and all memory belongs to this class or to its user.
class JpegReader {
 public:
  explicit JpegReader(std::span<const std::byte> bytes) : bytes_(bytes) {
    jpeg_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = fail;
    errors_.base.emit_message = note;
    errors_.base.output_message = [](j_common_ptr) {};
    progress_.progress_monitor = count_scans;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  /// Reads up to the pixels. False at an error.
  bool begin() {
    if (setjmp(errors_.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
    jpeg_create_decompress(&jpeg_);
    jpeg_.progress = &progress_;
    jpeg_mem_src(&jpeg_, reinterpret_cast<const unsigned char*>(bytes_.data()),
                 static_cast<unsigned long>(bytes_.size()));
    (void)jpeg_read_header(&jpeg_, TRUE);
    return true;
  }
  ImageHeader header() const {
    return {ImageEncoding::jpeg, static_cast<int>(jpeg_.image_height),
            static_cast<int>(jpeg_.image_width)};
  }
  bool has_known_colours() const {
    return jpeg_.jpeg_color_space != JCS_UNKNOWN &&
           (jpeg_.num_components == 1 || jpeg_.num_components == 3 || jpeg_.num_components == 4);
  }
  bool is_cmyk() const { return jpeg_.num_components == 4; }

  /// Fills `pixels`, height x width x 3, and reads to the file's end. `row` has width x 4 bytes.
  bool read_pixels(std::uint8_t* pixels, std::uint8_t* row) {
    if (setjmp(errors_.jump) != 0) return false;  // NOLINT(cert-err52-cpp)
    jpeg_.out_color_space = is_cmyk() ? JCS_CMYK : JCS_RGB;
    (void)jpeg_start_decompress(&jpeg_);
    while (jpeg_.output_scanline < jpeg_.output_height) {
      std::uint8_t* const target =
          pixels + std::size_t{jpeg_.output_scanline} * jpeg_.output_width * 3;
      JSAMPROW place = is_cmyk() ? row : target;
      (void)jpeg_read_scanlines(&jpeg_, &place, 1);
      if (is_cmyk()) convert_cmyk(row, jpeg_.output_width, target);
    }
    (void)jpeg_finish_decompress(&jpeg_);
    return true;
  }
  const char* problem() const { return errors_.message.data(); }

 private:
  struct Errors {
    jpeg_error_mgr base{};  // first: libjpeg passes a pointer to it
    std::jmp_buf jump{};
    std::array<char, JMSG_LENGTH_MAX> message{};
  };

  static Errors& errors_of(j_common_ptr jpeg) { return *reinterpret_cast<Errors*>(jpeg->err); }

  [[noreturn]] static void fail(j_common_ptr jpeg) {
    Errors& errors = errors_of(jpeg);
    errors.base.format_message(jpeg, errors.message.data());
    std::longjmp(errors.jump, 1);  // NOLINT(cert-err52-cpp)
  }

  /// libjpeg only warns of pixels that are missing or wrong, and makes some up.
  static void note(j_common_ptr jpeg, int level) {
    if (level >= 0) return;
    switch (jpeg->err->msg_code) {
      case JWRN_EXTRANEOUS_DATA:
      case JWRN_ADOBE_XFORM:
      case JWRN_JFIF_MAJOR:
        return;
      default:
        fail(jpeg);
    }
  }

  static void count_scans(j_common_ptr jpeg) {
    const auto* const self = reinterpret_cast<j_decompress_ptr>(jpeg);
    if (self->input_scan_number <= image_limit::scans) return;
    Errors& errors = errors_of(jpeg);
    std::snprintf(errors.message.data(), errors.message.size(), "it has more than %d scans",
                  image_limit::scans);
    std::longjmp(errors.jump, 1);  // NOLINT(cert-err52-cpp)
  }

  /// As Pillow: ink is stored inverted, as Adobe's programs do, and the result is
  /// white - black - ink x (white - black).
  static void convert_cmyk(const std::uint8_t* cmyk, std::size_t pixels, std::uint8_t* rgb) {
    for (std::size_t i = 0; i < pixels; ++i) {
      const std::uint32_t white = cmyk[4 * i + 3];
      for (std::size_t c = 0; c < 3; ++c) {
        const std::uint32_t product = (255u - cmyk[4 * i + c]) * white + 128;
        rgb[3 * i + c] = static_cast<std::uint8_t>(white - ((product >> 8) + product) / 256);
      }
    }
  }

  std::span<const std::byte> bytes_;
  Errors errors_;
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct jpeg_{};
};

}  // namespace

std::vector<std::uint8_t> decode_jpeg(const std::string& path, std::span<const std::byte> bytes,
                                      const ImageHeader& header) {
  JpegReader reader(bytes);
  if (!reader.begin()) refuse_damaged_image(path, reader.problem());
  if (reader.header() != header) refuse_damaged_image(path, "it announces more than one size");
  if (!reader.has_known_colours())
    throw UserError({.what = "the image has colours that are not read",
                     .file = path,
                     .remedy = "convert it to grey or red, green and blue, or remove it"});
  const auto width = static_cast<std::size_t>(header.width);
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(header.height) * width * 3);
  std::vector<std::uint8_t> row(width * 4);
  if (!reader.read_pixels(pixels.data(), row.data())) refuse_damaged_image(path, reader.problem());
  return pixels;
}

}  // namespace deltapipe
