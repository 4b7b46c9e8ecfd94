// SPDX-License-Identifier: BSD-3-Clause
// Conversion of one row to b-bit codes and back.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/base/numeric/random.hpp"
#include "core/codec/quantizer/packing.hpp"
#include "core/codec/quantizer/rms_steps.hpp"
#include "core/codec/quantizer/scales.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"
#include "core/codec/rows/row_steps.hpp"

namespace deltapipe::codec {

/// Buffers of one row: work (C floats), codes (8*lanes bytes), random numbers (8*lanes * 2 bytes).
struct RowBuffers {
  float* work;
  std::uint8_t* codes;
  std::uint16_t* random;

  static std::size_t bytes(int channels) {
    return 4 * round_up(channels, 16) + 3 * round_up(8 * lanes_of(channels), 64) + 64;
  }
  KOKKOS_INLINE_FUNCTION static RowBuffers of(const RowMember& team, int channels) {
    const std::size_t floats = round_up(channels, 16), lanes = round_up(8 * lanes_of(channels), 64);
    auto* memory =
        static_cast<std::uint8_t*>(team.team_scratch(0).get_shmem(4 * floats + 3 * lanes));
    return {reinterpret_cast<float*>(memory), memory + 4 * floats + 2 * lanes,
            reinterpret_cast<std::uint16_t*>(memory + 4 * floats)};
  }
};

struct UniformStep {
  float step;
  float inverse;
  KOKKOS_INLINE_FUNCTION float at(int) const { return step; }
  KOKKOS_INLINE_FUNCTION float inverse_at(int) const { return inverse; }
};

struct StepOfChannel {
  const std::uint16_t* steps;
  KOKKOS_INLINE_FUNCTION float at(int c) const { return float_of_step(steps[c]); }
  KOKKOS_INLINE_FUNCTION float inverse_at(int c) const { return inverse_of(at(c)); }
};

/// For devices: with a lookup for each channel, one loop serves all segments of a row.
struct StepOfSegment {
  const std::uint16_t* steps;
  int segment;
  KOKKOS_INLINE_FUNCTION float at(int c) const { return float_of_step(steps[c / segment]); }
  KOKKOS_INLINE_FUNCTION float inverse_at(int c) const { return inverse_of(at(c)); }
};

/// Sets random[k*lanes + l], k = 0 ... 7, to 16 random bits for channel k*lanes + l of token t.
/// They depend only on run, step, boundary, direction, sample and element.
KOKKOS_INLINE_FUNCTION void fill_random(const RowMember& team, const RowArguments& a,
                                        std::uint64_t sample, int t, std::uint16_t* random) {
  const int lanes = lanes_of(a.channels);
  const auto first = static_cast<std::uint32_t>(t) * static_cast<std::uint32_t>(lanes);
  const auto id0 = static_cast<std::uint32_t>(sample);
  const auto id1 = static_cast<std::uint32_t>(sample >> 32);
  const std::uint64_t key = a.key;
  const std::uint32_t step = a.step;
  row_for_synced(team, lanes, [&](int l) {
    const PhiloxBlock block = philox(first + static_cast<std::uint32_t>(l), step, id0, id1, key);
    for (int w = 0; w < 4; ++w) {
      random[2 * w * lanes + l] = static_cast<std::uint16_t>(block.word[w]);
      random[(2 * w + 1) * lanes + l] = static_cast<std::uint16_t>(block.word[w] >> 16);
    }
  });
}

/// Returns memory + level * step, with which both ends compute. The product is exact, so that the
/// sum is the only rounding, fused or not.
KOKKOS_INLINE_FUNCTION float changed(float memory, float level, float step) {
  return limited(level * step + memory, kMaxFloat);
}

/// Sets codes to the codes of x - work and adds their values to work, for n channels from the
/// pointers on. Stochastic rounding takes x to the nearest point of a grid of 2^-16 steps, and from
/// there up with exactly the probability of the remainder: the bias is below 2^-17 steps. Levels
/// are bounded as integers, which vectorises better than floats.
template <class Step>
KOKKOS_INLINE_FUNCTION void quantize_span(const RowMember& team, const RowFormat& format, int n,
                                          const float* x, float* work, std::uint8_t* codes,
                                          const std::uint16_t* random, const Step& step) {
  const int low = static_cast<int>(format.low);
  const int high = static_cast<int>(format.high);
  const int shift = static_cast<int>(format.shift);
  const auto scaled = [=](int c) {
    constexpr float kFar = 16384.0f;  // beyond all levels; 2^16 times it fits in an integer
    return saturate((x[c] - work[c]) * step.inverse_at(c), kFar);
  };
  const auto bounded = [](int value, int least, int most) {
    value = value < most ? value : most;
    return value > least ? value : least;
  };
  if (!format.stochastic) {
    row_for_synced(team, n, [=](int c) {
      constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction
      const int q = bounded(static_cast<int>((scaled(c) + kRound) - kRound), low, high);
      codes[c] = static_cast<std::uint8_t>(q + shift);
      work[c] = changed(work[c], static_cast<float>(q), step.at(c));
    });
  } else {
    row_for_synced(team, n, [=](int c) {
      const float v = scaled(c) * 65536.0f;
      const int grid =
          bounded(static_cast<int>(v + (v < 0.0f ? -0.5f : 0.5f)), low * 65536, high * 65536);
      const int q = (grid + static_cast<int>(random[c])) >> 16;
      codes[c] = static_cast<std::uint8_t>(q + shift);
      work[c] = changed(work[c], static_cast<float>(q), step.at(c));
    });
  }
}

/// Adds the values of the codes to work.
template <class Step>
KOKKOS_INLINE_FUNCTION void add_codes(const RowMember& team, const RowFormat& format, int n,
                                      const std::uint8_t* codes, float* work, const Step& step) {
  const int shift = static_cast<int>(format.shift);
  row_for_synced(team, n, [=](int c) {
    const auto q = static_cast<float>(static_cast<int>(codes[c]) - shift);
    work[c] = changed(work[c], q, step.at(c));
  });
}

/// Finds the steps of a row's segments for x - work.
KOKKOS_INLINE_FUNCTION void find_steps(const RowMember& team, const RowFormat& format, int n,
                                       const float* x, const float* work, std::uint16_t* steps) {
  for (int s = 0; s * format.segment < n; ++s) {
    const int first = s * format.segment;
    const int width = n - first < format.segment ? n - first : format.segment;
    const auto change = [=](int c) { return x[first + c] - work[first + c]; };
    if (format.rms_step > 0.0f) {
      const std::uint16_t step = step_of_rms(team, format.rms_step, width, change);
      row_once(team, [&]() { steps[s] = step; });
      continue;
    }
    float needed;
    if (format.is_even()) {
      std::uint32_t largest =
          row_max(team, width, 0u, [=](int c) { return bits_of(change(c)) & 0x7fffffffu; });
      if (largest >= kInfinityBits)
        largest = row_max(team, width, 0u, [=](int c) { return finite_magnitude(change(c)); });
      needed = float_of(largest);
    } else {
      needed =
          float_of(row_max(team, width, 0u, [&](int c) { return format.needed_step(change(c)); }));
    }
    const std::uint16_t step = format.step_for(needed);
    row_once(team, [&]() { steps[s] = step; });
  }
  if constexpr (!kHostExecution) team.team_barrier();
}

/// Returns the index of a row among those whose codes are stored outside of the payload.
KOKKOS_INLINE_FUNCTION std::size_t coded_row(const RowArguments& a, const SampleEntry& sample,
                                             int t) {
  return static_cast<std::size_t>(&sample - a.samples) * static_cast<std::size_t>(a.tokens) +
         static_cast<std::size_t>(t);
}

/// Locations of a row's parts in its sample's payload block. Codes that will be entropy coded are
/// stored elsewhere, as bytes.
struct CodeRow {
  std::uint16_t* steps;
  std::uint8_t* packed;

  KOKKOS_INLINE_FUNCTION static CodeRow of(const RowArguments& a, const RowFormat& format,
                                           const SampleEntry& sample, int t) {
    std::uint8_t* block = a.payload + sample.payload;
    std::uint16_t* steps = reinterpret_cast<std::uint16_t*>(block);
    std::uint8_t* packed = block + std::size_t{2} * format.segments * sample.tokens;
    if (format.segment == 0)
      steps = a.front_steps();
    else
      steps += static_cast<std::size_t>(t) * format.segments;
    if (format.is_coded)
      return {steps,
              a.codes + coded_row(a, sample, t) * packed_bytes(format.packed_bits(), a.channels)};
    return {steps, packed + t * packed_bytes(format.bits, a.channels)};
  }
};

/// Quantises n values of a row from `first` on in known steps.
KOKKOS_INLINE_FUNCTION void quantize_segments(const RowMember& team, const RowFormat& format,
                                              int first, int n, const float* x,
                                              const RowBuffers& buffers,
                                              const std::uint16_t* steps) {
  for_tiles(n, format.segment, [&](int i, int begin, int width) {
    const float step = float_of_step(steps[i]);
    const int c = first + begin;
    quantize_span(team, format, width, x + c, buffers.work + c, buffers.codes + c,
                  buffers.random + c, UniformStep{step, inverse_of(step)});
  });
}

/// Returns true if steps fit the largest change and changes go to the nearest level, with as many
/// levels on either side.
KOKKOS_INLINE_FUNCTION bool is_plain(const RowFormat& format) {
  return format.rms_step == 0.0f && !format.stochastic && format.high == format.positive_levels &&
         format.low == -format.negative_levels && format.is_even();
}

/// Returns the largest magnitude of a row, as bits.
KOKKOS_INLINE_FUNCTION std::uint32_t largest_of_row(const RowMember& team, int n, const float* x) {
  return row_max(team, n, 0u, [=](int c) { return bits_of(x[c]) & 0x7fffffffu; });
}

/// Bound, as bits. Sums and differences of smaller numbers are far from fp32's largest. If their
/// steps are at least 2^-126, the inverses of these are normal numbers.
inline constexpr std::uint32_t kTameBits = 0x7b800000u;  // 2^120

/// Finds steps and codes of tiles together, on a host, for a plain format and x below kTameBits.
/// Returns false, and changes nothing, if a change is not below.
template <class Width>
KOKKOS_INLINE_FUNCTION bool quantize_together(const RowMember& team, float levels,
                                              const Width& segment, int n, const float* x,
                                              float* work, std::uint8_t* codes,
                                              std::uint16_t* to_steps) {
  StepsTogether steps;
  for_tiles(n, segment, [&](int i, int first, auto width) {
    const auto magnitude = [=](int c) {
      return bits_of(x[first + c] - work[first + c]) & 0x7fffffffu;
    };
    steps.set(i, row_max(team, width, 0u, magnitude), levels);
  });
  if (steps.largest >= kTameBits) return false;
  const int shift = static_cast<int>(levels);
  for_tiles(n, segment, [&](int i, int first, auto width) {
    to_steps[i] = steps.code[i];
    const float step = steps.step[i];
    const float inverse = steps.inverse[i];
    row_for(team, width, [=](int at) {
      const int c = first + at;
      // Within the levels. The sum with 0 removes the sign of a 0, as the receiver does.
      const float level = nearest_integer((x[c] - work[c]) * inverse) + 0.0f;
      codes[c] = static_cast<std::uint8_t>(static_cast<int>(level) + shift);
      work[c] = level * step + work[c];
    });
  });
  return true;
}

/// Packs the codes of n values in the buffers. Unused codes of the last lane are zeros.
KOKKOS_INLINE_FUNCTION void pack_codes(const RowMember& team, const RowFormat& format, int n,
                                       const RowBuffers& buffers, const CodeRow& row) {
  std::uint8_t* codes = buffers.codes;
  row_for_synced(team, 8 * lanes_of(n) - n, [=](int c) { codes[n + c] = 0; });
  pack_row(team, format.packed_bits(), n, codes, row.packed);
}

/// Quantises n values x - (buffers.work) and sets work to what is seen. Random numbers are in the
/// buffers. `largest` is the largest magnitude in x, as bits.
KOKKOS_INLINE_FUNCTION void quantize_values(const RowMember& team, const RowFormat& format, int n,
                                            const float* x, std::uint32_t largest,
                                            const RowBuffers& buffers, const CodeRow& row) {
  if (format.segment == 0) {
    quantize_span(team, format, n, x, buffers.work, buffers.codes, buffers.random,
                  StepOfChannel{row.steps});
  } else if constexpr (kHostExecution) {
    const bool plain = is_plain(format) && largest < kTameBits;
    const float levels = format.positive_levels;
    const int together = format.segment * StepsTogether::kMost;
    for (int first = 0; first < n; first += together) {
      const int count = n - first < together ? n - first : together;
      float* work = buffers.work + first;
      std::uint8_t* codes = buffers.codes + first;
      std::uint16_t* steps = row.steps + first / format.segment;
      bool done = false;
      if (plain && format.segment == 64)
        done = quantize_together(team, levels, std::integral_constant<int, 64>(), count, x + first,
                                 work, codes, steps);
      else if (plain)
        done =
            quantize_together(team, levels, format.segment, count, x + first, work, codes, steps);
      if (done) continue;
      find_steps(team, format, count, x + first, work, steps);
      quantize_segments(team, format, first, count, x, buffers, steps);
    }
  } else {
    find_steps(team, format, n, x, buffers.work, row.steps);
    quantize_span(team, format, n, x, buffers.work, buffers.codes, buffers.random,
                  StepOfSegment{row.steps, format.segment});
  }
  pack_codes(team, format, n, buffers, row);
}

/// Returns the step of a row with steps of the message, from the one at the payload's front.
KOKKOS_INLINE_FUNCTION float step_of_row(const RowArguments& a, int eighths) {
  return float_of_step(RowSteps::step_of(*a.front_steps(), eighths));
}
KOKKOS_INLINE_FUNCTION int eighths_of_row(const RowArguments& a, const RowFormat& format,
                                          const RowSpread& spread) {
  return RowSteps::eighths_for(*a.front_steps(), format.rms_step, *a.base_weight, spread);
}

/// Quantises a row in steps of the message. Sets work as quantize_values does.
KOKKOS_INLINE_FUNCTION void quantize_by_message(const RowMember& team, const RowArguments& a,
                                                const RowFormat& format, const SampleEntry& sample,
                                                int t, const float* x, const RowBuffers& buffers) {
  const int n = a.channels;
  const std::size_t row = coded_row(a, sample, t);
  const RowSpread spread = a.spreads[row];
  const int eighths = eighths_of_row(a, format, spread);
  const float step = step_of_row(a, eighths);
  const int row_class = RowSteps::class_for(step, format.rms_step, spread);
  row_once(team, [&]() {
    a.payload[sample.payload + t] = RowSteps::byte_of(eighths, row_class);
    a.classes[row] = static_cast<std::uint8_t>(row_class);
  });
  quantize_span(team, format, n, x, buffers.work, buffers.codes, buffers.random,
                UniformStep{step, inverse_of(step)});
  pack_codes(team, format, n, buffers, CodeRow::of(a, format, sample, t));
}

KOKKOS_INLINE_FUNCTION void quantize_row(const RowMember& team, const RowArguments& a,
                                         const RowFormat& format, const SampleEntry& sample, int t,
                                         const float* x, std::uint32_t largest,
                                         const RowBuffers& buffers) {
  if (format.stochastic) fill_random(team, a, sample.id, t, buffers.random);
  if (format.has_message_step) return quantize_by_message(team, a, format, sample, t, x, buffers);
  quantize_values(team, format, a.channels, x, largest, buffers, CodeRow::of(a, format, sample, t));
}

/// Performs add_codes by tiles, on the host, for levels that are whole numbers. No magnitude in
/// work may be above `bound`.
template <class Width>
KOKKOS_INLINE_FUNCTION void add_tiles(const RowMember& team, const RowFormat& format,
                                      const Width& segment, int n, const std::uint8_t* codes,
                                      float* work, float bound, const std::uint16_t* steps) {
  const int shift = static_cast<int>(format.shift);
  const bool is_tame = bound < float_of(kTameBits);
  for_tiles(n, segment, [&](int i, int first, auto width) {
    const float step = float_of_step(steps[i]);
    if (is_tame && step < float_of(kTameBits)) {
      row_for(team, width, [=](int at) {
        const int c = first + at;
        const auto level = static_cast<float>(static_cast<int>(codes[c]) - shift);
        work[c] = level * step + work[c];
      });
    } else {
      add_codes(team, format, width, codes + first, work + first, UniformStep{step, 0.0f});
    }
  });
}

/// Adds the values of n codes to work. No magnitude in work may be above `bound`.
KOKKOS_INLINE_FUNCTION void dequantize_values(const RowMember& team, const RowFormat& format, int n,
                                              const CodeRow& row, float* work, float bound,
                                              std::uint8_t* codes) {
  unpack_row(team, format.packed_bits(), n, row.packed, codes);
  if (format.segment == 0) {
    add_codes(team, format, n, codes, work, StepOfChannel{row.steps});
  } else if constexpr (kHostExecution) {
    if (format.segment == 64)
      add_tiles(team, format, std::integral_constant<int, 64>(), n, codes, work, bound, row.steps);
    else
      add_tiles(team, format, format.segment, n, codes, work, bound, row.steps);
  } else {
    add_codes(team, format, n, codes, work, StepOfSegment{row.steps, format.segment});
  }
}

/// Adds the values of codes in steps of the message to work.
KOKKOS_INLINE_FUNCTION void dequantize_by_message(const RowMember& team, const RowArguments& a,
                                                  const RowFormat& format,
                                                  const SampleEntry& sample, int t, float* work,
                                                  std::uint8_t* codes) {
  const float step = step_of_row(a, RowSteps::eighths_of(a.payload[sample.payload + t]));
  unpack_row(team, format.packed_bits(), a.channels, CodeRow::of(a, format, sample, t).packed,
             codes);
  add_codes(team, format, a.channels, codes, work, UniformStep{step, 0.0f});
}

KOKKOS_INLINE_FUNCTION void dequantize_row(const RowMember& team, const RowArguments& a,
                                           const RowFormat& format, const SampleEntry& sample,
                                           int t, float* work, float bound, std::uint8_t* codes) {
  if (format.has_message_step)
    return dequantize_by_message(team, a, format, sample, t, work, codes);
  dequantize_values(team, format, a.channels, CodeRow::of(a, format, sample, t), work, bound,
                    codes);
}

}  // namespace deltapipe::codec
