// SPDX-License-Identifier: BSD-3-Clause
// Predictions of classes as files: DIRECTORY/predictions.h5 and DIRECTORY/predictions.csv.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

/// Both files appear complete on commit(), or not at all.
///
/// predictions.h5 has a row for each sample: `label` (int32; -1: unknown), `prediction` (int32) and
/// `probabilities` ([samples, classes], float32). If labels are known and there are at most
/// kMostConfused classes, `confusion` ([classes, classes], uint64) counts samples by label and
/// prediction. Its attributes are `classes` (the names), `model` and `deck`. predictions.csv has
/// the same with names of classes, after a header line, as RFC 4180 defines it. If samples are
/// files, its second column has their names.
class PredictionsFile {
 public:
  /// `classes` are the names of at least two classes. `named`: samples are files. UserError if a
  /// file cannot be written.
  PredictionsFile(const std::string& directory, std::vector<std::string> classes,
                  const std::string& model, const std::string& deck, bool named = false);

  /// Appends samples. probabilities is [label_B, classes]; file_B has their files or is empty.
  void append(std::span<const std::int32_t> label_B, std::span<const float> probabilities,
              std::span<const std::string> file_B = {});
  void commit();

  /// Returns the number of appended samples with a label, and how many of them are right.
  std::uint64_t labelled() const { return labelled_; }
  std::uint64_t right() const { return right_; }
  static constexpr std::size_t kMostConfused = 2048;
  /// Returns the samples by label (rows) and prediction; empty: not counted.
  const std::vector<std::uint64_t>& confusion() const { return confusion_; }
  const std::string& hdf5_path() const { return hdf5_file_.path(); }
  const std::string& csv_path() const { return csv_file_.path(); }

 private:
  std::string csv_line(std::int32_t label, std::int32_t prediction,
                       std::span<const float> probabilities, const std::string* file) const;

  std::vector<std::string> classes_;
  bool named_;
  AtomicFile hdf5_file_, csv_file_;
  hdf5::File hdf5_;
  hdf5::Dataset label_, prediction_, probabilities_;
  std::uint64_t samples_ = 0, labelled_ = 0, right_ = 0;
  std::vector<std::uint64_t> confusion_;
};

}  // namespace deltapipe
