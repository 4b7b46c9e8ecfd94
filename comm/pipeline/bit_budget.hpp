// SPDX-License-Identifier: BSD-3-Clause
// Distribution of a budget of bits over boundaries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "core/codec/quantizer/step_controller.hpp"

namespace deltapipe {

/// Range of the bits that BudgetSharing::time gives a boundary, if the mean lies within it. Its
/// ends are about the bits that the largest and the smallest step use for normally distributed
/// values, including scales.
inline constexpr double kLeastSharedBits = 1.5;
inline constexpr double kMostSharedBits = 6;

/// Returns the bits per value of each boundary for a mean over all of them. bits_per_second is the
/// speed of each boundary's link (0: unlimited). The shares b_i = min(max(c w_i, least), most) use
/// the same time on all links. No other shares within [least, most] with this mean let the slowest
/// boundary finish earlier. If the mean is outside of the range, all boundaries have the mean.
std::vector<double> shares_of_time(double mean_bits, std::span<const double> bits_per_second,
                                   double least = kLeastSharedBits, double most = kMostSharedBits);

/// Returns the speed of the boundaries' links in one direction in bit/s; 0: as fast as MPI.
std::vector<double> link_speeds(const PipelineOptions& options, bool backward);

/// Returns the bits per value at each boundary in one direction; 0: no target.
std::vector<double> target_bits(const PipelineOptions& options, bool backward);

/// Returns the target for a sender's steps in a training run of `steps` steps (0: not known).
StepTarget step_target(const PipelineOptions& options, std::uint64_t steps, int boundary,
                       bool backward);

}  // namespace deltapipe
