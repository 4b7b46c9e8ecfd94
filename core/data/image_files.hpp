// SPDX-License-Identifier: BSD-3-Clause
// Files of labelled images: IDX (MNIST, Fashion-MNIST; plain or gzip) and the binary version of
// CIFAR-10 and CIFAR-100.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/base/image_shape.hpp"
#include "core/data/settings.hpp"

namespace deltapipe {

/// Images with 8 bits a value, and the class of each, if it is known.
struct LabelledImages {
  DataFormat format = DataFormat::idx;
  ImageShape shape;
  std::vector<std::uint8_t> pixels_NHWC;
  std::vector<std::int16_t> label_N;     ///< -1: unknown
  std::vector<std::string> name_N = {};  ///< of their files; empty: a file holds them all

  std::size_t size() const { return shape.values() == 0 ? 0 : pixels_NHWC.size() / shape.values(); }
};

/// Properties that a file's header, name and size give.
struct ImageFileInfo {
  ImageShape shape;
  std::uint64_t images = 0;
  DataFormat format = DataFormat::idx;
};

/// Returns the properties of a file. With DataFormat::automatic, the name and the size of a file
/// decide. Throws UserError.
ImageFileInfo image_file_info(const std::string& file, DataFormat format);

/// Returns the number of classes of CIFAR-10 and CIFAR-100; 0: the format does not tell.
constexpr int classes_of(DataFormat format) {
  return format == DataFormat::cifar10 ? 10 : format == DataFormat::cifar100 ? 100 : 0;
}

/// Returns the number of classes that a file's labels allow; for IDX, the largest label + 1. `info`
/// is the file's. Throws UserError.
int image_file_classes(const std::string& file, const ImageFileInfo& info);

/// Reads files in their order. All have one format and images of one shape. The labels of an IDX
/// file are in the file whose name has "labels-idx1" in place of "images-idx3". CIFAR-100 has its
/// fine labels. With `labels_optional`, IDX files may lack their labels; if one does, all labels
/// are unknown. Throws UserError for files that are missing, cut, too long, or contradict each
/// other.
LabelledImages read_image_files(const std::vector<std::string>& files, DataFormat format,
                                bool labels_optional = false);

}  // namespace deltapipe
