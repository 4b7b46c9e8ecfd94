// SPDX-License-Identifier: BSD-3-Clause
// Keys of [replicas] and [network.replicas].
#pragma once

#include <vector>

#include "app/deck/keys.hpp"

namespace deltapipe::deck {

void add_replicas(std::vector<Key>& keys, ReplicaSettings& settings);
void add_replica_links(std::vector<Key>& keys, Draft::Links& links);

/// Throws UserError if the settings contradict each other.
void check_replicas(const ReplicaSettings& settings);
/// Sets the links' settings. Throws UserError if they contradict network.wire.
void join_replica_links(Draft& draft);
/// The opposite of join_replica_links().
Draft::Links replica_links_of(const NetworkSettings& network);

}  // namespace deltapipe::deck
