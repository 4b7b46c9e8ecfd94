// SPDX-License-Identifier: BSD-3-Clause
// The data that a rank reads.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "app/session/session.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/data/dataset.hpp"

namespace deltapipe {

/// Reads the samples of the deck's kind of data. `tokens` is T. Throws UserError.
DataSplit read_samples(const DataSettings& settings, const Model& model,
                       const Vocabulary& vocabulary, int tokens);

/// The data of a run, as far as this rank's stage needs them: the first and the last stage read the
/// files, for inputs and targets; the stages between get outlines of the sets from the first one.
/// All ranks call it together. Throws UserError as load_data().
DataSplit load_data(const DataSettings& settings, const ModelPlan& plan, const ProcessGrid& grid,
                    ProgressThread& progress);

/// The outline of a set of any kind as numbers, and a set with its sizes, lengths and fingerprint.
/// InternalError for numbers that do not exist.
void put_outline(const Dataset& set, std::vector<std::uint64_t>& numbers);
TokenDataset take_outline(std::span<const std::uint64_t>& numbers);

}  // namespace deltapipe
