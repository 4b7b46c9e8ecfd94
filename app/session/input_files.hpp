// SPDX-License-Identifier: BSD-3-Clause
// The files that a deck names, and which of them are there: `check` prints what is missing, the
// other commands start with nothing missing.
#pragma once

#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "comm/transport/process_grid.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

/// The command that reads the files. train: also evaluate and check. train_between: the same, of a
/// rank between the first and the last of a pipeline and of export, which read no texts unless the
/// tokenizer or the vocabulary is made from them. tokenize needs no model.
enum class InputUse { train, train_between, generate, tokenize };

/// Returns the use by a rank of a training or an evaluation.
inline InputUse input_use(const ProcessGrid& grid) {
  return grid.first() || grid.last() ? InputUse::train : InputUse::train_between;
}

struct InputFiles {
  bool texts = false;            ///< all of data.train and data.validation
  bool tokenizer = false;        ///< load_tokenizer() finds one, or text to train one from
  bool config = false;           ///< model.path has a config.json
  bool weights = false;          ///< and weights
  std::vector<Mistake> missing;  ///< inputs that the use needs and lacks, with remedies
};

/// Opens files, but reads none.
InputFiles find_input_files(const Settings& settings, InputUse use);

/// Throws UserError for the first missing file, if any.
void require(const InputFiles& files);

/// The user's mistake where text meets no tokenizer.
Mistake no_tokenizer(const std::string& needed_for);

}  // namespace deltapipe
