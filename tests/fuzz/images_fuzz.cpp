// SPDX-License-Identifier: BSD-3-Clause
// Files of images: IDX with its labels, and CIFAR. Parts of the input are separated by bytes 0xFE;
// the first byte chooses the format and whether a good header or good labels are supplied.
#include "core/data/image_files.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

std::string big_endian(std::size_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

void use(const std::string& file, DataFormat format) {
  fuzz::takes([&] {
    const ImageFileInfo info = image_file_info(file, format);
    const LabelledImages images = read_image_files({file}, format);
    fuzz::expect(images.shape == info.shape && images.size() == info.images);
    fuzz::expect(images.pixels_NHWC.size() == images.size() * images.shape.values());
    const int classes = image_file_classes(file, info);
    for (const std::int16_t label : images.label_N) fuzz::expect(label < classes);
    fuzz::count("taken");
  });
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return fuzz::mutate_with_choice(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text_of(data + 1, size - 1);
  std::vector<std::string> parts = fuzz::parts_of(rest);
  parts.resize(2);
  switch (data[0] % 4) {
    case 0:
      fuzz::write("a-labels-idx1-ubyte", parts[1]);
      use(fuzz::write("a-images-idx3-ubyte", parts[0]), DataFormat::automatic);
      break;
    case 1:  // images of 1 x 2 pixels, each with a label
      fuzz::write("a-labels-idx1-ubyte",
                  big_endian(0x801) + big_endian(parts[1].size()) + parts[1]);
      use(fuzz::write("a-images-idx3-ubyte", big_endian(0x803) + big_endian(parts[1].size()) +
                                                 big_endian(1) + big_endian(2) + parts[0]),
          DataFormat::idx);
      break;
    case 2:
      use(fuzz::write("a.bin", rest), DataFormat::automatic);
      break;
    default:
      use(fuzz::write("a", std::string(1, static_cast<char>(size % 11)) + std::string(3072, 'x') +
                               std::string(rest)),
          size % 2 == 0 ? DataFormat::cifar10 : DataFormat::cifar100);
  }
  return 0;
}
