// SPDX-License-Identifier: BSD-3-Clause
// Memories m(s) in their storage precision. A record holds T rows. Records depend only on values
// with which both ends computed, so that both ends keep the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "core/codec/quantizer/half_rows.hpp"
#include "core/codec/quantizer/packing.hpp"
#include "core/codec/quantizer/scales.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe::codec {

/// Location of one row of a record.
struct MemoryRow {
  std::uint8_t* record;
  int tokens;  ///< T
  int t;
  int channels;     ///< C
  float scale = 1;  ///< Crossing::scale, for records that do not contain it
  float share = 1;  ///< share of the errors that is added to values (ErrorBound)

  template <class T>
  KOKKOS_INLINE_FUNCTION T* values() const {
    return reinterpret_cast<T*>(record) + static_cast<std::size_t>(t) * channels;
  }
};

/// Bytes of a row in a record, which holds the first parts of its T rows and then their second
/// parts.
struct RowParts {
  std::size_t first = 0, second = 0;
};

/// Bound if none is known.
inline constexpr float kUnbounded = std::numeric_limits<float>::infinity();

/// store() writes x, which is finite, to the row in storage precision; magnitudes above kMost
/// become kMost. load() sets work to the row. With fp32, both may get the row itself. `codes` is a
/// buffer of 8*lanes bytes. bound() is a bound of the magnitudes in the row. Zero bytes are a row
/// of zeros.
template <MemoryStorage storage>
struct Memory;

template <>
struct Memory<MemoryStorage::fp32> {
  static constexpr float kMost = kMaxFloat;
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return std::size_t{4} * tokens * channels;
  }
  static RowParts row_parts(int channels) { return {bytes(1, channels), 0}; }
  KOKKOS_INLINE_FUNCTION static float bound(const MemoryRow&) { return kUnbounded; }
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t*) {
    const float* values = row.values<float>();
    if (work == values) return;
    row_for_synced(team, row.channels, [&](int c) { work[c] = values[c]; });
  }
  KOKKOS_INLINE_FUNCTION static void store(const RowMember& team, const MemoryRow& row,
                                           const float* x, std::uint8_t*) {
    float* values = row.values<float>();
    if (x == values) return;
    row_for_synced(team, row.channels, [&](int c) { values[c] = x[c]; });
  }
};

template <>
struct Memory<MemoryStorage::fp16> {
  static constexpr float kMost = kMaxHalf;
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return std::size_t{2} * tokens * channels;
  }
  static RowParts row_parts(int channels) { return {bytes(1, channels), 0}; }
  KOKKOS_INLINE_FUNCTION static float bound(const MemoryRow&) { return kMaxHalf; }
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t*) {
    floats_of_halves(team, row.channels, row.values<std::uint16_t>(), 1.0f, work);
  }
  KOKKOS_INLINE_FUNCTION static void store(const RowMember& team, const MemoryRow& row,
                                           const float* x, std::uint8_t*) {
    finite_halves_of_row(team, row.channels, x, 1.0f, row.values<std::uint16_t>());
  }
};

template <>
struct Memory<MemoryStorage::bf16> {
  static constexpr float kMost = kMaxFloat;
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return std::size_t{2} * tokens * channels;
  }
  static RowParts row_parts(int channels) { return {bytes(1, channels), 0}; }
  KOKKOS_INLINE_FUNCTION static float bound(const MemoryRow&) { return kUnbounded; }
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t*) {
    const std::uint16_t* values = row.values<std::uint16_t>();
    row_for_synced(team, row.channels, [&](int c) { work[c] = float_of_bfloat(values[c]); });
  }
  KOKKOS_INLINE_FUNCTION static void store(const RowMember& team, const MemoryRow& row,
                                           const float* x, std::uint8_t*) {
    std::uint16_t* values = row.values<std::uint16_t>();
    row_for_synced(team, row.channels,
                   [&](int c) { values[c] = bfloat_of(saturate(x[c], kMaxBfloat)); });
  }
};

/// Symmetric codes -L ... L, L = 2^(bits-1) - 1, with a step for every kTile channels. The record
/// holds the steps of all rows, then the packed codes of all rows.
template <int bits>
struct PackedMemory {
  static constexpr int kTile = 64;
  static constexpr int kLevels = (1 << (bits - 1)) - 1;
  static constexpr float kMost = kMaxFloat;

  KOKKOS_INLINE_FUNCTION static constexpr int tiles(int channels) {
    return (channels + kTile - 1) / kTile;
  }
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return (std::size_t{2} * tiles(channels) + packed_bytes(bits, channels)) * tokens;
  }
  static RowParts row_parts(int channels) {
    return {std::size_t{2} * tiles(channels), packed_bytes(bits, channels)};
  }
  KOKKOS_INLINE_FUNCTION static std::uint16_t* steps(const MemoryRow& row) {
    return reinterpret_cast<std::uint16_t*>(row.record) +
           static_cast<std::size_t>(row.t) * tiles(row.channels);
  }
  KOKKOS_INLINE_FUNCTION static std::uint8_t* packed(const MemoryRow& row) {
    return row.record + std::size_t{2} * row.tokens * tiles(row.channels) +
           row.t * packed_bytes(bits, row.channels);
  }

  KOKKOS_INLINE_FUNCTION static float bound(const MemoryRow& row) {
    const std::uint16_t* step_of_tile = steps(row);
    std::uint16_t largest = 0;
    for (int i = 0; i < tiles(row.channels); ++i)
      largest = step_of_tile[i] > largest ? step_of_tile[i] : largest;
    return float_of_step(largest) * kMostLevels;
  }
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t* codes) {
    const int n = row.channels;
    const std::uint16_t* step_of_tile = steps(row);
    const std::uint8_t* bytes = bits == 8 ? packed(row) : codes;
    if constexpr (bits != 8) unpack_bits<bits>(team, lanes_of(n), packed(row), codes);
    const auto value = [](std::uint8_t code, float step) {
      return static_cast<float>(static_cast<int>(code) - kLevels) * step;
    };
    if constexpr (kHostExecution) {
      for_tiles(n, kWidth, [=, &team](int i, int first, auto width) {
        const float step = float_of_step(step_of_tile[i]);
        row_for(team, width, [=](int c) { work[first + c] = value(bytes[first + c], step); });
      });
    } else {
      row_for_synced(team, n, [=](int c) {
        work[c] = value(bytes[c], float_of_step(step_of_tile[c / kTile]));
      });
    }
  }

  KOKKOS_INLINE_FUNCTION static void store(const RowMember& team, const MemoryRow& row,
                                           const float* x, std::uint8_t* codes) {
    const int n = row.channels;
    const int lanes = lanes_of(n);
    std::uint16_t* step_of_tile = steps(row);
    std::uint8_t* bytes = bits == 8 ? packed(row) : codes;
    if constexpr (kHostExecution) {
      constexpr int kTogether = kTile * StepsTogether::kMost;
      for (int first = 0; first < n; first += kTogether)
        code_tiles(team, n - first < kTogether ? n - first : kTogether, x + first, bytes + first,
                   step_of_tile + first / kTile);
    } else {
      for_tiles(n, kTile, [=, &team](int i, int first, int width) {
        const std::uint32_t largest =
            row_max(team, width, 0u, [=](int c) { return finite_magnitude(x[first + c]); });
        const std::uint16_t step = step_of(float_of(largest), kMostLevels);
        row_once(team, [=]() { step_of_tile[i] = step; });
      });
      team.team_barrier();
      row_for_synced(team, n, [=](int c) {
        const float inverse = inverse_of(float_of_step(step_of_tile[c / kTile]));
        bytes[c] = code_of(finite_or_zero(x[c]), inverse);
      });
    }
    row_for_synced(team, 8 * lanes - n, [=](int c) { bytes[n + c] = 0; });
    if constexpr (bits != 8) pack_bits<bits>(team, lanes, codes, packed(row));
  }

 private:
  static constexpr std::integral_constant<int, kTile> kWidth{};
  static constexpr auto kMostLevels = static_cast<float>(kLevels);

  /// Returns the code of x, which must be within the levels.
  KOKKOS_INLINE_FUNCTION static std::uint8_t code_of(float x, float inverse) {
    return static_cast<std::uint8_t>(static_cast<int>(nearest_integer(x * inverse)) + kLevels);
  }

  /// Finds codes and steps of tiles together, on a host.
  KOKKOS_INLINE_FUNCTION static void code_tiles(const RowMember& team, int n, const float* x,
                                                std::uint8_t* codes, std::uint16_t* step_of_tile) {
    StepsTogether steps;
    for_tiles(n, kWidth, [&](int i, int first, auto width) {
      const auto magnitude = [=](int c) { return bits_of(x[first + c]) & 0x7fffffffu; };
      steps.set(i, row_max(team, width, 0u, magnitude), kMostLevels);
    });
    const bool is_finite = steps.largest < kInfinityBits;
    if (!is_finite)
      for_tiles(n, kWidth, [&](int i, int first, auto width) {
        const auto magnitude = [=](int c) { return finite_magnitude(x[first + c]); };
        steps.set(i, row_max(team, width, 0u, magnitude), kMostLevels);
      });
    for_tiles(n, kWidth, [&](int i, int first, auto width) {
      step_of_tile[i] = steps.code[i];
      const float inverse = steps.inverse[i];
      if (is_finite)
        row_for(team, width, [=](int c) { codes[first + c] = code_of(x[first + c], inverse); });
      else
        row_for(team, width,
                [=](int c) { codes[first + c] = code_of(finite_or_zero(x[first + c]), inverse); });
    });
  }
};

template <>
struct Memory<MemoryStorage::bits8> : PackedMemory<8> {};
template <>
struct Memory<MemoryStorage::bits4> : PackedMemory<4> {};

/// Keeps nothing: all rows are zeros when they are read.
struct NoMemory {
  static constexpr float kMost = kMaxFloat;
  KOKKOS_INLINE_FUNCTION static float bound(const MemoryRow&) { return 0; }
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t*) {
    row_for_synced(team, row.channels, [&](int c) { work[c] = 0.0f; });
  }
  KOKKOS_INLINE_FUNCTION static void store(const RowMember&, const MemoryRow&, const float*,
                                           std::uint8_t*) {}
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int, int) { return 0; }
};

/// Returns a row's values: in the record if it holds them in fp32, else in work.
template <class M>
KOKKOS_INLINE_FUNCTION const float* values_of(const RowMember& team, const MemoryRow& row,
                                              float* work, std::uint8_t* codes) {
  if constexpr (std::is_same_v<M, Memory<MemoryStorage::fp32>>) {
    return row.values<float>();
  } else {
    M::load(team, row, work, codes);
    return work;
  }
}

/// Calls f with the storage as a template argument: f.template operator()<MemoryStorage>().
template <class F>
auto with_storage(MemoryStorage storage, const F& f) {
  switch (storage) {
    case MemoryStorage::fp32:
      return f.template operator()<MemoryStorage::fp32>();
    case MemoryStorage::fp16:
      return f.template operator()<MemoryStorage::fp16>();
    case MemoryStorage::bf16:
      return f.template operator()<MemoryStorage::bf16>();
    case MemoryStorage::bits8:
      return f.template operator()<MemoryStorage::bits8>();
    case MemoryStorage::bits4:
      break;
  }
  return f.template operator()<MemoryStorage::bits4>();
}

}  // namespace deltapipe::codec
