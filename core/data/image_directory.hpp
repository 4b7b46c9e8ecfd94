// SPDX-License-Identifier: BSD-3-Clause
// Directories of PNG and JPEG files: one sub-directory for each class, as torchvision's ImageFolder
// reads them, or images without labels.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/data/image_files.hpp"
#include "core/data/settings.hpp"

namespace deltapipe {

/// The images of directories, which are not read yet.
struct ImageList {
  std::vector<std::string> files;
  /// Printable names of the files, without their directory if there is only one.
  std::vector<std::string> names;
  std::vector<std::int16_t> label_N;  ///< -1: unknown
  std::uint64_t ignored = 0;          ///< files and hidden directories that are not read
  std::string first_ignored;

  std::size_t size() const { return files.size(); }
};

/// Returns the names of the classes of a directory, sorted as bytes: those of its sub-directories.
/// Throws UserError, also for a directory without sub-directories.
std::vector<std::string> directory_classes(const std::string& directory);

/// Lists the images in directories, in the order of directories, classes and names; directories
/// within classes belong to them. Files are images by their suffix: .png, .jpg or .jpeg. The rest
/// is counted, but suffixes of other images are refused. With `labels_optional`, a directory
/// without sub-directories has images without labels. Without `classes`, labels are not looked up.
/// Throws UserError for sub-directories that are not one of `classes` or lack images.
ImageList list_image_directories(const std::vector<std::string>& directories,
                                 const std::vector<std::string>& classes, bool labels_optional);

/// Returns the size of the images, which must be the same; only their headers are read. Throws
/// UserError.
ImageShape common_size(const ImageList& list);

/// Reads some images of the list, on several threads, and resizes them to `shape`. Throws the
/// UserError of the first file that cannot be read, and one if memory does not suffice.
LabelledImages read_listed_images(const ImageList& list, std::span<const std::uint32_t> index,
                                  const ImageShape& shape, ImageFit fit);

}  // namespace deltapipe
