// SPDX-License-Identifier: BSD-3-Clause
// Settings of the training data and of their division into samples.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace deltapipe {

struct TokenizerSettings {
  std::string path;          ///< directory or tokenizer.json; empty: the model's directory
  int train_vocabulary = 0;  ///< > 0: train a byte-level BPE of this size on the training text

  bool operator==(const TokenizerSettings&) const = default;
};

/// Treatment of a line without a document or record: error ends the run and gives the line's place;
/// skip skips and counts it.
enum class BadLines { error, skip };
/// directory: PNG and JPEG files in a directory, with a sub-directory for each class.
enum class DataFormat { automatic, text, jsonl, csv, tsv, hdf5, idx, cifar10, cifar100, directory };
/// Names of DataFormat, in its order.
inline constexpr std::array kDataFormatNames = {
    "automatic", "text", "jsonl", "csv", "tsv", "hdf5", "idx", "cifar10", "cifar100", "directory"};
/// Returns the name of a format as in a deck.
constexpr const char* name_of(DataFormat format) {
  return kDataFormatNames[static_cast<std::size_t>(format)];
}
/// Returns true for formats of images only.
constexpr bool is_of_images(DataFormat format) {
  return format == DataFormat::idx || format == DataFormat::cifar10 ||
         format == DataFormat::cifar100 || format == DataFormat::directory;
}
/// text: windows of documents, whose targets are the next tokens. labelled_text: records with one
/// or two texts and a label, which is the target. images: images with a label each.
enum class DataKind { text, labelled_text, images };
/// Names of DataKind, in its order.
inline constexpr std::array kDataKindNames = {"text", "labelled_text", "images"};
/// Returns true for samples that are texts, which require a tokenizer or token files.
constexpr bool is_text(DataKind kind) {
  return kind != DataKind::images;
}
/// Returns the name of a kind as in a deck.
constexpr const char* name_of(DataKind kind) {
  return kDataKindNames[static_cast<std::size_t>(kind)];
}
/// stream: documents are joined by the end-of-text token and cut into windows that overlap by one
/// token. document: every document starts a new window, and its last window is padded.
enum class Packing { stream, document };

/// Prompts whose greedy answers an evaluation compares with the expected ones.
struct AnswerSettings {
  std::vector<std::string> files;  ///< JSON lines; empty: evaluations compare no answers
  std::string prompt_field = "prompt";
  std::string answer_field = "answer";
  std::string end;  ///< text that ends every answer; empty: the end-of-text token

  bool operator==(const AnswerSettings&) const = default;
};

/// Records of labelled texts.
struct LabelledTextSettings {
  std::vector<std::string> texts = {"text"};  ///< fields of one text or of two
  std::string label = "label";                ///< field of the label: a name or a class's number
  bool header = true;                         ///< csv, tsv: the first line names the columns

  bool operator==(const LabelledTextSettings&) const = default;
};

/// crop: images of directories are resized until they cover the size, and their centre is kept.
/// stretch: height and width are resized independently.
enum class ImageFit { crop, stretch };
/// Names of ImageFit, in its order.
inline constexpr std::array kImageFitNames = {"crop", "stretch"};

/// Size, normalisation and augmentation of images.
struct ImageSettings {
  /// Height and width of images of directories, or a side; empty: the model's or the images' own.
  std::vector<int> size = {};
  ImageFit fit = ImageFit::crop;
  std::vector<double> mean = {0.5};       ///< of values from 0 to 1: one for all channels, or each
  std::vector<double> deviation = {0.5};  ///< likewise
  int padding = 0;    ///< pixels: training crops the image's size out of the padded image
  bool flip = false;  ///< training flips half of the images

  int height() const { return size.empty() ? 0 : size.front(); }
  int width() const { return size.empty() ? 0 : size.back(); }
  bool operator==(const ImageSettings&) const = default;
};

struct DataSettings {
  DataKind kind = DataKind::text;
  std::vector<std::string> train;       ///< files or directories, read in this order
  std::vector<std::string> validation;  ///< likewise; empty: the last validation_fraction of train
  double validation_fraction = 0.05;
  std::vector<std::string> predict;           ///< files of `predict`; empty: the validation samples
  DataFormat format = DataFormat::automatic;  ///< automatic: by suffix
  std::vector<std::string> jsonl_fields = {"text"};
  BadLines bad_lines = BadLines::error;
  Packing packing = Packing::stream;
  int sequence_length = 0;  ///< T; 0: the model's n_positions
  bool shuffle = true;
  std::uint64_t max_train_samples = 0;       ///< 0: all
  std::uint64_t max_validation_samples = 0;  ///< 0: all
  AnswerSettings answers = {};
  LabelledTextSettings labelled = {};
  ImageSettings images = {};
  bool labels_optional = false;  ///< not in a deck: samples may lack a label, as in predict

  bool operator==(const DataSettings&) const = default;
};

}  // namespace deltapipe
