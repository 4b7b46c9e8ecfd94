// SPDX-License-Identifier: BSD-3-Clause
// b-bit codes, packed in lanes (docs/payload.md), so that loops over lanes read and write
// contiguous bytes: code k of lane l is code k * lanes + l of the row, and byte p of the lane is
// byte p * lanes + l.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/row.hpp"

namespace deltapipe::codec {

KOKKOS_INLINE_FUNCTION constexpr int lanes_of(int n) {
  return (n + 7) / 8;
}

/// Returns the bytes of a row's n packed codes: b * ceil(n/8).
KOKKOS_INLINE_FUNCTION constexpr std::size_t packed_bytes(int bits, int n) {
  return static_cast<std::size_t>(bits) * lanes_of(n);
}

/// Packs 8*lanes codes, a byte each. They must be below 2^bits, and zero after the n-th.
template <int bits>
KOKKOS_INLINE_FUNCTION void pack_bits(const RowMember& team, int lanes, const std::uint8_t* codes,
                                      std::uint8_t* packed) {
  if constexpr (bits == 8)
    return row_for_synced(team, 8 * lanes, [=](int i) { packed[i] = codes[i]; });
  if constexpr (8 % bits == 0) {  // bytes hold whole codes
    constexpr int each = 8 / bits;
    return row_for_synced(team, lanes, [=](int l) {
      for (int p = 0; p < bits; ++p) {
        std::uint8_t byte = 0;
        for (int i = 0; i < each; ++i)
          byte = static_cast<std::uint8_t>(byte | codes[(p * each + i) * lanes + l] << (i * bits));
        packed[p * lanes + l] = byte;
      }
    });
  }
  row_for_synced(team, lanes, [&](int l) {
    std::uint32_t low = 0;   // codes 0 to 3
    std::uint32_t high = 0;  // codes 4 to 7
    for (int k = 0; k < 4; ++k) {
      low |= static_cast<std::uint32_t>(codes[k * lanes + l]) << (k * bits);
      high |= static_cast<std::uint32_t>(codes[(k + 4) * lanes + l]) << (k * bits);
    }
    if constexpr (bits % 2 == 0) {
      for (int p = 0; p < bits / 2; ++p) {
        packed[p * lanes + l] = static_cast<std::uint8_t>(low >> (8 * p));
        packed[(p + bits / 2) * lanes + l] = static_cast<std::uint8_t>(high >> (8 * p));
      }
    } else {  // the fourth code ends in the middle of a byte
      constexpr int whole = bits / 2;
      for (int p = 0; p < whole; ++p) {
        packed[p * lanes + l] = static_cast<std::uint8_t>(low >> (8 * p));
        packed[(p + whole + 1) * lanes + l] = static_cast<std::uint8_t>(high >> (8 * p + 4));
      }
      packed[whole * lanes + l] = static_cast<std::uint8_t>((low >> (8 * whole)) | (high << 4));
    }
  });
}

template <int bits>
KOKKOS_INLINE_FUNCTION void unpack_bits(const RowMember& team, int lanes,
                                        const std::uint8_t* packed, std::uint8_t* codes) {
  if constexpr (bits == 8)
    return row_for_synced(team, 8 * lanes, [=](int i) { codes[i] = packed[i]; });
  constexpr std::uint32_t mask = (1u << bits) - 1;
  if constexpr (8 % bits == 0) {
    constexpr int each = 8 / bits;
    return row_for_synced(team, lanes, [=](int l) {
      for (int p = 0; p < bits; ++p)
        for (int i = 0; i < each; ++i)
          codes[(p * each + i) * lanes + l] =
              static_cast<std::uint8_t>((packed[p * lanes + l] >> (i * bits)) & mask);
    });
  }
  row_for_synced(team, lanes, [&](int l) {
    std::uint32_t low = 0;
    std::uint32_t high = 0;
    constexpr int whole = bits / 2;
    if constexpr (bits % 2 == 0) {
      for (int p = 0; p < whole; ++p) {
        low |= static_cast<std::uint32_t>(packed[p * lanes + l]) << (8 * p);
        high |= static_cast<std::uint32_t>(packed[(p + whole) * lanes + l]) << (8 * p);
      }
    } else {
      const std::uint32_t middle = packed[whole * lanes + l];
      low = middle << (8 * whole);
      high = middle >> 4;
      for (int p = 0; p < whole; ++p) {
        low |= static_cast<std::uint32_t>(packed[p * lanes + l]) << (8 * p);
        high |= static_cast<std::uint32_t>(packed[(p + whole + 1) * lanes + l]) << (8 * p + 4);
      }
    }
    for (int k = 0; k < 4; ++k) {
      codes[k * lanes + l] = static_cast<std::uint8_t>((low >> (k * bits)) & mask);
      codes[(k + 4) * lanes + l] = static_cast<std::uint8_t>((high >> (k * bits)) & mask);
    }
  });
}

/// Packs a row's n codes of 1 to 8 bits; `tried` is the least number that it may have.
template <int tried = 1>
KOKKOS_INLINE_FUNCTION void pack_row(const RowMember& team, int bits, int n,
                                     const std::uint8_t* codes, std::uint8_t* packed) {
  if constexpr (tried < 8)
    if (bits != tried) return pack_row<tried + 1>(team, bits, n, codes, packed);
  pack_bits<tried>(team, lanes_of(n), codes, packed);
}

template <int tried = 1>
KOKKOS_INLINE_FUNCTION void unpack_row(const RowMember& team, int bits, int n,
                                       const std::uint8_t* packed, std::uint8_t* codes) {
  if constexpr (tried < 8)
    if (bits != tried) return unpack_row<tried + 1>(team, bits, n, packed, codes);
  unpack_bits<tried>(team, lanes_of(n), packed, codes);
}

}  // namespace deltapipe::codec
