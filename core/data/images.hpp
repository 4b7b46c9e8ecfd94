// SPDX-License-Identifier: BSD-3-Clause
// Images with a label each: the samples of image classification.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.hpp"
#include "core/data/image_files.hpp"
#include "core/data/image_view.hpp"

namespace deltapipe {

/// Samples with Field::values [H, W, C], normalised, and Field::label. Training sees another view
/// of an image at each visit if the settings ask for crops or flips.
class Images final : public Dataset {
 public:
  /// Sample i is image index[i] of `images`. `rows`: T of the model, the same for all samples.
  Images(std::shared_ptr<const LabelledImages> images, std::vector<std::uint32_t> index,
         const ImageSettings& settings, int rows);

  std::uint64_t size() const override { return index_.size(); }
  int sequence_length() const override { return rows_; }
  FieldSizes fields() const override;
  int length(std::uint64_t) const override { return rows_; }
  int targets(std::uint64_t) const override { return 1; }
  std::uint64_t all_targets() const override { return index_.size(); }
  void read(std::uint64_t id, const SampleVisit& visit, const SampleSpans& fields) const override;
  std::string file(std::uint64_t id) const override;
  /// Returns xxh64 of shapes, pixels and labels.
  std::uint64_t fingerprint() const override;

 private:
  ImageView view_of(std::uint64_t id, const SampleVisit& visit) const;

  std::shared_ptr<const LabelledImages> images_;
  std::vector<std::uint32_t> index_;
  int padding_;
  bool flips_;
  int rows_;
  std::vector<float> scale_C_, shift_C_;  // normalised = pixel * scale + shift
};

/// Returns the shape of the training images: of directories, settings.images.size with 3 channels
/// or, without it, the one size that all of them have. Throws UserError.
ImageShape image_shape(const DataSettings& settings);

/// Returns the names of the classes of the training images: those of CIFAR-10 or of the
/// sub-directories, else numbers from "0". Throws UserError for unreadable files and for fewer than
/// two classes.
std::vector<std::string> image_classes(const DataSettings& settings);

/// Reads the images of a run, for a model of images of this shape with these classes, which makes
/// `rows` rows of each. Those of directories are resized to the shape. Without training files there
/// are only validation images, and with settings.labels_optional they may lack labels, which are -1
/// then. Without validation files a part of the training images, chosen at random but the same in
/// every run, is held out. Throws UserError.
DataSplit load_images(const DataSettings& settings, const ImageShape& shape,
                      const std::vector<std::string>& classes, int rows);

}  // namespace deltapipe
