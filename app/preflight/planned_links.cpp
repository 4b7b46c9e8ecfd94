// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/planned_links.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/boundary/rank_links.hpp"

namespace deltapipe {

double PlannedLinks::seconds_of(int from, int to, std::uint64_t bytes) const {
  if (network_.ranks.empty()) return EmulatedLink(between(from, to)).seconds_of(bytes);
  return std::max(wire(from).seconds_of(bytes), wire(to).seconds_of(bytes));
}

double PlannedLinks::latency_of(int from, int to) const {
  if (network_.ranks.empty()) return between(from, to).latency_seconds;
  return std::max(wire_settings(from).latency_seconds, wire_settings(to).latency_seconds);
}

void PlannedLinks::pass(int from, int to, std::uint64_t bytes) {
  if (!are_known() || from == to) return;
  if (network_.ranks.empty()) {
    loads_[fmt::format("rank {} to {}", from, to)] +=
        EmulatedLink(between(from, to)).seconds_of(bytes);
    return;
  }
  loads_[fmt::format("rank {} out", from)] += wire(from).seconds_of(bytes);
  loads_[fmt::format("rank {} in", to)] += wire(to).seconds_of(bytes);
}

double PlannedLinks::sum_seconds_of(int rank, std::uint64_t bytes) const {
  if (network_.ranks.empty())
    return EmulatedLink(network_.replicas, Framing::none).seconds_of(bytes);
  return wire(rank).seconds_of(bytes);
}

double PlannedLinks::sum_latency_of(int rank) const {
  return (network_.ranks.empty() ? network_.replicas : wire_settings(rank)).latency_seconds;
}

void PlannedLinks::pass_sum(int rank, std::uint64_t bytes) {
  const std::string name = fmt::format("rank {}", rank);
  const double seconds = sum_seconds_of(rank, bytes);
  if (!network_.ranks.empty()) {
    loads_[name + " out"] += seconds;
    loads_[name + " in"] += seconds;
  } else if (network_.replicas != LinkSettings()) {
    loads_[name + " to replicas"] += seconds;
  }
}

LinkSettings PlannedLinks::between(int from, int to) const {
  return link_between(network_, from, to, {ranks_, is_ring_});
}

const LinkSettings& PlannedLinks::wire_settings(int rank) const {
  return network_.ranks[network_.ranks.size() == 1 ? 0 : static_cast<std::size_t>(rank)];
}

}  // namespace deltapipe
