// SPDX-License-Identifier: BSD-3-Clause
// Step and class of a row if the message has one step (message_steps.hpp).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/codec/entropy/code_groups.hpp"
#include "core/codec/quantizer/rms_steps.hpp"
#include "core/codec/quantizer/scales.hpp"
#include "core/codec/rows/row_codec.hpp"

namespace deltapipe::codec {

/// Contents of a row's byte.
struct RowSteps {
  static constexpr int kMostEighths = 31;
  /// Octaves below the geometric mean of the rows' weights down to which steps are proportional to
  /// weights.
  static constexpr int kOctavesBelow = 2;

  /// Returns 2^(eighths / 8), nearly: in 8 bits, so that its product with a step is exact.
  KOKKOS_INLINE_FUNCTION static float factor(int eighths) {
    const float rounded[8] = {128, 140, 152, 166, 181, 197, 215, 235};
    return static_cast<float>(1 << (eighths / 8)) * (rounded[eighths % 8] / 128.0f);
  }
  KOKKOS_INLINE_FUNCTION static std::uint16_t step_of(std::uint16_t message_step, int eighths) {
    return step_at_least(float_of_step(message_step) * factor(eighths), kRmsLevels);
  }
  /// Returns the eighths of an octave nearest to the row's weight with a step of at most 1.9 times
  /// the RMS (rms_step times, if that is larger), but enough that levels reach the largest change.
  KOKKOS_INLINE_FUNCTION static int eighths_for(std::uint16_t message_step, float rms_step,
                                                float base_weight, const RowSpread& spread) {
    int eighths = 0;
    if (spread.weight > base_weight) {
      const float ratio = spread.weight / base_weight;
      const float nearest = 8.0f * std::log2(ratio) + 0.5f;
      eighths = nearest < kMostEighths ? static_cast<int>(nearest) : kMostEighths;
      constexpr float kUnhurt = 1.9f;  // rounding up to this does no harm
      const float most = rms_step > kUnhurt ? rms_step : kUnhurt;
      if (eighths > 0 && rms_step * factor(eighths) > most * ratio) --eighths;
    }
    while (eighths < kMostEighths &&
           float_of_step(step_of(message_step, eighths)) * kRmsLevels < spread.largest)
      ++eighths;
    return eighths;
  }
  /// Returns the class: half octaves of the root mean square, counted from a quarter of the one of
  /// which the step is the fraction rms_step.
  KOKKOS_INLINE_FUNCTION static int class_for(float step, float rms_step, const RowSpread& spread) {
    if (!(step > 0.0f) || !(spread.rms > 0.0f)) return 0;
    const float above = 2.0f * std::log2(spread.rms * (rms_step / step)) + 4.0f;
    if (!(above > 0.0f)) return 0;
    return above < kRowClasses - 1 ? static_cast<int>(above) : kRowClasses - 1;
  }
  KOKKOS_INLINE_FUNCTION static std::uint8_t byte_of(int eighths, int row_class) {
    return static_cast<std::uint8_t>(eighths << 3 | row_class);
  }
  KOKKOS_INLINE_FUNCTION static int eighths_of(std::uint8_t byte) { return byte >> 3; }
  KOKKOS_INLINE_FUNCTION static std::uint8_t class_of(std::uint8_t byte) { return byte & 7; }
};
static_assert(kRowClasses == 8);

}  // namespace deltapipe::codec
