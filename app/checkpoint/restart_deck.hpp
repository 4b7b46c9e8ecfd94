// SPDX-License-Identifier: BSD-3-Clause
// Settings and data that must be those of the checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/deck/settings.hpp"

namespace deltapipe {

/// Throws UserError that names the first key that must not change from what the checkpoint was
/// written with, its old and its new value.
void check_deck_of_restart(const Settings& settings, const CheckpointMarker& marker);

/// Settings of the optimizer and the run's length that differ from the checkpoint's, as
/// "KEY = OLD -> NEW, ...".
std::string changes_of_optimizer(const Settings& settings, const CheckpointMarker& marker);

/// Throws UserError if the checkpoint was written with other data.
void check_data_of_restart(const CheckpointMarker& marker, std::uint64_t train_fingerprint,
                           std::uint64_t validation_fingerprint);

/// Throws the UserError of a key that must not change, with its old and its new value. `why`
/// follows "must not change at a restart".
[[noreturn]] void refuse_change(const CheckpointMarker& marker, const std::string& key,
                                const std::string& old_value, const std::string& new_value,
                                const std::string& why);

}  // namespace deltapipe
