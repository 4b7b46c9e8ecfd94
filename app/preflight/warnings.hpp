// SPDX-License-Identifier: BSD-3-Clause
// Warnings about settings that are valid but doubtful.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "models/model.hpp"

namespace deltapipe {

/// Sentences that tell what is doubtful and what to do, for a deck and the model that it trains
/// (with the deck's dropout). Empty: nothing is.
std::vector<std::string> warnings_of(const Settings& settings, const DropoutProbabilities& dropout);

/// Ranks that emulate the deck's products in bf16.
struct EmulatingRanks {
  int count = 0;
  int all = 1;
};
/// For this rank alone.
EmulatingRanks emulating_ranks(const Settings& settings);

/// The same, for what these ranks compute with.
std::vector<std::string> warnings_of_precision(const Settings& settings,
                                               const EmulatingRanks& ranks);

/// Links so slow that a unit was probably forgotten.
std::vector<std::string> warnings_of_network(const NetworkSettings& network);
/// The same, for the bandwidths that a plan compares.
std::vector<std::string> warnings_of_bandwidths(const std::vector<double>& bandwidths);

/// Batch normalisation over one value, which leaves only its bias, and crops without a pixel of
/// their image.
std::vector<std::string> warnings_of_model(const Settings& settings, const ModelShape& model);

/// A pipeline whose schedule leaves stages idle for much of a step.
std::vector<std::string> warnings_of_bubble(const Settings& settings);

/// The same, for what only the number of steps tells.
std::vector<std::string> warnings_of_steps(const Settings& settings, std::uint64_t steps);

/// For commands that use a model: the deck names none, so that its weights are initial values.
std::vector<std::string> warnings_of_untrained(const Settings& settings);

/// Links of model.path and tokenizer.path to files that are missing, as in a cache of downloads
/// that was copied in part: what may be missing would be missing unnoticed.
std::vector<std::string> warnings_of_links(const Settings& settings);

/// For commands that evaluate: codecs that leave nothing out make no difference there, and keys of
/// answers that nothing is compared with.
std::vector<std::string> warnings_of_evaluation(const Settings& settings);

/// Prints warnings to stderr, a line each; for one rank.
void print_warnings(const std::vector<std::string>& warnings);
/// Prints them among the lines of `check`.
void print_warning_lines(const std::vector<std::string>& warnings);

}  // namespace deltapipe
