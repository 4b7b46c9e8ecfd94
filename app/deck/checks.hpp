// SPDX-License-Identifier: BSD-3-Clause
// What a deck must satisfy as a whole, without knowing model and data.
#pragma once

#include <cstdint>

#include "app/deck/keys.hpp"

namespace deltapipe::deck {

/// Merges the link lists of the draft into its network settings. Throws UserError that names keys.
void join_links(Draft& draft);

/// Throws UserError that names keys when settings contradict each other.
void check_settings(const Settings& settings);
/// Throws UserError if evaluations are due after epochs, between outer steps of replicas. `steps`:
/// those of a run with validation data.
void check_local_epochs(const Settings& settings, std::uint64_t steps_per_epoch,
                        std::uint64_t steps);

}  // namespace deltapipe::deck
