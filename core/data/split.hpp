// SPDX-License-Identifier: BSD-3-Clause
// Division of the samples of the training files into those for training and for validation.
#pragma once

#include <cstdint>
#include <vector>

namespace deltapipe {

/// Returns the number of `samples` that are held out for validation: at least one, unless
/// `fraction` (data.validation_fraction) is 0. Throws UserError.
std::uint64_t held_out(std::uint64_t samples, double fraction);

/// Keeps the first `most` samples; 0 keeps all.
template <class Sample>
void limit(std::vector<Sample>& samples, std::uint64_t most) {
  if (most > 0 && samples.size() > most) samples.resize(most);
}

}  // namespace deltapipe
