// SPDX-License-Identifier: BSD-3-Clause
#include "comm/boundary/rank_links.hpp"

#include <fmt/format.h>

#include <vector>

#include "core/base/error.hpp"

namespace deltapipe {
namespace {

/// Returns link i of a list with one entry per link or one for all. Empty list: no emulation.
LinkSettings link_at(const std::vector<LinkSettings>& list, int i) {
  if (list.empty()) return {};
  return list[list.size() == 1 ? 0 : static_cast<std::size_t>(i)];
}

}  // namespace

LinkSettings link_between(const NetworkSettings& network, int from, int to,
                          const LinkedRanks& all) {
  const int last = all.ranks - 1;
  if (to == from + 1) return link_at(network.forward, from);
  if (to == from - 1) return link_at(network.backward, to);
  DELTAPIPE_ASSERT((from == last && to == 0) || (from == 0 && to == last),
                   fmt::format("rank {} sends to rank {}", from, to));
  if (from == last)
    return all.is_ring ? link_at(network.forward, last) : link_at(network.backward, last - 1);
  return all.is_ring ? link_at(network.backward, last) : link_at(network.forward, 0);
}

RankLinks::RankLinks(const NetworkSettings& network, int pipeline_rank, const LinkedRanks& all)
    : network_(network), rank_(pipeline_rank), all_(all) {
  replicas_ = std::make_shared<EmulatedLink>(network.replicas);
  if (network.ranks.empty()) return;
  const LinkSettings settings = link_at(network.ranks, pipeline_rank);
  wire_ = {std::make_shared<EmulatedLink>(settings, Framing::ethernet),
           std::make_shared<EmulatedLink>(settings, Framing::ethernet)};
  replicas_ = wire_.out;
}

std::shared_ptr<EmulatedLink> RankLinks::to(int pipeline_rank) {
  if (wire_) return wire_.out;
  std::shared_ptr<EmulatedLink>& link = links_[pipeline_rank];
  if (!link)
    link = std::make_shared<EmulatedLink>(link_between(network_, rank_, pipeline_rank, all_));
  return link;
}

}  // namespace deltapipe
