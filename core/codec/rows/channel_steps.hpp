// SPDX-License-Identifier: BSD-3-Clause
// Steps per channel, for all tokens of a micro-batch, at the payload's front.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/row.hpp"
#include "core/codec/quantizer/sample_memory.hpp"
#include "core/codec/rows/quantize_row.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"
#include "core/codec/rows/row_format_codec.hpp"

namespace deltapipe::codec {

/// Returns the record's row of a row of the micro-batch.
KOKKOS_INLINE_FUNCTION MemoryRow row_of(const RowArguments& a, int index) {
  const int b = index / a.tokens;
  return {a.pool + a.samples[b].record,
          a.tokens,
          index % a.tokens,
          a.channels,
          a.scale,
          a.error_share == nullptr ? 1.0f : a.error_share[b]};
}

/// Sets work to the values that are subtracted from a row of the format before its steps are found.
template <class Sender>
KOKKOS_INLINE_FUNCTION void load_taken(const RowMember& team, const RowFormat& format,
                                       const MemoryRow& record, float* work, std::uint8_t* codes) {
  if (format.uses_memory)
    Sender::load(team, record, work, codes);
  else
    NoMemory::load(team, record, work, codes);
}

/// Sets partials_RC(r, c) to the largest step that x - m needs in the r-th block of rows, as the
/// bits of a float; Sender::load computes m. Only rows with channel steps count.
template <class Sender>
struct ChannelScales {
  RowArguments a;
  RowFormats formats;
  std::uint32_t* partials_RC;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int n = a.channels;
    const RowBuffers buffers = RowBuffers::of(team, n);
    std::uint32_t* partials = partials_RC + static_cast<std::size_t>(team.league_rank()) * n;
    row_for_synced(team, n, [=](int c) { partials[c] = 0; });
    const int end = a.sample_count * a.tokens;
    const int first = team.league_rank() * kScaleRows;
    const int last = first + kScaleRows < end ? first + kScaleRows : end;
    for (int index = first; index < last; ++index) {
      const SampleEntry& sample = a.samples[index / a.tokens];
      const int t = index % a.tokens;
      const RowFormat& rows = formats.format[sample.format];
      if (rows.kind != RowKind::codes || rows.segment != 0 || t >= sample.tokens) continue;
      const MemoryRow record = row_of(a, index);
      const float* x = a.x + static_cast<std::size_t>(index) * n;
      float* work = buffers.work;
      load_taken<Sender>(team, rows, record, work, buffers.codes);
      row_for_synced(team, n, [&](int c) {
        const std::uint32_t value = rows.needed_step(x[c] - work[c]);
        partials[c] = value > partials[c] ? value : partials[c];
      });
    }
  }
};

/// Computes the steps of all channels, at the payload's front, from the blocks of rows in their
/// order. Writes a zero after an odd number of steps.
struct ChannelSteps {
  RowFormat format;
  const std::uint32_t* partials_RC;
  int blocks;
  int channels;
  std::uint16_t* steps;

  KOKKOS_INLINE_FUNCTION void operator()(const int c) const {
    float needed = 0;
    for (int r = 0; r < blocks; ++r) {
      const float value = float_of(partials_RC[static_cast<std::size_t>(r) * channels + c]);
      needed = value > needed ? value : needed;
    }
    steps[c] = format.step_for(needed);
    if (c + 1 == channels && channels % 2 != 0) steps[channels] = 0;
  }
};

}  // namespace deltapipe::codec
