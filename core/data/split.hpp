// SPDX-License-Identifier: BSD-3-Clause
// Division of the samples of the training files into those for training and for validation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/data/sampler.hpp"

namespace deltapipe {

/// Returns the number of `samples` that are held out for validation: at least one, unless
/// `fraction` (data.validation_fraction) is 0. Throws UserError.
std::uint64_t held_out(std::uint64_t samples, double fraction);

/// Moves a part of the samples to the returned set, chosen at random but the same in every run.
/// Files may be sorted by label, so that the last samples would not do.
template <class Sample>
std::vector<Sample> hold_out_at_random(std::vector<Sample>& samples, double fraction) {
  const std::uint64_t count = held_out(samples.size(), fraction);
  std::vector<bool> is_held_out(samples.size());
  const Sampler order(samples.size(), 0, true);
  for (std::uint64_t i = 0; i < count; ++i) is_held_out[order.at(0, i)] = true;
  std::vector<Sample> kept, held;
  for (std::size_t i = 0; i < samples.size(); ++i)
    (is_held_out[i] ? held : kept).push_back(samples[i]);
  samples = std::move(kept);
  return held;
}

/// Keeps the first `most` samples; 0 keeps all.
template <class Sample>
void limit(std::vector<Sample>& samples, std::uint64_t most) {
  if (most > 0 && samples.size() > most) samples.resize(most);
}

}  // namespace deltapipe
