// SPDX-License-Identifier: BSD-3-Clause
// The decoders of image_file.hpp: all that calls libpng and libjpeg.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/files/image_file.hpp"

namespace deltapipe {

/// Throws the UserError of a file that is damaged. `problem`: what is wrong with it.
[[noreturn]] void refuse_damaged_image(const std::string& path, const std::string& problem);

/// Each decodes the whole image as red, green and blue. `bytes` are the file `path`, whose header
/// has been read. Throws UserError.
std::vector<std::uint8_t> decode_png(const std::string& path, std::span<const std::byte> bytes,
                                     const ImageHeader& header);
std::vector<std::uint8_t> decode_jpeg(const std::string& path, std::span<const std::byte> bytes,
                                      const ImageHeader& header);

}  // namespace deltapipe
