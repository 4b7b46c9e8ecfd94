// SPDX-License-Identifier: BSD-3-Clause
// Folds several codes of few levels into a symbol of one byte, so that an entropy coder has fewer
// symbols to code (docs/payload.md). The codes, less the smallest one, are the digits of a number
// to the base of their range: digit k of symbol i is code i + k * row_symbols(n), or 0 without a
// code.
#pragma once

#include <cstdint>

#include "core/base/parallel/row.hpp"

namespace deltapipe::codec {

inline constexpr int kMostFolded = 4;
static_assert(kMostFolded == 4, "fold_row and unfold_row know symbols of 1, 2 and 4 codes");
/// Size of a written folding: first, range - 1, codes, 0.
inline constexpr int kFoldingBytes = 4;

struct Folding {
  std::int32_t first;  ///< the smallest code
  std::int32_t range;  ///< codes are in [first, first + range)
  std::int32_t codes;  ///< codes per symbol: 1, 2 or 4

  /// Returns the number of different symbols.
  KOKKOS_INLINE_FUNCTION int symbols() const {
    const int two = range * range;
    return codes == 1 ? range : codes == 2 ? two : two * two;
  }
  KOKKOS_INLINE_FUNCTION bool is_valid() const {
    return range >= 1 && range <= 256 && (codes == 1 || codes == 2 || codes == 4) &&
           (codes == 1 || range <= 16) && symbols() <= 256;
  }
  /// Returns the number of symbols of a row of n codes.
  KOKKOS_INLINE_FUNCTION int row_symbols(int n) const { return (n + codes - 1) / codes; }
};

KOKKOS_INLINE_FUNCTION void write_folding(const Folding& folding, std::uint8_t* bytes) {
  bytes[0] = static_cast<std::uint8_t>(folding.first);
  bytes[1] = static_cast<std::uint8_t>(folding.range - 1);
  bytes[2] = static_cast<std::uint8_t>(folding.codes);
  bytes[3] = 0;
}

/// Reads a folding. Returns true if the bytes are one, of codes below `levels`.
KOKKOS_INLINE_FUNCTION bool read_folding(const std::uint8_t* bytes, int levels, Folding& folding) {
  folding = {bytes[0], bytes[1] + 1, bytes[2]};
  return folding.is_valid() && folding.first + folding.range <= levels && bytes[3] == 0;
}

/// Folds symbols of `Codes` codes. The loops over digits are unrolled, so a symbol is read and
/// written once.
template <int Codes>
KOKKOS_INLINE_FUNCTION void fold_symbols(const RowMember& team, const Folding& folding, int count,
                                         std::uint8_t* codes) {
  const int first = folding.first, range = folding.range;
  row_for_synced(team, count, [=](int i) {
    int symbol = 0;
    for (int k = Codes - 1; k >= 0; --k) symbol = symbol * range + codes[i + k * count] - first;
    codes[i] = static_cast<std::uint8_t>(symbol);
  });
}

/// Inverts fold_symbols.
template <int Codes>
KOKKOS_INLINE_FUNCTION void unfold_symbols(const RowMember& team, const Folding& folding, int count,
                                           std::uint8_t* codes) {
  const auto first = static_cast<std::uint32_t>(folding.first);
  const auto range = static_cast<std::uint32_t>(folding.range);
  // The quotient of a number below 2^8 by a range of up to 16 is exact.
  const std::uint32_t reciprocal = (65536 + range - 1) / range;
  row_for_synced(team, count, [=](int i) {
    std::uint32_t rest = codes[i];
    for (int k = 0; k < Codes - 1; ++k) {
      const std::uint32_t quotient = (rest * reciprocal) >> 16;
      codes[i + k * count] = static_cast<std::uint8_t>(rest - quotient * range + first);
      rest = quotient;
    }
    codes[i + (Codes - 1) * count] = static_cast<std::uint8_t>(rest + first);
  });
}

/// Folds a row's codes into its first row_symbols(n) bytes. The row has room for 8*ceil(n/8).
KOKKOS_INLINE_FUNCTION void fold_row(const RowMember& team, const Folding& folding, int n,
                                     std::uint8_t* codes) {
  const int count = folding.row_symbols(n);
  const auto zero = static_cast<std::uint8_t>(folding.first);
  row_for_synced(team, count * folding.codes - n, [=](int c) { codes[n + c] = zero; });
  if (folding.codes == 1) fold_symbols<1>(team, folding, count, codes);
  if (folding.codes == 2) fold_symbols<2>(team, folding, count, codes);
  if (folding.codes == 4) fold_symbols<4>(team, folding, count, codes);
}

/// Inverts fold_row. Sets the room after the n-th code to 0 as far as symbols have digits.
KOKKOS_INLINE_FUNCTION void unfold_row(const RowMember& team, const Folding& folding, int n,
                                       std::uint8_t* codes) {
  const int count = folding.row_symbols(n);
  if (folding.codes == 1) unfold_symbols<1>(team, folding, count, codes);
  if (folding.codes == 2) unfold_symbols<2>(team, folding, count, codes);
  if (folding.codes == 4) unfold_symbols<4>(team, folding, count, codes);
  row_for_synced(team, count * folding.codes - n, [=](int c) { codes[n + c] = 0; });
}

}  // namespace deltapipe::codec
