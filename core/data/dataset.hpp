// SPDX-License-Identifier: BSD-3-Clause
// The contract of a data set, and its first kind: tokens in memory, cut into the samples of a run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/sample_fields.hpp"
#include "core/data/corpus.hpp"
#include "core/data/settings.hpp"
#include "core/text/vocabulary.hpp"

namespace deltapipe {

class TokenStore;

/// Visit of a sample. Augmentation is a function of seed, epoch and the sample's id, so that it
/// does not depend on the layout or on a restart.
struct SampleVisit {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;  ///< epochs completed before
  bool training = false;    ///< evaluations do not augment
};

/// Samples by id. The id of a sample is its index, 0 ... size() - 1, the same in every epoch,
/// layout and restart.
class Dataset {
 public:
  virtual ~Dataset() = default;

  /// Returns the number of samples.
  virtual std::uint64_t size() const = 0;
  /// Returns T, the rows of the longest sample.
  virtual int sequence_length() const = 0;
  virtual FieldSizes fields() const = 0;
  /// Returns the number of valid rows of a sample, at most T. Rows after them are padding.
  virtual int length(std::uint64_t id) const = 0;
  /// Returns the number of targets of a sample, at most its length.
  virtual int targets(std::uint64_t id) const = 0;
  /// Returns the number of targets in all samples.
  virtual std::uint64_t all_targets() const = 0;
  /// Fills the spans that are not empty, padding included. Any number of threads may read.
  virtual void read(std::uint64_t id, const SampleVisit& visit,
                    const SampleSpans& fields) const = 0;
  /// Returns the name of the file that is the sample; empty for samples of other files.
  virtual std::string file(std::uint64_t) const { return {}; }
  /// Returns a hash of all samples: sets with equal fingerprints have equal samples.
  virtual std::uint64_t fingerprint() const = 0;
};

/// A sample: `length` inputs from token `start` on. Each target is the token after its input, from
/// input `first_target` on; the inputs before it have no targets.
struct TokenWindow {
  std::uint64_t start = 0;
  std::int32_t length = 0;
  std::int32_t first_target = 0;
};

/// Samples of T inputs and T targets (the next tokens), in file order. Training and validation sets
/// count their own ids from 0. Copies share the tokens.
class TokenDataset final : public Dataset {
 public:
  TokenDataset() = default;
  /// Shares `store`. `padding` is the id that fills inputs after a window.
  TokenDataset(std::shared_ptr<const TokenStore> store, std::vector<TokenWindow> windows,
               int sequence_length, std::int32_t padding);

  /// Returns these samples without their tokens: `start` is ignored, and read() gives padding.
  /// `fingerprint` is that of the samples.
  static TokenDataset outline(std::vector<TokenWindow> windows, int sequence_length,
                              std::int32_t padding, std::uint64_t fingerprint);

  /// Returns a set whose sample i is sample ids[i] of this set up to its target `index` (from 0,
  /// below targets()), which is its only target.
  TokenDataset at_target(int index, std::span<const std::uint64_t> ids) const;

  std::uint64_t size() const override { return windows_.size(); }
  int sequence_length() const override { return sequence_length_; }
  FieldSizes fields() const override { return fields_of_text(sequence_length_); }
  std::uint64_t all_targets() const override { return targets_; }

  /// Copies sample `id` into spans of sequence_length() elements, or none, and returns its length.
  /// From there on inputs are the padding id and targets are -1; targets before the first one are
  /// -1 as well.
  int read(std::uint64_t id, std::span<std::int32_t> inputs_T,
           std::span<std::int32_t> targets_T) const;
  void read(std::uint64_t id, const SampleVisit&, const SampleSpans& fields) const override {
    read(id, fields.integers(Field::tokens), fields.integers(Field::next_tokens));
  }

  int length(std::uint64_t id) const override { return windows_[id].length; }
  /// Returns the input of a sample that predicts its first target.
  int first_target(std::uint64_t id) const { return windows_[id].first_target; }
  int targets(std::uint64_t id) const override { return length(id) - first_target(id); }
  std::int32_t padding() const { return padding_; }

  /// Returns xxh64 of sequence length, windows and tokens.
  std::uint64_t fingerprint() const override;

 private:
  std::shared_ptr<const TokenStore> store_;
  std::vector<TokenWindow> windows_;
  int sequence_length_ = 0;
  std::int32_t padding_ = 0;
  std::uint64_t targets_ = 0;
  std::optional<std::uint64_t> outlined_;  ///< fingerprint of an outline
};

struct DataSplit {
  std::shared_ptr<const Dataset> train = std::make_shared<TokenDataset>();
  /// Empty only if validation_fraction is 0 and no file is named.
  std::shared_ptr<const Dataset> validation = std::make_shared<TokenDataset>();
  TokenDataset answers;  ///< prompts with answers, which are the targets; empty: none are named
  std::vector<SkippedLines> skipped;  ///< skipped lines of all files
  std::vector<std::string> notes;     ///< what a user should know of the samples
};

/// Reads and cuts the data of a run; T = sequence_length (settings.sequence_length is ignored). The
/// end-of-text token, if there is one, is appended to every document that does not end with it.
/// Packing::stream cuts all documents of a set as one; Packing::document cuts each document
/// separately. A last window of fewer than T + 1 tokens is padded. Windows overlap by one token.
/// Without validation files the last validation_fraction of the windows, at least one, is held out.
/// Files of settings.answers give one sample per line. Throws UserError for data that cannot be
/// read or that gives no sample.
DataSplit load_data(const DataSettings& settings, const Vocabulary& vocabulary,
                    int sequence_length);

}  // namespace deltapipe
