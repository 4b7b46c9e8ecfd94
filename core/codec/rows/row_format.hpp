// SPDX-License-Identifier: BSD-3-Clause
// Layout of a sample's rows in its payload block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/numeric/number_formats.hpp"
#include "core/codec/quantizer/packing.hpp"
#include "core/codec/quantizer/scales.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe::codec {

/// sparse: the kernels of quantized_rows.hpp leave such samples unchanged.
enum class RowKind { fp32, codes, sparse };

/// Layout of a sample's rows in its payload block: fp32 values, or the steps of all rows, then the
/// packed codes of all rows. Steps have 2 bytes each. With scale channel, they are at the payload's
/// front instead; with scale message, each row has a byte (RowSteps).
struct RowFormat {
  RowKind kind = RowKind::fp32;
  bool uses_memory = false;  ///< values are changes of the memory; else they replace it
  int bits = 8;
  int segment = 0;   ///< channels that a step covers; 0: all tokens share a step per channel
  int segments = 0;  ///< steps per row
  bool stochastic = false;
  bool is_coded = false;  ///< codes are not packed in the block, but coded after all blocks
  int table = 0;          ///< table of frequencies, shared by formats that are alike on the wire
  bool has_message_step = false;  ///< one for all rows, at the payload's front; a byte per row
  bool is_relative = false;       ///< steps are relative to the row's RMS in the memory
  float rms_step = 0;             ///< above 0: the step as a fraction of the RMS
  bool keeps_step = false;        ///< set_rms_step does not change the step
  // If rms_step is 0, the step is the least one for which every x is between -negative_levels and
  // positive_levels steps.
  float negative_levels = 127;
  float positive_levels = 127;
  // A code u means the level q = u - shift, low <= q <= high.
  float low = -127;
  float high = 127;
  float shift = 127;

  /// Returns the bits of a code in the kernels that write and read it. Packed at 8 bits, codes are
  /// unchanged bytes.
  KOKKOS_INLINE_FUNCTION int packed_bits() const { return is_coded ? 8 : bits; }
  KOKKOS_INLINE_FUNCTION bool is_even() const { return negative_levels == positive_levels; }
  /// Returns the step that a change needs, as the bits of a float: |x| itself if levels are even,
  /// since the division by them can wait for the largest. Changes that are not finite need none.
  KOKKOS_INLINE_FUNCTION std::uint32_t needed_step(float change) const {
    const std::uint32_t magnitude = finite_magnitude(change);
    if (is_even()) return magnitude;
    return bits_of(float_of(magnitude) / (change < 0.0f ? negative_levels : positive_levels));
  }
  /// Returns true if there is one step per channel, for all tokens, at the payload's front.
  bool has_channel_steps() const { return kind == RowKind::codes && segment == 0; }
  bool has_front() const { return has_channel_steps() || has_message_step; }
  /// Returns the step for the largest needed_step.
  KOKKOS_INLINE_FUNCTION std::uint16_t step_for(float needed) const {
    return is_even() ? step_of(needed, negative_levels) : step_at_least(needed, negative_levels);
  }
};

/// Returns the format of codes that the settings describe.
RowFormat code_format(const CodecSettings& settings, int channels);

KOKKOS_INLINE_FUNCTION std::size_t block_bytes_of(const RowFormat& format, int tokens,
                                                  int channels) {
  std::size_t row = 0;
  if (format.kind == RowKind::fp32) row = std::size_t{4} * channels;
  if (format.kind == RowKind::codes)
    row = (format.has_message_step ? 1 : std::size_t{2} * format.segments) +
          (format.is_coded ? 0 : packed_bytes(format.bits, channels));
  return row * tokens;
}

inline constexpr int kFirstVisit = 0, kLaterVisit = 1;

/// Formats of first visits and of later ones; a sample's entry selects one. Formats with steps per
/// channel share the steps, and therefore have the same kind of codes.
struct RowFormats {
  static constexpr int kCount = 2;
  RowFormat format[kCount];

  static RowFormats all(const RowFormat& format) { return {{format, format}}; }
};

}  // namespace deltapipe::codec
