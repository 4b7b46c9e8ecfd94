// SPDX-License-Identifier: BSD-3-Clause
// Texts, or pairs of texts, with a label each: the samples of text classification.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/data/dataset.hpp"

namespace deltapipe {

class LabelledTexts final : public Dataset {
 public:
  struct Sample {
    std::uint64_t start = 0;
    std::int32_t length = 0;  ///< tokens, marks included; at least 1
    std::int32_t first = 0;   ///< of them in the first text and its marks, which are segment 0
    std::int32_t label = -1;  ///< class; -1: unknown
  };

  LabelledTexts(std::shared_ptr<const TokenStore> store, std::vector<Sample> samples,
                int sequence_length, std::int32_t padding)
      : store_(std::move(store)),
        samples_(std::move(samples)),
        sequence_length_(sequence_length),
        padding_(padding) {}

  std::uint64_t size() const override { return samples_.size(); }
  int sequence_length() const override { return sequence_length_; }
  FieldSizes fields() const override;
  int length(std::uint64_t id) const override { return samples_[id].length; }
  int targets(std::uint64_t) const override { return 1; }
  std::uint64_t all_targets() const override { return samples_.size(); }
  void read(std::uint64_t id, const SampleVisit& visit, const SampleSpans& fields) const override;
  /// Returns xxh64 of sequence length, tokens, segments and labels.
  std::uint64_t fingerprint() const override;

 private:
  std::shared_ptr<const TokenStore> store_;
  std::vector<Sample> samples_;
  int sequence_length_;
  std::int32_t padding_;
};

/// Numbers of tokens that two texts keep of n1 and n2, at most `most` in all: the longer text loses
/// its end first, as with the truncation "longest_first" of Hugging Face's tokenizers.
struct KeptTokens {
  std::size_t first = 0, second = 0;
};
KeptTokens truncate_longest_first(std::size_t n1, std::size_t n2, std::size_t most);

/// Returns the distinct labels of the training files, sorted: by value if all are whole numbers,
/// else as texts. Throws UserError for unreadable files and for fewer than two labels.
std::vector<std::string> labels_of_files(const DataSettings& settings);

/// Returns the texts of all training files, for training a tokenizer. Throws UserError.
std::vector<std::string> labelled_training_texts(const DataSettings& settings);

/// Reads the labelled texts of a run. A label is one of `classes` or, if it is not, the number of a
/// class. Without training files there are only validation samples, and with
/// settings.labels_optional records may lack a label, which is -1 then. Without validation files a
/// part of the training samples, chosen at random but the same
/// in every run, is held out. Throws UserError.
DataSplit load_labelled_texts(const DataSettings& settings, const Vocabulary& vocabulary,
                              const std::vector<std::string>& classes, int sequence_length);

}  // namespace deltapipe
