// SPDX-License-Identifier: BSD-3-Clause
// Rows whose changes travel as components of a basis (klt_transform.hpp), in steps of the message.
//
// Codes travel component after component: of N such rows of C components, code j of all N C is that
// of component j / N of the (j mod N)-th row. In the payload they look like N rows of C codes,
// whose bytes say their tables as those of other rows do.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/base/parallel/row.hpp"
#include "core/codec/prediction/drift_map.hpp"
#include "core/codec/prediction/klt_basis.hpp"
#include "core/codec/prediction/klt_transform.hpp"
#include "core/codec/quantizer/sample_memory.hpp"
#include "core/codec/rows/quantize_row.hpp"
#include "core/codec/rows/quantized_rows.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_format.hpp"
#include "core/codec/rows/row_sums.hpp"

namespace deltapipe::codec {

/// Whether a row's changes are components where the crossing's are.
KOKKOS_INLINE_FUNCTION bool is_transformed(const RowFormat& format, const SampleEntry& sample,
                                           int t) {
  return format.is_transformable() && t < sample.tokens;
}

/// What KltTransform wants to know of a crossing; a.starts has what changes are counted from. NaN
/// is no change; the largest ones are cut, so that components are finite.
struct FindChanges {
  RowArguments a;
  RowFormats formats;
  float* r_NC;
  float* weight_N;
  float* fit_weight_N;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = a.channels;
    const SampleEntry& sample = a.samples[index / a.tokens];
    const std::size_t first = static_cast<std::size_t>(index) * n;
    float* r = r_NC + first;
    float* weights = weight_N;
    float* fit_weights = fit_weight_N;
    if (!is_transformed(formats.format[sample.format], sample, index % a.tokens)) {
      row_for(team, n, [=](int c) { r[c] = 0.0f; });
      row_once(team, [=]() { weights[index] = fit_weights[index] = 0.0f; });
      return;
    }
    const float* x = a.x + first;
    const float* start = a.starts + first;
    const auto change = [=](int c) {
      constexpr float kLargest = 1e35f;
      const float difference = x[c] - start[c];
      return difference == difference ? saturate(difference, kLargest) : 0.0f;
    };
    row_for_synced(team, n, [=](int c) { r[c] = change(c); });
    const auto mean_square = [&](const auto& value) {
      return row_sum<double>(team, n,
                             [=](int c) {
                               const double v = value(c);
                               return v * v;
                             }) /
             n;
    };
    const double square = mean_square([=](int c) { return start[c]; });
    // Larger changes are no drift, and products of the largest numbers would leave fp32.
    constexpr double kLargestChange2 = 1e6;
    const bool fits =
        square > 1e-30 && square < 1e30 && mean_square(change) < kLargestChange2 * square;
    const auto weight = static_cast<float>(std::sqrt(square));
    row_once(team, [=]() {
      weights[index] = weight;
      fit_weights[index] = fits ? 1 / weight : 0.0f;
    });
  }
};

/// Components become their levels, and the row's byte says its step.
struct QuantizeComponents {
  RowArguments a;
  RowFormats formats;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int t = index % a.tokens;
    const int n = a.channels;
    const SampleEntry& sample = a.samples[index / a.tokens];
    const RowFormat& format = formats.format[sample.format];
    if (!is_transformed(format, sample, t)) return;
    const RowBuffers buffers = RowBuffers::of(team, n);
    if (format.stochastic) fill_random(team, a, sample.id, t, buffers.random);
    float* z = a.components + static_cast<std::size_t>(index) * n;
    const int eighths = eighths_of_row(a, format, a.spreads[index]);
    const float step = step_of_row(a, eighths);
    std::uint8_t* block = a.payload + sample.payload;
    row_once(team, [=]() { block[t] = RowSteps::byte_of(eighths, 0); });
    if (t + 1 == sample.tokens)
      clear_block_end(team, block, block_bytes_of(format, sample.tokens, n));
    float* work = buffers.work;
    row_for_synced(team, n, [=](int c) { work[c] = 0.0f; });
    quantize_span(team, format, n, z, buffers.work, buffers.codes, buffers.random,
                  UniformStep{step, inverse_of(step)});
    const std::uint8_t* codes = buffers.codes;
    const float shift = format.shift;
    row_for(team, n, [=](int c) { z[c] = static_cast<float>(codes[c]) - shift; });
  }
};

/// Levels become rows of codes by component, each of the table that its squares want.
struct SortLevels {
  RowArguments a;
  RowFormats formats;
  TransformedRows rows;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int v = team.league_rank();
    const int n = a.channels;
    const TransformedRows list = rows;
    const int row = list.row_N[v];
    const SampleEntry& sample = a.samples[row / a.tokens];
    const float shift = formats.format[sample.format].shift;
    const float* levels_NC = a.components;
    const auto level = [=](int c) { return levels_NC[list.level(v, c, n)]; };
    std::uint8_t* codes = a.codes + static_cast<std::size_t>(row) * packed_bytes(8, n);
    row_for(team, n, [=](int c) { codes[c] = static_cast<std::uint8_t>(level(c) + shift); });
    row_for(team, 8 * lanes_of(n) - n, [=](int c) { codes[n + c] = 0; });
    const float squares = row_sum<float>(team, n, [=](int c) { return level(c) * level(c); });
    const int row_class = class_for(squares / static_cast<float>(n));
    std::uint8_t* byte = a.payload + sample.payload + row % a.tokens;
    std::uint8_t* to_class = a.classes + row;
    row_once(team, [=]() {
      *byte = RowSteps::byte_of(RowSteps::eighths_of(*byte), row_class);
      *to_class = static_cast<std::uint8_t>(row_class);
    });
  }

  /// By octaves of the mean square, from 1/256 on.
  KOKKOS_INLINE_FUNCTION static int class_for(float mean_square) {
    const float above = std::log2(mean_square) + 8.0f;
    if (!(above > 0.0f)) return 0;
    return above < kRowClasses - 1 ? static_cast<int>(above) : kRowClasses - 1;
  }
};

/// Rows of codes by component become levels. The others of a.components are zeros.
struct ReadLevels {
  RowArguments a;
  RowFormats formats;
  TransformedRows rows;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int v = team.league_rank();
    const int n = a.channels;
    const TransformedRows list = rows;
    const int row = list.row_N[v];
    const float shift = formats.format[a.samples[row / a.tokens].format].shift;
    const std::uint8_t* codes = a.codes + static_cast<std::size_t>(row) * packed_bytes(8, n);
    float* levels_NC = a.components;
    row_for(team, n,
            [=](int c) { levels_NC[list.level(v, c, n)] = static_cast<float>(codes[c]) - shift; });
  }
};

/// What the receiver sees, and the memories of it. sums_NC, scale: KltTransform's.
template <class M, bool kEncodes>
struct FinishTransformed {
  RowArguments a;
  RowFormats formats;
  const float* sums_NC;
  const float* scale;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int t = index % a.tokens;
    const int n = a.channels;
    const SampleEntry& sample = a.samples[index / a.tokens];
    if (!is_transformed(formats.format[sample.format], sample, t)) return;
    const std::size_t first = static_cast<std::size_t>(index) * n;
    const RowBuffers buffers = RowBuffers::of(team, n);
    const MemoryRow memory = row_of(a, sample, index);
    const float step = step_of_row(a, RowSteps::eighths_of(a.payload[sample.payload + t]));
    const float* sums = sums_NC + first;
    const float* scales = scale;
    float* seen = kEncodes ? buffers.work : a.x + first;
    load_scaled<M>(team, memory, seen, buffers.codes);
    row_for_synced(team, n,
                   [=](int c) { seen[c] = predicted_change(sums[c], step, scales[c], seen[c]); });
    if constexpr (kEncodes) {
      const float* x = a.x + first;
      add_row_sums(team, a, index, x, largest_of_row(team, n, x), largest_kept<M>(a.scale), seen);
    }
    store_scaled<M>(team, memory, seen, buffers.work, buffers.codes);
  }
};

}  // namespace deltapipe::codec
