// SPDX-License-Identifier: BSD-3-Clause
// Ascending positions below n as bits, in the shortest of the formats of docs/payload.md. Bits fill
// 32-bit words from the lowest one. Gaps are Golomb-Rice codes: the remainders of all gaps, and
// from the next whole word on their quotients. Codings are chosen, written and read by one team.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/kernel.hpp"
#include "core/base/parallel/row.hpp"
#include "core/codec/topk/bit_counting.hpp"

namespace deltapipe::codec {

enum class PositionFormat : std::uint8_t { all, bitmap, gaps, indices, forward };

struct PositionCoding {
  PositionFormat format = PositionFormat::all;
  std::uint8_t bits = 0;  ///< gaps: bits of a remainder; indices: bits of a position
  std::uint32_t words = 0;
};

KOKKOS_INLINE_FUNCTION constexpr std::uint32_t words_of_bits(std::uint64_t bits) {
  return static_cast<std::uint32_t>((bits + 31) / 32);
}

/// Returns the number of bits that numbers below n need.
KOKKOS_INLINE_FUNCTION constexpr int index_bits(std::uint32_t n) {
  int bits = 0;
  while (bits < 32 && (std::uint64_t{1} << bits) < n) ++bits;
  return bits;
}

/// Returns a start for the search of the best remainder's bits: 2^b is about 0.7 mean gaps.
KOKKOS_INLINE_FUNCTION constexpr int likely_gap_bits(std::uint32_t count, std::uint32_t n) {
  const std::uint64_t scaled = std::uint64_t{11} * (n - count) / (std::uint64_t{16} * count);
  int bits = 1;
  while ((std::uint64_t{2} << bits) <= scaled) ++bits;
  return bits;
}

/// Returns the largest number of words that up to `most` positions below n need.
inline std::uint32_t max_position_words(std::uint32_t most, std::uint32_t n) {
  if (most == 0) return 0;
  std::uint64_t words = words_of_bits(n);
  const auto shorten = [&words](std::uint64_t other) { words = other < words ? other : words; };
  shorten(words_of_bits(std::uint64_t{most} * index_bits(n)));
  // The remainders' bits with the shortest guaranteed length. The search finds no more bits, but
  // rounding may add a word. The sum of the quotients is at most the quotient of all gaps together.
  for (int bits = 1; bits < 31; ++bits)
    shorten(words_of_bits(std::uint64_t{most} * bits) +
            words_of_bits(std::uint64_t{most} + ((n - most) >> bits)) + 1);
  return static_cast<std::uint32_t>(words);
}

/// Returns the number of positions left out before the i-th one.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t gap_before(const std::uint32_t* position, int i) {
  return i == 0 ? position[0] : position[i] - position[i - 1] - 1;
}

/// Returns the sum of (gap >> bits).
KOKKOS_INLINE_FUNCTION std::uint32_t sum_of_quotients(const RowMember& team,
                                                      const std::uint32_t* position, int count,
                                                      int bits) {
  const std::uint32_t first = position[0] >> bits;
  return first + row_sum<std::uint32_t>(team, count - 1, [=](int i) {
           return (position[i + 1] - position[i] - 1) >> bits;
         });
}

/// Returns the shortest coding of `count` positions below n; of equal ones, the first above. Gaps
/// have the remainders' bits with the fewest bits in all; of equal ones, the fewest.
KOKKOS_INLINE_FUNCTION PositionCoding choose_positions(const RowMember& team,
                                                       const std::uint32_t* position, int count,
                                                       std::uint32_t n) {
  const auto many = static_cast<std::uint32_t>(count);
  if (many == n) return {};
  PositionCoding best{PositionFormat::bitmap, 0, words_of_bits(n)};
  PositionCoding indices{PositionFormat::indices, static_cast<std::uint8_t>(index_bits(n)), 0};
  indices.words = words_of_bits(std::uint64_t{many} * indices.bits);
  if (count > 0) {
    // The length is a convex function of the remainders' bits: descend from a likely place.
    const auto bits_with = [&](int bits) {
      return std::uint64_t{many} * (static_cast<std::uint64_t>(bits) + 1) +
             sum_of_quotients(team, position, count, bits);
    };
    int bits = likely_gap_bits(many, n);
    std::uint64_t length = bits_with(bits);
    const std::uint64_t above = bits < 30 ? bits_with(bits + 1) : length;
    const int step = above < length ? 1 : -1;
    if (step == 1) {
      ++bits;
      length = above;
    }
    while (bits + step >= 1 && bits + step <= 30) {
      const std::uint64_t next = bits_with(bits + step);
      if (next > length || (next == length && step == 1)) break;
      bits += step;
      length = next;
    }
    const std::uint64_t remainders = std::uint64_t{many} * static_cast<std::uint64_t>(bits);
    const std::uint32_t words = words_of_bits(remainders) + words_of_bits(length - remainders);
    if (words < best.words) best = {PositionFormat::gaps, static_cast<std::uint8_t>(bits), words};
  }
  return indices.words < best.words ? indices : best;
}

/// Returns the i-th of the numbers of `bits` bits each, up to 31.
KOKKOS_FORCEINLINE_FUNCTION std::uint32_t read_field(const std::uint32_t* words, int bits, int i) {
  const std::uint64_t at = static_cast<std::uint64_t>(i) * static_cast<std::uint64_t>(bits);
  const std::uint32_t* word = words + (at >> 5);
  const int offset = static_cast<int>(at & 31);
  std::uint64_t both = *word;
  if (offset + bits > 32) both |= static_cast<std::uint64_t>(word[1]) << 32;
  return static_cast<std::uint32_t>(both >> offset) & ((1u << bits) - 1);
}

/// Writes field(i), each below 2^bits, one after the other; 32 of them are whole words.
template <class Field>
KOKKOS_INLINE_FUNCTION void write_fields(const RowMember& team, int count, int bits,
                                         std::uint32_t* words, const Field& field) {
  row_for_synced(team, (count + 31) / 32, [=](int block) {
    const int first = 32 * block;
    const int end = count - first < 32 ? count : first + 32;
    std::uint32_t* out = words + static_cast<std::size_t>(block) * bits;
    std::uint64_t pending = 0;
    int filled = 0;
    for (int i = first; i < end; ++i) {
      pending |= static_cast<std::uint64_t>(field(i)) << filled;
      filled += bits;
      if (filled < 32) continue;
      *out++ = static_cast<std::uint32_t>(pending);
      pending >>= 32;
      filled -= 32;
    }
    if (filled > 0) *out = static_cast<std::uint32_t>(pending);
  });
}

/// Sets a bit. On devices, threads set bits of the same word.
KOKKOS_FORCEINLINE_FUNCTION void set_bit(std::uint32_t* words, std::uint32_t bit) {
  if constexpr (kHostExecution)
    words[bit >> 5] |= 1u << (bit & 31);
  else
    Kokkos::atomic_or(&words[bit >> 5], 1u << (bit & 31));
}

/// Writes the gaps' quotients, word after word, into zeros. For the host.
KOKKOS_INLINE_FUNCTION void write_unary(const std::uint32_t* position, int count, int bits,
                                        std::uint32_t* words) {
  std::uint32_t next = 0, at = 0, filled = 0, pending = 0;
  for (int i = 0; i < count; ++i) {
    at += (position[i] - next) >> bits;
    next = position[i] + 1;
    if (at >> 5 != filled) {
      words[filled] = pending;
      filled = at >> 5;
      pending = 0;
    }
    pending |= 1u << (at++ & 31);
  }
  if (count > 0) words[filled] = pending;
}

KOKKOS_INLINE_FUNCTION void write_positions(const RowMember& team, const PositionCoding& coding,
                                            const std::uint32_t* position, int count,
                                            std::uint32_t* words) {
  const int bits = coding.bits;
  if (coding.format == PositionFormat::bitmap) {
    row_for_synced(team, static_cast<int>(coding.words), [=](int w) { words[w] = 0; });
    if constexpr (kHostExecution)  // not row_for: bits share words
      for (int i = 0; i < count; ++i) set_bit(words, position[i]);
    else
      row_for_synced(team, count, [=](int i) { set_bit(words, position[i]); });
  } else if (coding.format == PositionFormat::indices) {
    write_fields(team, count, bits, words, [=](int i) { return position[i]; });
  } else if (coding.format == PositionFormat::gaps) {
    const std::uint32_t mask = (1u << bits) - 1;
    const std::uint32_t low =
        words_of_bits(static_cast<std::uint64_t>(count) * static_cast<std::uint64_t>(bits));
    std::uint32_t* quotients = words + low;
    row_for_synced(team, static_cast<int>(coding.words - low), [=](int w) { quotients[w] = 0; });
    write_fields(team, count, bits, words, [=](int i) { return gap_before(position, i) & mask; });
    if constexpr (kHostExecution) {
      write_unary(position, count, bits, quotients);
    } else {
      row_scan<std::uint32_t>(
          team, count, [=](int i) { return (gap_before(position, i) >> bits) + 1; },
          [=](int i, std::uint32_t before) {
            set_bit(quotients, before + (gap_before(position, i) >> bits));
          });
    }
  }
}

/// Returns true if choose_positions can have made a coding of `count` positions below n. Does not
/// read the words.
KOKKOS_INLINE_FUNCTION bool is_position_coding(const PositionCoding& coding, std::uint32_t count,
                                               std::uint32_t n) {
  if (count > n) return false;
  const std::uint64_t fields = static_cast<std::uint64_t>(count) * coding.bits;
  switch (coding.format) {
    case PositionFormat::all:
      return count == n && coding.bits == 0 && coding.words == 0;
    case PositionFormat::bitmap:
      return count < n && coding.bits == 0 && coding.words == words_of_bits(n);
    case PositionFormat::gaps:
      return count > 0 && coding.bits >= 1 && coding.bits <= 30 &&
             coding.words < words_of_bits(n) &&
             coding.words >= words_of_bits(fields) + words_of_bits(count);
    case PositionFormat::indices:
      return count < n && coding.bits == index_bits(n) && coding.words == words_of_bits(fields);
    case PositionFormat::forward:
      return false;
  }
  return false;
}

/// Calls use(i, place) for the place of the i-th one in some words, in order. Returns the number of
/// ones.
template <class Use>
KOKKOS_INLINE_FUNCTION std::uint32_t for_each_one(const RowMember& team, const std::uint32_t* words,
                                                  int count, const Use& use) {
  row_scan<std::uint32_t>(
      team, count, [=](int w) { return static_cast<std::uint32_t>(ones_of(words[w])); },
      [=](int w, std::uint32_t before) {
        const std::uint32_t first = static_cast<std::uint32_t>(w) * 32;
        for (std::uint32_t rest = words[w]; rest != 0; rest &= rest - 1)
          use(before++, first + static_cast<std::uint32_t>(lowest_one_of(rest)));
      });
  return row_sum<std::uint32_t>(
      team, count, [=](int w) { return static_cast<std::uint32_t>(ones_of(words[w])); });
}

/// Computes positions from the quotients so far and the remainders. Returns the last position + 1,
/// which may exceed 32 bits. For the host.
KOKKOS_INLINE_FUNCTION std::uint64_t add_remainders(const std::uint32_t* words, int bits, int count,
                                                    std::uint32_t* position) {
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  std::uint64_t next = 0, pending = 0, quotient = 0;
  int filled = 0;
  for (int i = 0; i < count; ++i) {
    if (filled < bits) {
      pending |= static_cast<std::uint64_t>(*words++) << filled;
      filled += 32;
    }
    next += ((position[i] - quotient) << bits) + (pending & mask);
    quotient = position[i];
    pending >>= bits;
    filled -= bits;
    position[i] = static_cast<std::uint32_t>(next++);
  }
  return next;
}

/// Reads what write_positions wrote, from untrusted words, for a coding that passes
/// is_position_coding. Sets *wrong to 1 if they are not `count` ascending positions below n; some
/// of the positions are then undefined.
KOKKOS_INLINE_FUNCTION void read_positions(const RowMember& team, const PositionCoding& coding,
                                           const std::uint32_t* words, std::uint32_t count,
                                           std::uint32_t n, std::uint32_t* position,
                                           std::uint32_t* wrong) {
  const int bits = coding.bits;
  const int many = static_cast<int>(count);
  if (coding.format == PositionFormat::all) {
    row_for_synced(team, many, [=](int i) { position[i] = static_cast<std::uint32_t>(i); });
  } else if (coding.format == PositionFormat::bitmap) {
    const std::uint32_t ones = for_each_one(team, words, static_cast<int>(coding.words),
                                            [=](std::uint32_t i, std::uint32_t place) {
                                              if (i < count) position[i] = place;
                                              if (place >= n) atomic_set(wrong, 1u);
                                            });
    if (ones != count) atomic_set(wrong, 1u);
  } else if (coding.format == PositionFormat::indices) {
    row_for_synced(team, many, [=](int i) {
      position[i] = read_field(words, bits, i);
      if (position[i] >= n) atomic_set(wrong, 1u);
    });
    row_for_synced(team, many - 1, [=](int i) {
      if (position[i] >= position[i + 1]) atomic_set(wrong, 1u);
    });
  } else {
    const std::uint32_t low = words_of_bits(static_cast<std::uint64_t>(count) * coding.bits);
    // The number of zeros before the i-th one is the sum of the quotients so far.
    const std::uint32_t ones = for_each_one(team, words + low, static_cast<int>(coding.words - low),
                                            [=](std::uint32_t i, std::uint32_t place) {
                                              if (i < count) position[i] = place - i;
                                            });
    if (ones != count || words[coding.words - 1] == 0) atomic_set(wrong, 1u);
    if (ones != count) return;
    if constexpr (kHostExecution) {
      if (add_remainders(words, bits, many, position) > n) atomic_set(wrong, 1u);
      return;
    }
    const auto remainder = [=](int i) { return std::uint64_t{read_field(words, bits, i)}; };
    row_scan<std::uint64_t>(team, many, remainder, [=](int i, std::uint64_t before) {
      const std::uint64_t place = (static_cast<std::uint64_t>(position[i]) << bits) + before +
                                  remainder(i) + static_cast<std::uint64_t>(i);
      if (place >= n) atomic_set(wrong, 1u);
      position[i] = static_cast<std::uint32_t>(place);
    });
  }
}

}  // namespace deltapipe::codec
