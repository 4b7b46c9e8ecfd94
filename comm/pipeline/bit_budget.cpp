// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/bit_budget.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "comm/boundary/rank_links.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// Returns entry i of a list with one entry per boundary or one for all.
template <class Value>
const Value& value_at(const std::vector<Value>& list, int i) {
  DELTAPIPE_ASSERT(list.size() == 1 || static_cast<std::size_t>(i) < list.size(),
                   "too few values for the boundaries");
  return list[list.size() == 1 ? 0 : static_cast<std::size_t>(i)];
}

/// Returns min(max(seconds * speed, least), most); unlimited links have `most`.
double share(double seconds, double speed, double least, double most) {
  return speed > 0 ? std::clamp(seconds * speed, least, most) : most;
}

}  // namespace

std::vector<double> shares_of_time(double mean_bits, std::span<const double> bits_per_second,
                                   double least, double most) {
  const std::size_t count = bits_per_second.size();
  const bool any_limited = std::ranges::any_of(bits_per_second, [](double w) { return w > 0; });
  if (mean_bits <= least || mean_bits >= most || !any_limited)
    return std::vector<double>(count, mean_bits);
  const auto sum_at = [&](double seconds) {
    return std::accumulate(
        bits_per_second.begin(), bits_per_second.end(), 0.0,
        [&](double sum, double speed) { return sum + share(seconds, speed, least, most); });
  };
  // The sum grows with the seconds; it is linear between the points where a share reaches an end of
  // the range.
  const double wanted = mean_bits * static_cast<double>(count);
  std::vector<double> places;
  for (const double speed : bits_per_second)
    if (speed > 0) places.insert(places.end(), {least / speed, most / speed});
  std::ranges::sort(places);
  double before = 0, sum_before = sum_at(0), seconds = 0;
  for (const double place : places) {
    const double sum = sum_at(place);
    seconds = place;
    if (sum >= wanted) {
      seconds = sum > sum_before ? before + (place - before) * std::max(0.0, wanted - sum_before) /
                                                (sum - sum_before)
                                 : place;
      break;
    }
    before = place;
    sum_before = sum;
  }
  std::vector<double> bits;
  double left = wanted, of_any_speed = 0;
  for (const double speed : bits_per_second) {
    bits.push_back(share(seconds, speed, least, most));
    left -= speed > 0 ? bits.back() : 0;
    of_any_speed += speed > 0 ? 0 : 1;
  }
  // Unlimited links share the rest, which is below `most` if the other links are already at
  // `least`.
  for (std::size_t i = 0; i < count; ++i)
    if (bits_per_second[i] <= 0) bits[i] = left / of_any_speed;
  return bits;
}

std::vector<double> link_speeds(const PipelineOptions& options, bool backward) {
  const NetworkSettings& network = options.network;
  const int ranks = options.pipeline.pipeline_ranks();
  std::vector<double> speeds;
  for (int i = 0; i + 1 < options.pipeline.stages; ++i) {
    if (network.wire == WireSharing::rank && !network.ranks.empty()) {
      // A message passes the wires of both ranks.
      const double left = value_at(network.ranks, i % ranks).bits_per_second;
      const double right = value_at(network.ranks, (i + 1) % ranks).bits_per_second;
      speeds.push_back(left > 0 && right > 0 ? std::min(left, right) : std::max(left, right));
      continue;
    }
    const int before = i % ranks, behind = (i + 1) % ranks;
    const LinkedRanks all = {ranks, options.pipeline.stages_per_rank > 1};
    const LinkSettings link = backward ? link_between(network, behind, before, all)
                                       : link_between(network, before, behind, all);
    // The boundaries between these two ranks share the link equally.
    const int sharing = (options.pipeline.stages - 2 - before) / ranks + 1;
    speeds.push_back(link.bits_per_second / sharing);
  }
  return speeds;
}

std::vector<double> target_bits(const PipelineOptions& options, bool backward) {
  const RateSettings& rate = backward ? options.backward_rate : options.forward_rate;
  const auto boundaries = static_cast<std::size_t>(options.pipeline.stages - 1);
  if (!rate.has_bits()) return std::vector<double>(boundaries, 0.0);
  if (rate.budget == BudgetSharing::time)
    return shares_of_time(rate.target_bits.front(), link_speeds(options, backward));
  std::vector<double> bits;
  for (int i = 0; i + 1 < options.pipeline.stages; ++i)
    bits.push_back(value_at(rate.target_bits, i));
  return bits;
}

StepTarget step_target(const PipelineOptions& options, std::uint64_t steps, int boundary,
                       bool backward) {
  const CodecSettings& codec = backward ? options.backward : options.forward;
  StepTarget target;
  if (codec.rms_step == 0 || !sends_codes(codec)) return target;
  const RateSettings& rate = backward ? options.backward_rate : options.forward_rate;
  target.bits = target_bits(options, backward)[static_cast<std::size_t>(boundary)];
  target.error = rate.target_error;
  if (codec.rounding == Rounding::stochastic) target.largest_step = kLargestStochasticStep;
  target.messages_per_step = static_cast<std::uint64_t>(options.micro_batches);
  target.messages = steps * target.messages_per_step;
  return target;
}

}  // namespace deltapipe
