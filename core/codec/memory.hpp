// SPDX-License-Identifier: BSD-3-Clause
// Memories m(s) in their storage precision. A record holds T rows. What is stored is a function of
// the values that both ends computed with alone: both ends keep the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/codec/half_rows.hpp"
#include "core/codec/packing.hpp"
#include "core/codec/scales.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe::codec {

/// Place of one row of a record.
struct MemoryRow {
  std::uint8_t* record;
  int tokens;  ///< T
  int t;
  int channels;     ///< C
  float scale = 1;  ///< Crossing::scale, for records that leave it out
  /// What changes are counted from at this crossing, where that is not the row itself.
  const float* start = nullptr;

  template <class T>
  KOKKOS_INLINE_FUNCTION T* values() const {
    return reinterpret_cast<T*>(record) + static_cast<std::size_t>(t) * channels;
  }
};

/// store: the row := x, which is finite, in storage precision. load: work := the row. codes: a
/// buffer of 8*lanes bytes.
template <MemoryStorage storage>
struct Memory;

template <>
struct Memory<MemoryStorage::fp32> {
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return std::size_t{4} * tokens * channels;
  }
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t*) {
    const float* values = row.values<float>();
    row_for_synced(team, row.channels, [&](int c) { work[c] = values[c]; });
  }
  KOKKOS_INLINE_FUNCTION static void store(const RowMember& team, const MemoryRow& row,
                                           const float* x, std::uint8_t*) {
    float* values = row.values<float>();
    row_for_synced(team, row.channels, [&](int c) { values[c] = x[c]; });
  }
};

template <>
struct Memory<MemoryStorage::fp16> {
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return std::size_t{2} * tokens * channels;
  }
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
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return std::size_t{2} * tokens * channels;
  }
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
/// is the steps of all rows, then the packed codes of all rows.
template <int bits>
struct PackedMemory {
  static constexpr int kTile = 64;
  static constexpr int kLevels = (1 << (bits - 1)) - 1;

  KOKKOS_INLINE_FUNCTION static constexpr int tiles(int channels) {
    return (channels + kTile - 1) / kTile;
  }
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int tokens, int channels) {
    return (std::size_t{2} * tiles(channels) + packed_bytes(bits, channels)) * tokens;
  }
  KOKKOS_INLINE_FUNCTION static std::uint16_t* steps(const MemoryRow& row) {
    return reinterpret_cast<std::uint16_t*>(row.record) +
           static_cast<std::size_t>(row.t) * tiles(row.channels);
  }
  KOKKOS_INLINE_FUNCTION static std::uint8_t* packed(const MemoryRow& row) {
    return row.record + std::size_t{2} * row.tokens * tiles(row.channels) +
           row.t * packed_bytes(bits, row.channels);
  }

  /// use(first, width) for each tile of n channels; compilers know the width of whole ones.
  template <class Use>
  KOKKOS_FORCEINLINE_FUNCTION static void for_tiles(int n, const Use& use) {
    const int whole = n - n % kTile;
    for (int first = 0; first < whole; first += kTile)
      use(first, std::integral_constant<int, kTile>());
    if (whole < n) use(whole, n - whole);
  }

  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t* codes) {
    unpack_bits<bits>(team, lanes_of(row.channels), packed(row), codes);
    const std::uint16_t* step_of_tile = steps(row);
    const int n = row.channels;
    const auto value = [](std::uint8_t code, float step) {
      return static_cast<float>(static_cast<int>(code) - kLevels) * step;
    };
    if constexpr (kHostExecution) {
      for_tiles(n, [=, &team](int first, auto width) {
        const float step = float_of_step(step_of_tile[first / kTile]);
        row_for_synced(team, width,
                       [=](int c) { work[first + c] = value(codes[first + c], step); });
      });
    } else {
      row_for_synced(team, n, [=](int c) {
        work[c] = value(codes[c], float_of_step(step_of_tile[c / kTile]));
      });
    }
  }

  KOKKOS_INLINE_FUNCTION static void store(const RowMember& team, const MemoryRow& row,
                                           const float* x, std::uint8_t* codes) {
    const int n = row.channels;
    const int lanes = lanes_of(n);
    std::uint16_t* step_of_tile = steps(row);
    // In passes of their own, so that the quotients of tiles overlap.
    for_tiles(n, [=, &team](int first, auto width) {
      const std::uint32_t largest =
          row_max(team, width, 0u, [=](int c) { return finite_magnitude(x[first + c]); });
      const std::uint16_t step = step_of(float_of(largest), static_cast<float>(kLevels));
      row_once(team, [=]() { step_of_tile[first / kTile] = step; });
    });
    if constexpr (!kHostExecution) team.team_barrier();
    for_tiles(n, [=, &team](int first, auto width) {
      const float inverse = inverse_of(float_of_step(step_of_tile[first / kTile]));
      row_for_synced(team, width, [=](int c) {
        // As large as a level at most. rint, not an addition of 1.5 * 2^23: product and sum must
        // not be fused.
        const float code = std::rint(finite_or_zero(x[first + c]) * inverse);
        codes[first + c] = static_cast<std::uint8_t>(static_cast<int>(code) + kLevels);
      });
    });
    row_for_synced(team, 8 * lanes - n, [=](int c) { codes[n + c] = 0; });
    pack_bits<bits>(team, lanes, codes, packed(row));
  }
};

template <>
struct Memory<MemoryStorage::bits8> : PackedMemory<8> {};
template <>
struct Memory<MemoryStorage::bits4> : PackedMemory<4> {};
template <>
struct Memory<MemoryStorage::bits2> : PackedMemory<2> {};

/// Nothing is kept: every row is zero before.
struct NoMemory {
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t*) {
    row_for_synced(team, row.channels, [&](int c) { work[c] = 0.0f; });
  }
  KOKKOS_INLINE_FUNCTION static void store(const RowMember&, const MemoryRow&, const float*,
                                           std::uint8_t*) {}
  KOKKOS_INLINE_FUNCTION static constexpr std::size_t bytes(int, int) { return 0; }
};

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
      return f.template operator()<MemoryStorage::bits4>();
    case MemoryStorage::bits2:
      break;
  }
  return f.template operator()<MemoryStorage::bits2>();
}

}  // namespace deltapipe::codec
