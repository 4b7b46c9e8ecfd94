// SPDX-License-Identifier: BSD-3-Clause
// The inputs of a run that exist before it, for commands that tell what the run will be like.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/session/input_files.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/stage_plan.hpp"

namespace deltapipe {

/// The inputs of a run that are available.
struct AvailableInputs {
  InputFiles files;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::optional<SafetensorsReader> weights;
  std::unique_ptr<Model> model;
  std::optional<DataSplit> data;
  std::string assumption;  ///< about vocabulary, classes and images, where they are not known
  std::vector<std::string> warnings;

  void assume(const std::string& what) { assumption += (assumption.empty() ? "" : "; ") + what; }
  bool has_tokens_only(const DataSettings& settings) const {
    return files.texts && holds_tokens_only(settings);
  }
};

/// Reads the model and the tokenizer. Throws UserError if they do not fit together or the deck.
AvailableInputs read_available_inputs(const Settings& settings);

/// Reads the data if all that they require exists.
void read_available_data(const Settings& settings, const ModelLayout& model,
                         AvailableInputs& inputs);

PipelineShape planned_shape(const Settings& settings, const AvailableInputs& inputs,
                            const ModelLayout& model);

}  // namespace deltapipe
