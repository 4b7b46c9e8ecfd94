// SPDX-License-Identifier: BSD-3-Clause
// Settings of what crosses boundaries in evaluations and generation.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "core/codec/algorithms/without_memory.hpp"
#include "core/codec/crossing.hpp"

namespace deltapipe {

/// Precision of activations that the boundaries' codecs do not compress. quantize8: 8-bit codes
/// with a scale for every 64 channels of a token.
enum class PlainPrecision { fp32, fp16, quantize8 };

/// Names in decks and messages, indexed by the value of the enum.
inline constexpr std::array<const char*, 3> kPlainPrecisionNames = {"fp32", "fp16", "quantize8"};

/// Settings of what crosses boundaries in evaluations and generation.
struct EvaluationSettings {
  std::vector<EvaluationMode> modes = {EvaluationMode::plain};  ///< each once, in this order
  ChangesWithoutMemory changes = ChangesWithoutMemory::first_visit;
  PlainPrecision precision = PlainPrecision::fp32;  ///< precision in EvaluationMode::plain

  bool has(EvaluationMode mode) const {
    return std::find(modes.begin(), modes.end(), mode) != modes.end();
  }
  bool operator==(const EvaluationSettings&) const = default;
};

}  // namespace deltapipe
