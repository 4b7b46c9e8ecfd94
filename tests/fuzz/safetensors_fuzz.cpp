// SPDX-License-Identifier: BSD-3-Clause
// Weights: the header of a file with some data behind it, a whole file, or an index.
#include "core/files/safetensors.hpp"
#include "core/files/safetensors_header.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

void read_all(const std::string& path) {
  fuzz::takes([&] {
    const SafetensorsReader reader = SafetensorsReader::open_file(path);
    for (const auto& tensor : reader.tensors()) {
      std::vector<float> values(tensor.second.elements());
      fuzz::takes([&] { reader.read_fp32(tensor.first, values); });
    }
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::string_view text = fuzz::text_of(data + 2, size - 2);
  switch (data[0] % 3) {
    case 0: {
      std::string file;
      for (int i = 0; i < 8; ++i) file += static_cast<char>((text.size() >> (8 * i)) & 0xFF);
      file += text;
      read_all(fuzz::write("a.safetensors", file + std::string(data[1], '\x3F')));
      break;
    }
    case 1:
      read_all(fuzz::write("a.safetensors", text));
      break;
    default:
      fuzz::takes([&] { parse_safetensors_index(std::string(text), "index.json"); });
  }
  return 0;
}
