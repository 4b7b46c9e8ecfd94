// SPDX-License-Identifier: BSD-3-Clause
// One step for all rows of a message. Equal errors everywhere have the least square error for a
// given number of bits: rows with large changes need more bits than others. Entropy coding finds
// these bits by itself if rows of a kind share a table of frequencies.
//
// The payload's front has the step, 2 bytes as in scales.hpp, and two zeros. Each row has a byte.
// Its upper five bits are the number of eighths of an octave by which the row's own step is larger.
// The others say how large the row's changes are in these steps, which selects its table.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/base/parallel/row.hpp"
#include "core/codec/entropy/code_groups.hpp"
#include "core/codec/quantizer/sample_memory.hpp"
#include "core/codec/rows/channel_steps.hpp"
#include "core/codec/rows/quantize_row.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"

namespace deltapipe::codec {

/// Computes spread_N(row) of all rows with steps of the message. Sender::load computes m, which is
/// subtracted from x.
template <class Sender>
struct FindSpreads {
  RowArguments a;
  RowFormats formats;
  RowSpread* spread_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = a.channels;
    const SampleEntry& sample = a.samples[index / a.tokens];
    const RowFormat& format = formats.format[sample.format];
    if (!format.has_message_step || index % a.tokens >= sample.tokens) {
      row_once(team, [&]() { spread_N[index] = RowSpread{0, 0, 0, false}; });
      return;
    }
    const RowBuffers buffers = RowBuffers::of(team, n);
    const MemoryRow record = row_of(a, index);
    const float* x = a.x + static_cast<std::size_t>(index) * n;
    float* work = buffers.work;
    load_taken<Sender>(team, format, record, work, buffers.codes);
    const auto change = [=](int c) {
      const float difference = x[c] - work[c];
      return is_nonfinite(difference) != 0 ? 0.0f : difference;
    };
    const std::uint32_t largest =
        row_max(team, n, 0u, [=](int c) { return bits_of(change(c)) & 0x7fffffffu; });
    const double squares = row_sum<double>(team, n, [=](int c) {
      const double value = change(c);
      return value * value;
    });
    double weight = 1;
    if (format.is_relative) {
      const double size = row_sum<double>(team, n, [=](int c) {
        const double value = work[c];
        return value * value;
      });
      weight = std::sqrt(size / n);
    }
    row_once(team, [&]() {
      spread_N[index] = RowSpread{static_cast<float>(std::sqrt(squares / n)),
                                  static_cast<float>(weight), float_of(largest), true};
    });
  }
};

/// Computes the message's step, at the payload's front, and *base, the weight of the rows that use
/// this step unchanged.
struct FindMessageStep {
  const RowSpread* spread_N;
  int rows;
  float rms_step;
  std::uint16_t* front;
  float* base;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const RowSpread* spread = spread_N;
    const auto weighs = [=](int i) { return spread[i].counts && spread[i].weight > 0.0f; };
    const std::uint32_t lightest = ~row_max(
        team, rows, 0u, [=](int i) { return weighs(i) ? ~bits_of(spread[i].weight) : 0u; });
    const std::uint32_t largest =
        row_max(team, rows, 0u, [=](int i) { return bits_of(spread[i].largest); });
    const int weighing = row_sum<int>(team, rows, [=](int i) { return weighs(i) ? 1 : 0; });
    // Rows without a weight are rare. If there are no others, all rows have the same weight.
    const bool any = weighing > 0;
    const double octaves = row_sum<double>(team, rows, [=](int i) {
      return weighs(i) ? std::log2(static_cast<double>(spread[i].weight)) : 0.0;
    });
    float base_weight = 1;
    if (any) {
      const auto least =
          static_cast<float>(std::exp2(octaves / weighing - RowSteps::kOctavesBelow));
      base_weight = float_of(lightest) > least ? float_of(lightest) : least;
    }
    const auto counts = [=](int i) { return any ? weighs(i) : spread[i].counts; };
    const int counted = row_sum<int>(team, rows, [=](int i) { return counts(i) ? 1 : 0; });
    const double squares = row_sum<double>(team, rows, [=](int i) {
      if (!counts(i)) return 0.0;
      // A lighter row has the base's step as well.
      const float weight = spread[i].weight > base_weight ? spread[i].weight : base_weight;
      const double size = static_cast<double>(spread[i].rms) / weight;
      return size * size;
    });
    const std::uint32_t largest_counted = row_max(team, rows, 0u, [=](int i) {
      const float weight = spread[i].weight > base_weight ? spread[i].weight : base_weight;
      return counts(i) ? bits_of(spread[i].largest / weight) : 0u;
    });
    row_once(team, [&]() {
      const float widest = RowSteps::factor(RowSteps::kMostEighths);
      double wanted = counted > 0 ? rms_step * std::sqrt(squares / counted) * base_weight : 0.0;
      const double most = kMostOfLargest * float_of(largest_counted) * base_weight;
      wanted = wanted < most ? wanted : most;
      const double least = static_cast<double>(float_of(largest)) / (kRmsLevels * widest);
      wanted = wanted > least ? wanted : least;
      wanted = wanted < kMaxFloat ? wanted : kMaxFloat;
      front[0] = step_at_least(static_cast<float>(wanted), kRmsLevels);
      front[1] = 0;
      *base = base_weight;
    });
  }
};

/// Sets classes_N(row) as the payload says.
struct ReadClasses {
  RowArguments a;
  RowFormats formats;

  KOKKOS_INLINE_FUNCTION void operator()(const int index) const {
    const SampleEntry& sample = a.samples[index / a.tokens];
    const int t = index % a.tokens;
    if (!formats.format[sample.format].has_message_step || t >= sample.tokens) return;
    a.classes[index] = RowSteps::class_of(a.payload[sample.payload + static_cast<std::size_t>(t)]);
  }
};

}  // namespace deltapipe::codec
