// SPDX-License-Identifier: BSD-3-Clause
// Entropy-coded codes read as docs/payload.md describes them, with divisions and in the order of
// the text; and what information theory says of their length.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace deltapipe::test {

/// Bits of the codes if each took -log2 of its share.
inline double entropy_bits(const std::vector<std::uint8_t>& codes) {
  std::array<double, 256> count{};
  for (const std::uint8_t code : codes) ++count[code];
  double bits = 0;
  for (const double n : count)
    if (n > 0) bits -= n * std::log2(n / static_cast<double>(codes.size()));
  return bits;
}

struct ReferencePart {
  std::vector<std::uint8_t> codes;
  std::size_t table_bytes = 0;
};

/// A coded part of `size` bytes: rows of `channels` codes, `rows_per_stream` to a stream.
inline ReferencePart read_coded_part(const std::uint8_t* part, std::size_t size, int rows,
                                     int channels, int rows_per_stream) {
  std::size_t at = 0;
  const auto byte = [&]() -> unsigned {
    if (at >= size) throw std::runtime_error("the part ends early");
    return part[at++];
  };
  const auto word = [&]() -> unsigned {
    const unsigned low = byte();
    return low | byte() << 8;
  };
  const unsigned smallest = byte(), range = byte() + 1, folded = byte();
  byte();
  std::array<unsigned, 257> start{};
  const unsigned first = byte(), last = byte();
  for (unsigned s = 0; s < 256; ++s) {
    unsigned frequency = 0;
    if (s >= first && s <= last) {
      frequency = byte();
      if (frequency >= 128) frequency = frequency - 128 + 128 * byte();
    }
    start[s + 1] = start[s] + frequency;
  }
  if (start[256] != 4096) throw std::runtime_error("frequencies do not sum to 4096");
  if (at % 2 != 0) byte();
  ReferencePart result;
  result.table_bytes = at;
  const int symbols = (channels + static_cast<int>(folded) - 1) / static_cast<int>(folded);
  const int streams = (rows + rows_per_stream - 1) / rows_per_stream;
  std::vector<unsigned> lengths;
  for (int s = 0; s < streams; ++s) lengths.push_back(word());
  for (int s = 0; s < streams; ++s) {
    const std::size_t end = at + 2 * lengths[s];
    std::uint64_t state = word();
    state += std::uint64_t{65536} * word();
    const int stream_rows = std::min(rows_per_stream, rows - s * rows_per_stream);
    for (int row = 0; row < stream_rows; ++row) {
      std::vector<std::uint8_t> codes(static_cast<std::size_t>(symbols) * folded);
      for (int i = 0; i < symbols; ++i) {
        const std::uint64_t place = state % 4096;
        unsigned symbol = 0;
        while (start[symbol + 1] <= place) ++symbol;
        state = (start[symbol + 1] - start[symbol]) * (state / 4096) + place - start[symbol];
        if (state < 32768) state = state * 65536 + word();
        for (unsigned k = 0; k < folded; ++k) {
          codes[i + k * symbols] = static_cast<std::uint8_t>(symbol % range + smallest);
          symbol /= range;
        }
      }
      result.codes.insert(result.codes.end(), codes.begin(), codes.begin() + channels);
    }
    if (state != 32768 || at != end) throw std::runtime_error("a stream does not end");
  }
  if (at != size) throw std::runtime_error("the part is longer than its streams");
  return result;
}

}  // namespace deltapipe::test
