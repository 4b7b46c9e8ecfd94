// SPDX-License-Identifier: BSD-3-Clause
// JPEG files. The first byte chooses whether the image becomes grey.
#include "image_support.hpp"

using namespace deltapipe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  fuzz::use_image(fuzz::text_of(data + 1, size - 1), data[0] % 2 == 1);
  return 0;
}
