// SPDX-License-Identifier: BSD-3-Clause
// Range variant of asymmetric numeral systems (rANS: arXiv 1311.2540) with a fixed table of
// frequencies: one-byte symbols become a state of 31 bits and words of 16 bits. All arithmetic is
// on integers, so that every backend writes and reads the same words.
// docs/payload.md describes tables and streams. Encoding goes through the symbols backwards.
// Decoding goes forwards and ends in the state in which encoding began.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe::codec {

inline constexpr int kSymbols = 256;
inline constexpr int kFrequencyBits = 12;
/// Sum of the frequencies of a table.
inline constexpr std::uint32_t kFrequencySum = 1u << kFrequencyBits;
/// States between symbols are in [kLeastState, kLeastState << 16).
inline constexpr std::uint32_t kLeastState = 1u << 15;
/// Words of a stream before those that the state gave away.
inline constexpr int kStateWords = 2;
/// Largest size of a written table: first and last symbol, two bytes per frequency.
inline constexpr int kTableBytes = 2 + 2 * kSymbols;

/// Sets frequency[s] to about the share of count[s] in units of 1 / kFrequencySum; at least 1 for a
/// symbol that occurs, 0 for others. The counts must not all be zero, and their sum must be at most
/// 2^51.
KOKKOS_INLINE_FUNCTION void frequencies_of(const std::uint64_t* count, std::uint32_t* frequency) {
  std::uint64_t total = 0;
  for (int s = 0; s < kSymbols; ++s) total += count[s];
  std::uint32_t sum = 0;
  for (int s = 0; s < kSymbols; ++s) {
    const std::uint64_t share = (count[s] * kFrequencySum + total / 2) / total;
    frequency[s] = count[s] == 0 ? 0 : share == 0 ? 1 : static_cast<std::uint32_t>(share);
    sum += frequency[s];
  }
  // Corrections affect the largest frequency least. One pass suffices except in degenerate cases.
  while (sum != kFrequencySum) {
    int largest = 0;
    for (int s = 1; s < kSymbols; ++s)
      if (frequency[s] > frequency[largest]) largest = s;
    const std::uint32_t excess = sum > kFrequencySum ? sum - kFrequencySum : 0;
    const std::uint32_t spare = frequency[largest] / 2;
    const std::uint32_t less = excess < spare ? excess : spare;
    const std::uint32_t more = excess > 0 ? 0 : kFrequencySum - sum;
    frequency[largest] = frequency[largest] - less + more;
    sum = sum - less + more;
  }
}

/// Writes the table. Returns the number of bytes, padded to an even number with a zero.
KOKKOS_INLINE_FUNCTION int write_table(const std::uint32_t* frequency, std::uint8_t* bytes) {
  int first = 0, last = kSymbols - 1;
  while (frequency[first] == 0) ++first;
  while (frequency[last] == 0) --last;
  int at = 0;
  bytes[at++] = static_cast<std::uint8_t>(first);
  bytes[at++] = static_cast<std::uint8_t>(last);
  for (int s = first; s <= last; ++s) {
    const bool two = frequency[s] >= 128;
    bytes[at++] = static_cast<std::uint8_t>((frequency[s] & 127u) | (two ? 128u : 0u));
    if (two) bytes[at++] = static_cast<std::uint8_t>(frequency[s] >> 7);
  }
  if (at % 2 != 0) bytes[at++] = 0;
  return at;
}

/// Reads a table of symbols below `symbols` from at most `size` bytes. Sets start[s], for
/// kSymbols + 1 of them, to the sum of the frequencies before s. Returns the number of bytes read,
/// which is even, or 0 if they are not a table.
KOKKOS_INLINE_FUNCTION int read_table(const std::uint8_t* bytes, std::size_t size, int symbols,
                                      std::uint32_t* start) {
  if (size < 4) return 0;
  const int first = bytes[0], last = bytes[1];
  if (first > last || last >= symbols) return 0;
  std::size_t at = 2;
  std::uint32_t sum = 0;
  for (int s = 0; s < kSymbols; ++s) {
    start[s] = sum;
    if (s < first || s > last) continue;
    if (at >= size) return 0;
    std::uint32_t frequency = bytes[at++];
    if (frequency >= 128) {
      if (at >= size) return 0;
      frequency = (frequency & 127u) | (static_cast<std::uint32_t>(bytes[at++]) << 7);
    }
    sum += frequency;
  }
  start[kSymbols] = sum;
  at += at % 2;
  return sum == kFrequencySum && at <= size ? static_cast<int>(at) : 0;
}

/// A symbol for the encoder: its interval, and a factor that replaces the division by its
/// frequency.
struct EncoderSymbol {
  std::uint64_t reciprocal;  ///< ceil(2^44 / frequency)
  std::uint32_t frequency;
  std::uint32_t start;

  KOKKOS_INLINE_FUNCTION static EncoderSymbol of(std::uint32_t frequency, std::uint32_t start) {
    const std::uint64_t one = std::uint64_t{1} << 44;
    return {frequency > 0 ? (one + frequency - 1) / frequency : 0, frequency, start};
  }
};

/// Encodes a symbol that occurs. Words go to lower addresses, at[-1] first. at[-1] is written even
/// if no word is given away.
KOKKOS_FORCEINLINE_FUNCTION void put_symbol(const EncoderSymbol& symbol, std::uint32_t& state,
                                            std::uint16_t*& at) {
  std::uint32_t x = state;
  at[-1] = static_cast<std::uint16_t>(x);
  // Without a branch, which would be hard to predict.
  const std::uint32_t fits = ((x >> (31 - kFrequencyBits)) - symbol.frequency) >> 31;
  at -= 1 - fits;
  x >>= 16 * (1 - fits);
  // x < frequency * 2^19: the product is below 2^64, and its error too small for the quotient.
  const auto quotient = static_cast<std::uint32_t>((x * symbol.reciprocal) >> 44);
  state = x + symbol.start + quotient * (kFrequencySum - symbol.frequency);
}

/// Returns the decoder's entry for one of the kFrequencySum places of the table: the symbol (8
/// bits), its frequency less 1, and the place within its interval (12 bits each).
KOKKOS_INLINE_FUNCTION std::uint32_t decoder_slot(int symbol, std::uint32_t frequency,
                                                  std::uint32_t place) {
  return static_cast<std::uint32_t>(symbol) | ((frequency - 1) << 8) | (place << 20);
}

/// Returns the next symbol. Consumes a word from `at` if the state needs one, and may read it in
/// any case. States stay in their range, whatever the words are.
KOKKOS_FORCEINLINE_FUNCTION std::uint8_t take_symbol(const std::uint32_t* slots,
                                                     std::uint32_t& state,
                                                     const std::uint16_t*& at) {
  std::uint32_t x = state;
  const std::uint32_t slot = slots[x & (kFrequencySum - 1)];
  x = (((slot >> 8) & (kFrequencySum - 1)) + 1) * (x >> kFrequencyBits) + (slot >> 20);
  const std::uint32_t is_due = (x - kLeastState) >> 31;  // x < kLeastState, without a branch
  state = (x << (16 * is_due)) | (*at & (0u - is_due));
  at += is_due;
  return static_cast<std::uint8_t>(slot);
}

}  // namespace deltapipe::codec
