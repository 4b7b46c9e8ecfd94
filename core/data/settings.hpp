// SPDX-License-Identifier: BSD-3-Clause
// Settings of the training text and of its division into samples.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace deltapipe {

struct TokenizerSettings {
  std::string path;          ///< directory or tokenizer.json; empty: the model's directory
  int train_vocabulary = 0;  ///< > 0: train a byte-level BPE of this size on the training text

  bool operator==(const TokenizerSettings&) const = default;
};

/// Treatment of a JSON line without a document: error ends the run and gives the line's place; skip
/// skips and counts it.
enum class BadLines { error, skip };
enum class DataFormat { automatic, text, jsonl, hdf5 };
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

struct DataSettings {
  std::vector<std::string> train;       ///< files, read in this order
  std::vector<std::string> validation;  ///< files; empty: the last validation_fraction of train
  double validation_fraction = 0.05;
  DataFormat format = DataFormat::automatic;  ///< automatic: by suffix .txt .jsonl .h5
  std::vector<std::string> jsonl_fields = {"text"};
  BadLines bad_lines = BadLines::error;
  Packing packing = Packing::stream;
  int sequence_length = 0;  ///< T; 0: the model's n_positions
  bool shuffle = true;
  std::uint64_t max_train_samples = 0;       ///< 0: all
  std::uint64_t max_validation_samples = 0;  ///< 0: all
  AnswerSettings answers = {};

  bool operator==(const DataSettings&) const = default;
};

}  // namespace deltapipe
