// SPDX-License-Identifier: BSD-3-Clause
// PNG files. The first byte chooses whether the image becomes grey, and what is made right, which
// no mutation would: nothing, the checksums of the chunks, or also the compression of the pixels.
#include <zlib.h>

#include <algorithm>

#include "image_support.hpp"

using namespace deltapipe;

namespace {

constexpr std::size_t kSignature = 8, kHeader = 13;

std::string big_endian(std::size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

std::string chunk(std::string_view name_and_data) {
  const auto sum = crc32(0, reinterpret_cast<const Bytef*>(name_and_data.data()),
                         static_cast<uInt>(name_and_data.size()));
  return big_endian(name_and_data.size() - 4) + std::string(name_and_data) + big_endian(sum);
}

/// Returns the file with correct checksums in its complete chunks.
std::string with_checksums(std::string_view file) {
  std::string result(file.substr(0, kSignature));
  std::size_t at = kSignature;
  while (at + 12 <= file.size()) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i)
      length = length << 8 | static_cast<unsigned char>(file[at + i]);
    if (length > file.size() - at - 12) break;
    result += chunk(file.substr(at + 4, length + 4));
    at += length + 12;
  }
  return result + std::string(file.substr(std::min(at, file.size())));
}

/// Returns a file of a header and the pixels that follow it.
std::string compressed(std::string_view parts) {
  if (parts.size() < kHeader) return std::string(parts);
  const std::string_view pixels = parts.substr(kHeader);
  std::string data(compressBound(static_cast<uLong>(pixels.size())), '\0');
  uLongf size = static_cast<uLongf>(data.size());
  fuzz::expect(compress2(reinterpret_cast<Bytef*>(data.data()), &size,
                         reinterpret_cast<const Bytef*>(pixels.data()),
                         static_cast<uLong>(pixels.size()), 1) == Z_OK);
  return "\x89PNG\r\n\x1a\n" + chunk("IHDR" + std::string(parts.substr(0, kHeader))) +
         chunk("PLTE" + std::string(30, 'p')) + chunk("IDAT" + data.substr(0, size)) +
         chunk("IEND");
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return fuzz::mutate_with_choice(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text_of(data + 1, size - 1);
  const bool grey = data[0] % 2 == 1;
  switch (data[0] / 2 % 3) {
    case 0:
      fuzz::use_image(rest, grey);
      break;
    case 1:
      fuzz::use_image(with_checksums(rest), grey);
      break;
    default:
      fuzz::use_image(compressed(rest), grey);
  }
  return 0;
}
