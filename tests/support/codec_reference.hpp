// SPDX-License-Identifier: BSD-3-Clause
// What a codec should make of a few numbers, written for reading.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "core/codec/settings.hpp"

namespace deltapipe::test {

struct Quantized {
  float step = 0;
  std::vector<int> level;  ///< value = level * step
};

/// The smallest number with 9 significant bits that is at least x.
inline float round_step_up(float x) {
  int exponent = 0;
  const double fraction = std::frexp(double{x}, &exponent);
  return static_cast<float>(std::ldexp(std::ceil(std::ldexp(fraction, 9)), exponent - 9));
}

inline int levels_of(int bits, Levels levels) {
  if (levels == Levels::asymmetric) return 1 << (bits - 1);
  return bits == 1 ? 1 : (1 << (bits - 1)) - 1;
}

inline std::vector<int> naive_levels(const std::vector<float>& x, float step, int bits,
                                     Levels levels) {
  const int low = -levels_of(bits, levels);
  const int high = levels == Levels::asymmetric ? -low - 1 : -low;
  std::vector<int> result;
  for (const float value : x) {
    const float ratio = step > 0 ? value * (1.0f / step) : 0.0f;
    const float nearest = std::isnan(ratio) ? static_cast<float>(low) : std::nearbyint(ratio);
    int level =
        static_cast<int>(std::clamp(nearest, static_cast<float>(low), static_cast<float>(high)));
    if (bits == 1 && levels == Levels::symmetric) level = value < 0 ? -1 : 1;
    result.push_back(std::clamp(level, low, high));
  }
  return result;
}

/// Finite numbers of one scale, rounded to nearest.
inline Quantized naive_quantize(const std::vector<float>& x, int bits, Levels levels) {
  float scale = 0;
  for (const float value : x) scale = std::max(scale, std::abs(value));
  if (bits == 1 && levels == Levels::symmetric) {
    double sum = 0;
    for (const float value : x) sum += std::abs(double{value});
    scale = static_cast<float>(sum / static_cast<double>(x.size()));
  }
  Quantized result;
  result.step = round_step_up(scale / static_cast<float>(levels_of(bits, levels)));
  result.level = naive_levels(x, result.step, bits, levels);
  return result;
}

/// The unsigned code of a level.
inline unsigned code_of(int level, int bits, Levels levels) {
  if (bits == 1 && levels == Levels::symmetric) return level > 0 ? 1 : 0;
  return static_cast<unsigned>(level + levels_of(bits, levels));
}

/// Lane l is the string of bits of codes l, l + lanes, ..., l + 7*lanes, lowest bit first; its p-th
/// byte is byte p*lanes + l of the row.
inline std::vector<std::uint8_t> naive_pack(const std::vector<unsigned>& codes, int bits) {
  const std::size_t lanes = (codes.size() + 7) / 8;
  std::vector<std::uint8_t> packed(lanes * static_cast<std::size_t>(bits));
  for (std::size_t l = 0; l < lanes; ++l) {
    std::vector<bool> string;
    for (std::size_t k = 0; k < 8; ++k) {
      const std::size_t c = k * lanes + l;
      for (int bit = 0; bit < bits; ++bit)
        string.push_back(c < codes.size() && ((codes[c] >> bit) & 1) != 0);
    }
    for (std::size_t bit = 0; bit < string.size(); ++bit)
      if (string[bit]) packed[bit / 8 * lanes + l] |= static_cast<std::uint8_t>(1u << bit % 8);
  }
  return packed;
}

inline std::string describe(const CodecSettings& settings) {
  const std::string feedback =
      settings.error_feedback ? std::to_string(static_cast<int>(settings.feedback_kind)) : "none";
  return std::string(kCodecKindNames[static_cast<std::size_t>(settings.kind)]) + ", values " +
         std::to_string(static_cast<int>(settings.values)) + ", feedback " + feedback + ", step " +
         std::to_string(settings.rms_step) + ", coded " +
         std::to_string(static_cast<int>(settings.entropy_coding)) + ", bits " +
         std::to_string(settings.bits) + ", scale " +
         std::to_string(static_cast<int>(settings.scale)) + ", rounding " +
         std::to_string(static_cast<int>(settings.rounding)) + ", levels " +
         std::to_string(static_cast<int>(settings.levels)) + ", first visit " +
         std::to_string(static_cast<int>(settings.first_visit));
}

}  // namespace deltapipe::test
