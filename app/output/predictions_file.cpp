// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/predictions_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"

namespace deltapipe {

namespace {

constexpr std::uint64_t kPredictionsChunk = 1024;

hdf5::Dataset create_column(hdf5::File& file, const char* name, hdf5::ElementType type) {
  return file.create_dataset(name, type, {0}, {.chunk = {kPredictionsChunk}});
}

/// Returns a field of a CSV line, in quotes where RFC 4180 requires them.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

}  // namespace

PredictionsFile::PredictionsFile(const std::string& directory, std::vector<std::string> classes,
                                 const std::string& model, const std::string& deck, bool named)
    : classes_(std::move(classes)),
      named_(named),
      hdf5_file_(directory + "/predictions.h5"),
      csv_file_(directory + "/predictions.csv"),
      hdf5_(hdf5::File::create(hdf5_file_.temporary_path(), {.shown_path = hdf5_file_.path()})),
      label_(create_column(hdf5_, "label", hdf5::ElementType::i32)),
      prediction_(create_column(hdf5_, "prediction", hdf5::ElementType::i32)),
      probabilities_(hdf5_.create_dataset("probabilities", hdf5::ElementType::f32,
                                          {0, classes_.size()},
                                          {.chunk = {kPredictionsChunk, classes_.size()}})) {
  if (classes_.size() <= kMostConfused) confusion_.resize(classes_.size() * classes_.size());
  hdf5_.write_attribute("classes", classes_);
  hdf5_.write_attribute("model", model);
  hdf5_.write_attribute("deck", deck);
  std::string header = named_ ? "sample,file,label,prediction" : "sample,label,prediction";
  for (const std::string& name : classes_) header += "," + csv_field("p(" + name + ")");
  csv_file_.append(bytes_of(header + "\r\n"));
}

std::string PredictionsFile::csv_line(std::int32_t label, std::int32_t prediction,
                                      std::span<const float> probabilities,
                                      const std::string* file) const {
  const auto name = [&](std::int32_t index) {
    return index < 0 ? std::string() : csv_field(classes_[static_cast<std::size_t>(index)]);
  };
  std::string line = fmt::format("{},", samples_);
  if (file != nullptr) line += csv_field(*file) + ",";
  line += name(label) + "," + name(prediction);
  for (const float p : probabilities) line += "," + number_text("%.6g", p);
  return line + "\r\n";
}

void PredictionsFile::append(std::span<const std::int32_t> label_B,
                             std::span<const float> probabilities,
                             std::span<const std::string> file_B) {
  DELTAPIPE_ASSERT(file_B.size() == (named_ ? label_B.size() : 0),
                   fmt::format("{} files", file_B.size()));
  const std::size_t classes = classes_.size();
  DELTAPIPE_ASSERT(probabilities.size() == label_B.size() * classes,
                   fmt::format("{} probabilities", probabilities.size()));
  std::vector<std::int32_t> predicted;
  std::string lines;
  for (std::size_t b = 0; b < label_B.size(); ++b) {
    const auto row = probabilities.subspan(b * classes, classes);
    predicted.push_back(static_cast<std::int32_t>(std::ranges::max_element(row) - row.begin()));
    lines += csv_line(label_B[b], predicted.back(), row, named_ ? &file_B[b] : nullptr);
    ++samples_;
    if (label_B[b] < 0) continue;
    ++labelled_;
    if (label_B[b] == predicted.back()) ++right_;
    if (!confusion_.empty())
      ++confusion_[static_cast<std::size_t>(label_B[b]) * classes +
                   static_cast<std::size_t>(predicted.back())];
  }
  label_.append(label_B);
  prediction_.append(std::span<const std::int32_t>(predicted));
  probabilities_.append(probabilities);
  csv_file_.append(bytes_of(lines));
}

void PredictionsFile::commit() {
  if (labelled_ > 0 && !confusion_.empty())
    hdf5_
        .create_dataset("confusion", hdf5::ElementType::u64, {0, classes_.size()},
                        {.chunk = {classes_.size(), classes_.size()}})
        .append(std::span<const std::uint64_t>(confusion_));
  hdf5_.close();
  hdf5_file_.commit();
  csv_file_.commit();
}

}  // namespace deltapipe
