// SPDX-License-Identifier: BSD-3-Clause
// Rows as b-bit codes: kernels of the codecs quantize and delta.
#pragma once

#include <algorithm>
#include <memory>

#include "core/base/random.hpp"
#include "core/codec/code_streams.hpp"
#include "core/codec/fitted_scales.hpp"
#include "core/codec/memory.hpp"
#include "core/codec/row_codec.hpp"

namespace deltapipe::codec {

enum class RowKind { fp32, fp16, codes };

/// How a sample's rows lie in its payload block: fp32 values, fp16 values with scales (HalfRow), or
/// the steps of all rows (2 bytes each; scale channel: none, they are at the payload's front) and
/// then the packed codes of all rows.
struct RowFormat {
  RowKind kind = RowKind::fp32;
  bool uses_memory = false;  ///< values are changes of the memory; else they replace it
  int bits = 8;
  int segment = 0;   ///< channels that a step covers; 0: all tokens share a step per channel
  int segments = 0;  ///< steps a row
  bool stochastic = false;
  bool mean_scale = false;  ///< step = mean|x|
  bool is_coded = false;    ///< codes are not packed in the block, but coded behind all blocks
  int table = 0;            ///< of frequencies, which formats that look alike on the wire share
  ScaleRule rule = ScaleRule::max;
  float rms_step = 1;
  // Else the least step that brings every x between -negative_levels and positive_levels steps.
  float negative_levels = 127;
  float positive_levels = 127;
  // A code u stands for the level q = u * stride - shift, low <= q <= high.
  float low = -127;
  float high = 127;
  float shift = 127;
  float stride = 1;

  /// Bits of a code where kernels write and read it; packed at 8 bits, codes are bytes as they
  /// were.
  KOKKOS_INLINE_FUNCTION int packed_bits() const { return is_coded ? 8 : bits; }
  KOKKOS_INLINE_FUNCTION bool is_even() const { return negative_levels == positive_levels; }
  /// The step that a change needs, as the bits of a float: |x| itself where levels are even, since
  /// dividing by them can wait for the largest. Changes that are not finite need none.
  KOKKOS_INLINE_FUNCTION std::uint32_t needed_step(float change) const {
    const std::uint32_t magnitude = finite_magnitude(change);
    if (is_even()) return magnitude;
    return bits_of(float_of(magnitude) / (change < 0.0f ? negative_levels : positive_levels));
  }
  /// One step a channel, for all tokens, at the payload's front.
  bool has_channel_steps() const { return kind == RowKind::codes && segment == 0; }
  /// The step for the largest needed_step, or for mean|x|.
  KOKKOS_INLINE_FUNCTION std::uint16_t step_for(float needed) const {
    if (mean_scale) return step_at_least(needed, 1.0f);
    return is_even() ? step_of(needed, negative_levels) : step_at_least(needed, negative_levels);
  }
};

RowFormat dense_format(RowKind kind);
/// Codes as the settings say, at a number of bits.
RowFormat code_format(const CodecSettings& settings, ScaleKind scale, int bits, int channels);
std::size_t block_bytes_of(const RowFormat& format, int tokens, int channels);

/// Up to three formats; a sample's entry names one. Those with steps per channel share them, and
/// so their kinds of codes.
struct RowFormats {
  static constexpr int kCount = 3;
  RowFormat format[kCount];
};

static_assert(RowFormats::kCount == kCodeFormats);
/// For the formats whose codes are entropy coded; none: there are no such.
std::unique_ptr<CodeStreams> streams_of(const RowFormats& formats, const CodecShape& shape);
/// Refuses a payload of the right length.
[[noreturn]] void refuse_codes(const Crossing& crossing);

/// Buffers of one row: work (C floats), codes (8*lanes bytes), random numbers (8*lanes * 2 bytes).
struct RowBuffers {
  float* work;
  std::uint8_t* codes;
  std::uint16_t* random;

  static std::size_t bytes(int channels) {
    return 4 * round_up(channels, 16) + 3 * round_up(8 * lanes_of(channels), 64) + 64;
  }
  KOKKOS_INLINE_FUNCTION static RowBuffers of(const RowMember& team, int channels) {
    const std::size_t floats = (static_cast<std::size_t>(channels) + 15) / 16 * 16;
    const std::size_t lanes = (static_cast<std::size_t>(8) * lanes_of(channels) + 63) / 64 * 64;
    auto* memory =
        static_cast<std::uint8_t*>(team.team_scratch(0).get_shmem(4 * floats + 3 * lanes));
    return {reinterpret_cast<float*>(memory), memory + 4 * floats + 2 * lanes,
            reinterpret_cast<std::uint16_t*>(memory + 4 * floats)};
  }
};

/// No memory: the codec quantize.
struct NoMemory {
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t*) {
    row_for_synced(team, row.channels, [&](int c) { work[c] = 0.0f; });
  }
  KOKKOS_INLINE_FUNCTION static void store(const RowMember&, const MemoryRow&, const float*,
                                           std::uint8_t*) {}
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int, int) { return 0; }
};

/// Bytes of a sample's record of rows M.
template <class M>
std::size_t record_bytes_of(const CodecShape& shape) {
  return round_up(M::bytes(shape.tokens, shape.channels), kRecordAlignment);
}

/// Zeroes a record's bytes after its last row, so that equal memories are equal records.
template <class M>
KOKKOS_INLINE_FUNCTION void clear_record_end(const RowMember& team, const MemoryRow& row) {
  const std::size_t used = M::bytes(row.tokens, row.channels);
  const std::size_t end = (used + kRecordAlignment - 1) / kRecordAlignment * kRecordAlignment;
  std::uint8_t* rest = row.record + used;
  row_for_synced(team, static_cast<int>(end - used), [=](int i) { rest[i] = 0; });
}

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

/// Devices only: a lookup for each channel serves all segments of a row in one loop.
struct StepOfSegment {
  const std::uint16_t* steps;
  int segment;
  KOKKOS_INLINE_FUNCTION float at(int c) const { return float_of_step(steps[c / segment]); }
  KOKKOS_INLINE_FUNCTION float inverse_at(int c) const { return inverse_of(at(c)); }
};

/// random[k*lanes + l], k = 0 ... 7: 16 random bits for channel k*lanes + l of token t. They depend
/// on nothing but run, step, boundary, direction, sample and element.
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

/// memory + level * step, which both ends compute with. The product is exact, so that the sum is
/// the only rounding, fused or not.
KOKKOS_INLINE_FUNCTION float changed(float memory, float level, float step) {
  float x = level * step + memory;
  x = x < kMaxFloat ? x : kMaxFloat;
  return x > -kMaxFloat ? x : -kMaxFloat;
}

/// codes := codes of x - work, work := work + what they stand for; n channels from the pointers on.
/// Stochastic rounding takes x to a grid of 2^-16 steps, nearest, and from there up with exactly
/// the probability of the remainder: the bias is below 2^-17 steps.
template <class Step>
KOKKOS_INLINE_FUNCTION void quantize_span(const RowMember& team, const RowFormat& format, int n,
                                          const float* x, float* work, std::uint8_t* codes,
                                          const std::uint16_t* random, const Step& step) {
  const float low = format.low;
  const float high = format.high;
  const int shift = static_cast<int>(format.shift);
  const auto scaled = [=](int c) {
    float v = (x[c] - work[c]) * step.inverse_at(c);
    v = v == v ? v : 0.0f;
    v = v < high ? v : high;
    return v > low ? v : low;
  };
  if (format.stride == 1.0f && !format.stochastic) {
    row_for_synced(team, n, [=](int c) {
      constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: the sum has no fraction
      const float q = (scaled(c) + kRound) - kRound;
      codes[c] = static_cast<std::uint8_t>(static_cast<int>(q) + shift);
      work[c] = changed(work[c], q, step.at(c));
    });
  } else if (format.stride == 1.0f) {
    row_for_synced(team, n, [=](int c) {
      const float v = scaled(c) * 65536.0f;
      const int grid = static_cast<int>(v + (v < 0.0f ? -0.5f : 0.5f));
      const int q = (grid + static_cast<int>(random[c])) >> 16;
      codes[c] = static_cast<std::uint8_t>(q + shift);
      work[c] = changed(work[c], static_cast<float>(q), step.at(c));
    });
  } else if (!format.stochastic) {
    row_for_synced(team, n, [=](int c) {
      const float q = x[c] - work[c] < 0.0f ? -1.0f : 1.0f;
      codes[c] = static_cast<std::uint8_t>(q > 0.0f ? 1 : 0);
      work[c] = changed(work[c], q, step.at(c));
    });
  } else {
    row_for_synced(team, n, [=](int c) {
      const int grid = static_cast<int>((scaled(c) + 1.0f) * 32768.0f + 0.5f);
      const int u = (grid + static_cast<int>(random[c])) >> 16;
      codes[c] = static_cast<std::uint8_t>(u);
      work[c] = changed(work[c], static_cast<float>(2 * u - 1), step.at(c));
    });
  }
}

/// work := work + what the codes stand for.
template <class Step>
KOKKOS_INLINE_FUNCTION void add_codes(const RowMember& team, const RowFormat& format, int n,
                                      const std::uint8_t* codes, float* work, const Step& step) {
  const float stride = format.stride;
  const float shift = format.shift;
  row_for_synced(team, n, [=](int c) {
    const float q = static_cast<float>(static_cast<int>(codes[c])) * stride - shift;
    work[c] = changed(work[c], q, step.at(c));
  });
}

/// Steps of a row's segments for x - work.
KOKKOS_INLINE_FUNCTION void find_steps(const RowMember& team, const RowFormat& format, int n,
                                       const float* x, const float* work, std::uint16_t* steps) {
  for (int s = 0; s < format.segments; ++s) {
    const int first = s * format.segment;
    const int width = n - first < format.segment ? n - first : format.segment;
    const auto change = [=](int c) { return x[first + c] - work[first + c]; };
    if (format.rule != ScaleRule::max) {
      const FittedScale rule{
          format.rule, format.rms_step, format.negative_levels, format.positive_levels,
          format.low,  format.high};
      const std::uint16_t step = fitted_step(team, rule, width, change);
      Kokkos::single(Kokkos::PerTeam(team), [&]() { steps[s] = step; });
      continue;
    }
    float needed;
    if (format.mean_scale) {
      needed = row_sum<float>(team, width,
                              [=](int c) { return float_of(finite_magnitude(change(c))); }) /
               static_cast<float>(width);
    } else if (format.is_even()) {
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
    Kokkos::single(Kokkos::PerTeam(team), [&]() { steps[s] = step; });
  }
  if constexpr (!kHostExecution) team.team_barrier();
}

/// Places of a row's parts in its sample's payload block. Codes that are to be entropy coded are
/// aside, as bytes.
struct CodeRow {
  std::uint16_t* steps;
  std::uint8_t* packed;

  KOKKOS_INLINE_FUNCTION static CodeRow of(const RowArguments& a, const RowFormat& format,
                                           const SampleEntry& sample, int t) {
    std::uint8_t* block = a.payload + sample.payload;
    std::uint16_t* steps = reinterpret_cast<std::uint16_t*>(block);
    std::uint8_t* packed = block + std::size_t{2} * format.segments * sample.tokens;
    if (format.segment == 0)
      steps = reinterpret_cast<std::uint16_t*>(a.payload);
    else
      steps += static_cast<std::size_t>(t) * format.segments;
    if (format.is_coded) {
      const std::size_t row = (&sample - a.samples) * static_cast<std::size_t>(a.tokens) + t;
      return {steps, a.codes + row * packed_bytes(format.packed_bits(), a.channels)};
    }
    return {steps, packed + t * packed_bytes(format.bits, a.channels)};
  }
};

KOKKOS_INLINE_FUNCTION void quantize_row(const RowMember& team, const RowArguments& a,
                                         const RowFormat& format, const SampleEntry& sample, int t,
                                         const float* x, const RowBuffers& buffers) {
  const int n = a.channels;
  const CodeRow row = CodeRow::of(a, format, sample, t);
  if (format.stochastic) fill_random(team, a, sample.id, t, buffers.random);
  if (format.segment > 0) find_steps(team, format, n, x, buffers.work, row.steps);
  if (format.segment == 0) {
    quantize_span(team, format, n, x, buffers.work, buffers.codes, buffers.random,
                  StepOfChannel{row.steps});
  } else if constexpr (kHostExecution) {
    for (int first = 0; first < n; first += format.segment) {
      const float step = float_of_step(row.steps[first / format.segment]);
      const int width = n - first < format.segment ? n - first : format.segment;
      quantize_span(team, format, width, x + first, buffers.work + first, buffers.codes + first,
                    buffers.random + first, UniformStep{step, inverse_of(step)});
    }
  } else {
    quantize_span(team, format, n, x, buffers.work, buffers.codes, buffers.random,
                  StepOfSegment{row.steps, format.segment});
  }
  row_for_synced(team, 8 * lanes_of(n) - n, [&](int c) { buffers.codes[n + c] = 0; });
  pack_row(team, format.packed_bits(), n, buffers.codes, row.packed);
}

KOKKOS_INLINE_FUNCTION void dequantize_row(const RowMember& team, const RowArguments& a,
                                           const RowFormat& format, const SampleEntry& sample,
                                           int t, float* work, std::uint8_t* codes) {
  const int n = a.channels;
  const CodeRow row = CodeRow::of(a, format, sample, t);
  unpack_row(team, format.packed_bits(), n, row.packed, codes);
  if (format.segment == 0) {
    add_codes(team, format, n, codes, work, StepOfChannel{row.steps});
  } else if constexpr (kHostExecution) {
    for (int first = 0; first < n; first += format.segment) {
      const float step = float_of_step(row.steps[first / format.segment]);
      const int width = n - first < format.segment ? n - first : format.segment;
      add_codes(team, format, width, codes + first, work + first, UniformStep{step, 0.0f});
    }
  } else {
    add_codes(team, format, n, codes, work, StepOfSegment{row.steps, format.segment});
  }
}

/// A row of fp32 values in a sample's payload block.
KOKKOS_INLINE_FUNCTION float* float_row(std::uint8_t* block, int t, int n) {
  return reinterpret_cast<float*>(block) + static_cast<std::size_t>(t) * n;
}

/// A first visit's values, sent as fp32 or fp16. Only finite ones may enter a memory: NaN becomes
/// 0, infinities the largest number. work := what was sent.
KOKKOS_INLINE_FUNCTION void send_dense_row(const RowMember& team, const RowArguments& a,
                                           RowKind kind, const SampleEntry& sample, int t,
                                           const float* x, float* work) {
  const int n = a.channels;
  std::uint8_t* block = a.payload + sample.payload;
  if (kind == RowKind::fp32) {
    float* values = float_row(block, t, n);
    row_for_synced(team, n, [=](int c) { values[c] = work[c] = saturate(x[c], kMaxFloat); });
    return;
  }
  const HalfRow row = HalfRow::of(block, sample.tokens, t, n);
  write_finite_half_row(team, n, x, half_exponent_of_row(team, n, x), row);
  read_half_row(team, n, row, work);
}

KOKKOS_INLINE_FUNCTION void receive_dense_row(const RowMember& team, const RowArguments& a,
                                              RowKind kind, const SampleEntry& sample, int t,
                                              float* work) {
  const int n = a.channels;
  std::uint8_t* block = a.payload + sample.payload;
  if (kind == RowKind::fp32) {
    const float* values = float_row(block, t, n);
    row_for_synced(team, n, [=](int c) { work[c] = values[c]; });
  } else {
    read_half_row(team, n, HalfRow::of(block, sample.tokens, t, n), work);
  }
}

/// Adds a row's sums: of what is not finite in x and, where measured, of the error of `seen`.
KOKKOS_INLINE_FUNCTION void add_row_sums(const RowMember& team, const RowArguments& a, int index,
                                         const float* x, const float* seen) {
  const int n = a.channels;
  // The largest magnitude, as bits, tells in one pass whether there is anything to count.
  const std::uint32_t largest =
      row_max(team, n, 0u, [=](int c) { return bits_of(x[c]) & 0x7fffffffu; });
  std::uint32_t nonfinite = 0;
  if (largest >= kInfinityBits)
    nonfinite = row_sum<std::uint32_t>(team, n, [=](int c) { return is_nonfinite(x[c]); });
  float error2 = 0;
  float signal2 = 0;
  if (a.measure) {
    error2 = row_sum<float>(team, n, [=](int c) {
      const float error = x[c] - seen[c];
      return is_nonfinite(x[c]) ? 0.0f : error * error;
    });
    signal2 =
        row_sum<float>(team, n, [=](int c) { return is_nonfinite(x[c]) ? 0.0f : x[c] * x[c]; });
  }
  RowSums* row_sums = a.sums + index;
  const bool measure = a.measure;
  Kokkos::single(Kokkos::PerTeam(team), [=]() {
    row_sums->nonfinite += nonfinite;
    if (!measure) return;
    row_sums->error2 += error2;
    row_sums->signal2 += signal2;
    row_sums->elements += n;
  });
}

template <class M>
struct EncodeRows {
  RowArguments a;
  RowFormats formats;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const SampleEntry& sample = a.samples[index / a.tokens];
    const RowFormat& format = formats.format[sample.format];
    const int t = index % a.tokens;
    const int n = a.channels;
    const RowBuffers buffers = RowBuffers::of(team, n);
    const MemoryRow memory{a.pool + sample.record, a.tokens, t, n};
    if (t == 0 && !format.uses_memory) clear_record_end<M>(team, memory);
    if (t >= sample.tokens) {
      if (format.uses_memory) return;
      NoMemory::load(team, memory, buffers.work, buffers.codes);
      M::store(team, memory, buffers.work, buffers.codes);
      return;
    }
    const float* x = a.x + static_cast<std::size_t>(index) * n;
    if (format.uses_memory)
      M::load(team, memory, buffers.work, buffers.codes);
    else if (format.kind == RowKind::codes)
      NoMemory::load(team, memory, buffers.work, buffers.codes);
    if (format.kind == RowKind::codes)
      quantize_row(team, a, format, sample, t, x, buffers);
    else
      send_dense_row(team, a, format.kind, sample, t, x, buffers.work);
    M::store(team, memory, buffers.work, buffers.codes);
    add_row_sums(team, a, index, x, buffers.work);
  }
};

template <class M>
struct DecodeRows {
  RowArguments a;
  RowFormats formats;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int b = index / a.tokens;
    const int t = index % a.tokens;
    const int n = a.channels;
    float* x = a.x + static_cast<std::size_t>(index) * n;
    if (b >= a.sample_count) {
      row_for_synced(team, n, [=](int c) { x[c] = 0.0f; });
      return;
    }
    const SampleEntry& sample = a.samples[b];
    const RowFormat& format = formats.format[sample.format];
    const RowBuffers buffers = RowBuffers::of(team, n);
    const MemoryRow memory{a.pool + sample.record, a.tokens, t, n};
    if (t == 0 && !format.uses_memory) clear_record_end<M>(team, memory);
    if (t >= sample.tokens) {
      row_for_synced(team, n, [=](int c) { x[c] = 0.0f; });
      if (!format.uses_memory) {
        NoMemory::load(team, memory, buffers.work, buffers.codes);
        M::store(team, memory, buffers.work, buffers.codes);
      }
      return;
    }
    if (format.uses_memory)
      M::load(team, memory, x, buffers.codes);
    else if (format.kind == RowKind::codes)
      NoMemory::load(team, memory, x, buffers.codes);
    if (format.kind == RowKind::codes)
      dequantize_row(team, a, format, sample, t, x, buffers.codes);
    else
      receive_dense_row(team, a, format.kind, sample, t, x);
    M::store(team, memory, x, buffers.codes);
  }
};

/// Rows that one team looks at for scales per channel.
inline constexpr int kScaleRows = 64;

/// partials_RC(r, c) := largest needed step, or sum of |x - m|, over the r-th block of rows, as the
/// bits of a float. Only rows with channel steps count.
template <class M>
struct ChannelScales {
  RowArguments a;
  RowFormats formats;
  bool mean;  ///< all such rows' scale is the mean
  std::uint32_t* partials_RC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int n = a.channels;
    const RowBuffers buffers = RowBuffers::of(team, n);
    std::uint32_t* partials = partials_RC + static_cast<std::size_t>(team.league_rank()) * n;
    row_for_synced(team, n, [=](int c) { partials[c] = 0; });
    const bool sum_up = mean;
    const int end = a.sample_count * a.tokens;
    const int first = team.league_rank() * kScaleRows;
    const int last = first + kScaleRows < end ? first + kScaleRows : end;
    for (int index = first; index < last; ++index) {
      const SampleEntry& sample = a.samples[index / a.tokens];
      const int t = index % a.tokens;
      const RowFormat& rows = formats.format[sample.format];
      if (rows.kind != RowKind::codes || rows.segment != 0 || t >= sample.tokens) continue;
      const MemoryRow memory{a.pool + sample.record, a.tokens, t, n, a.scale};
      const float* x = a.x + static_cast<std::size_t>(index) * n;
      float* work = buffers.work;
      if (rows.uses_memory)
        M::load(team, memory, work, buffers.codes);
      else
        NoMemory::load(team, memory, work, buffers.codes);
      row_for_synced(team, n, [&](int c) {
        const std::uint32_t value = rows.needed_step(x[c] - work[c]);
        const std::uint32_t sum = bits_of(float_of(partials[c]) + float_of(value));
        const std::uint32_t larger = value > partials[c] ? value : partials[c];
        partials[c] = sum_up ? sum : larger;
      });
    }
  }
};

/// Steps of all channels, to the payload's front, from the blocks of rows in their order.
struct ChannelSteps {
  RowFormat format;
  const std::uint32_t* partials_RC;
  int blocks;
  int channels;
  int rows;  ///< that counted
  std::uint16_t* steps;

  KOKKOS_INLINE_FUNCTION void operator()(const int c) const {
    float needed = 0;
    for (int r = 0; r < blocks; ++r) {
      const float value = float_of(partials_RC[static_cast<std::size_t>(r) * channels + c]);
      const float larger = value > needed ? value : needed;
      needed = format.mean_scale ? needed + value : larger;
    }
    if (format.mean_scale) needed /= static_cast<float>(rows);
    steps[c] = format.step_for(needed);
  }
};

/// A codec of RowFormats over memories M.
template <class M>
class QuantizedCodec : public RowCodec {
 public:
  std::size_t max_payload_bytes() const override;
  std::size_t memory_bytes() const final {
    return RowCodec::memory_bytes() + bytes_of_view(partials_RC_) +
           (streams_ == nullptr ? 0 : streams_->memory_bytes());
  }

 protected:
  QuantizedCodec(const CodecShape& shape, std::uint32_t id, const RowFormats& formats);

  std::size_t block_bytes(int format, int tokens) const override {
    return block_bytes_of(formats_.format[format], tokens, shape_.channels);
  }
  std::size_t front_bytes(const Crossing& crossing) const override;
  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override;
  void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) override;
  std::size_t tail_bytes(const Crossing& crossing) const override;
  std::size_t expected_bytes(const ExecSpace& exec, const Crossing& crossing,
                             const DeviceBytes& payload, std::size_t bytes) override;
  /// The arguments with a place for codes that do not go into the payload's blocks.
  RowArguments with_codes(RowArguments arguments) const {
    arguments.codes = streams_ == nullptr ? nullptr : streams_->codes();
    return arguments;
  }
  /// Writes the codes that kernels have set aside; returns the payload's length.
  std::size_t code_rows(const ExecSpace& exec, const RowArguments& arguments,
                        std::size_t max_bytes);
  /// Kernels that write the steps per channel of x - (what Memories loads), if any row has them.
  template <class Memories>
  void find_channel_steps(const ExecSpace& exec, const RowArguments& arguments);
  const RowFormats& formats() const { return formats_; }

 private:
  std::size_t front_size() const { return round_up(std::size_t{2} * shape_.channels, 4); }
  std::size_t most_coded_bytes(int format) const;
  int rows_with_channel_scales(const std::vector<SampleEntry>& samples) const;

  const RowFormats formats_;
  int channel_format_ = -1;  ///< one with steps at the payload's front; -1: none
  Vector<std::uint32_t> partials_RC_;
  std::unique_ptr<CodeStreams> streams_;  ///< none: all codes are packed
  std::vector<CodeStreams::Sample> coded_;
};

template <class M>
QuantizedCodec<M>::QuantizedCodec(const CodecShape& shape, std::uint32_t id,
                                  const RowFormats& formats)
    : RowCodec(shape, id), formats_(formats) {
  for (int f = 0; f < RowFormats::kCount; ++f)
    if (formats.format[f].has_channel_steps()) channel_format_ = f;
  streams_ = streams_of(formats, shape);
  if (channel_format_ < 0) return;
  const std::size_t rows = static_cast<std::size_t>(shape.max_samples) * shape.tokens;
  const std::size_t blocks = (rows + kScaleRows - 1) / kScaleRows;
  partials_RC_ = Vector<std::uint32_t>(uninitialized("deltapipe::QuantizedCodec::partial_scales"),
                                       blocks * shape.channels);
}

template <class M>
std::size_t QuantizedCodec<M>::max_payload_bytes() const {
  std::size_t largest = 0;
  for (int f = 0; f < RowFormats::kCount; ++f)
    largest = std::max(largest, round_up(block_bytes(f, shape_.tokens), 4) +
                                    (streams_ == nullptr ? 0 : most_coded_bytes(f)));
  return largest * shape_.max_samples + (channel_format_ < 0 ? 0 : front_size());
}

template <class M>
std::size_t QuantizedCodec<M>::most_coded_bytes(int format) const {
  std::array<int, kCodeFormats> rows{};
  rows[formats_.format[format].table] = shape_.tokens;
  return streams_->max_bytes(rows);
}

template <class M>
std::size_t QuantizedCodec<M>::tail_bytes(const Crossing& crossing) const {
  if (streams_ == nullptr) return 0;
  std::array<int, kCodeFormats> rows{};
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b)
    rows[formats_.format[format_of(crossing, b)].table] += crossing.tokens[b];
  return streams_->max_bytes(rows);
}

template <class M>
std::size_t QuantizedCodec<M>::code_rows(const ExecSpace& exec, const RowArguments& arguments,
                                         std::size_t max_bytes) {
  if (streams_ == nullptr) return max_bytes;
  coded_.clear();
  std::array<int, kCodeFormats> rows{};
  for (const SampleEntry& sample : samples()) {
    const int table = formats_.format[sample.format].table;
    coded_.push_back({table, sample.tokens});
    rows[table] += sample.tokens;
  }
  return streams_->encode(exec, coded_, arguments.payload, max_bytes - streams_->max_bytes(rows));
}

template <class M>
std::size_t QuantizedCodec<M>::expected_bytes(const ExecSpace& exec, const Crossing& crossing,
                                              const DeviceBytes& payload, std::size_t bytes) {
  const std::size_t most = payload_bytes(crossing);
  if (streams_ == nullptr) return most;
  coded_.clear();
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b)
    coded_.push_back({formats_.format[format_of(crossing, b)].table, crossing.tokens[b]});
  const CodeStreams::Decoded decoded =
      streams_->decode(exec, coded_, payload.data(), most - tail_bytes(crossing), bytes);
  if (decoded.bytes == bytes && !decoded.is_sound) refuse_codes(crossing);
  return decoded.bytes;
}

template <class M>
std::size_t QuantizedCodec<M>::front_bytes(const Crossing& crossing) const {
  for (std::size_t b = 0; b < crossing.sample_ids.size(); ++b)
    if (crossing.tokens[b] > 0 && formats_.format[format_of(crossing, b)].has_channel_steps())
      return front_size();
  return 0;
}

template <class M>
int QuantizedCodec<M>::rows_with_channel_scales(const std::vector<SampleEntry>& samples) const {
  int rows = 0;
  for (const SampleEntry& sample : samples)
    if (formats_.format[sample.format].has_channel_steps()) rows += sample.tokens;
  return rows;
}

template <class M>
template <class Memories>
void QuantizedCodec<M>::find_channel_steps(const ExecSpace& exec, const RowArguments& arguments) {
  const int counted = rows_with_channel_scales(samples());
  if (counted == 0) return;
  const RowFormat& format = formats_.format[channel_format_];
  const int blocks = (arguments.sample_count * arguments.tokens + kScaleRows - 1) / kScaleRows;
  Kokkos::parallel_for(
      "deltapipe::QuantizedCodec::channel_scales",
      row_policy(exec, blocks, RowBuffers::bytes(shape_.channels)),
      ChannelScales<Memories>{arguments, formats_, format.mean_scale, partials_RC_.data()});
  Kokkos::parallel_for("deltapipe::QuantizedCodec::channel_steps",
                       Kokkos::RangePolicy<ExecSpace>(exec, 0, shape_.channels),
                       ChannelSteps{format, partials_RC_.data(), blocks, shape_.channels, counted,
                                    reinterpret_cast<std::uint16_t*>(arguments.payload)});
}

template <class M>
std::size_t QuantizedCodec<M>::run_encode(const ExecSpace& exec, const RowArguments& arguments,
                                          std::size_t max_bytes) {
  find_channel_steps<M>(exec, arguments);
  const int rows = arguments.sample_count * arguments.tokens;
  Kokkos::parallel_for("deltapipe::QuantizedCodec::encode",
                       row_policy(exec, rows, RowBuffers::bytes(shape_.channels)),
                       EncodeRows<M>{with_codes(arguments), formats_});
  return code_rows(exec, arguments, max_bytes);
}

template <class M>
void QuantizedCodec<M>::run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) {
  Kokkos::parallel_for("deltapipe::QuantizedCodec::decode",
                       row_policy(exec, rows, RowBuffers::bytes(shape_.channels)),
                       DecodeRows<M>{with_codes(arguments), formats_});
}

}  // namespace deltapipe::codec
