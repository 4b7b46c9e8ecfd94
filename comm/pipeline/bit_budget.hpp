// SPDX-License-Identifier: BSD-3-Clause
// How boundaries share a budget of bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "core/codec/quantizer/step_controller.hpp"

namespace deltapipe {

/// Range of what BudgetSharing::time gives a boundary, where the mean lies within it: about what
/// the largest and the least step take of normally distributed values, with scales.
inline constexpr double kLeastSharedBits = 1.5;
inline constexpr double kMostSharedBits = 6;

/// Bits per value of boundaries whose links carry so many bits per second (0: any number), with
/// this mean: those that take as long as each other on all links, b_i = min(max(c w_i, least),
/// most). No other shares within [least, most] with this mean let the slowest boundary be done
/// earlier. A mean outside of the range: all have the mean.
std::vector<double> shares_of_time(double mean_bits, std::span<const double> bits_per_second,
                                   double least = kLeastSharedBits, double most = kMostSharedBits);

/// Speed of the boundaries' links in one direction, bit/s; 0: as fast as MPI carries it.
std::vector<double> link_speeds(const PipelineOptions& options, bool backward);

/// Bits per value at each boundary in one direction; 0: any.
std::vector<double> target_bits(const PipelineOptions& options, bool backward);

/// Target that a sender's steps hold in a training of `steps` steps (0: not known).
StepTarget step_target(const PipelineOptions& options, std::uint64_t steps, int boundary,
                       bool backward);

}  // namespace deltapipe
