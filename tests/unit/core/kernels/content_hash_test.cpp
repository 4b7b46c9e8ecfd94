// SPDX-License-Identifier: BSD-3-Clause
// Hashes of device memory against a plain loop, and what they notice.
#include "core/kernels/content_hash.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "support/device_values.hpp"

namespace deltapipe {
namespace {

using test::to_device;
using test::to_host;

using Words = std::vector<std::uint32_t>;

/// Hashes of ranges of `words` words that begin at these words.
std::vector<std::uint64_t> hashes(const Words& pool, const std::vector<std::uint64_t>& first,
                                  std::size_t words) {
  std::vector<std::uint64_t> offsets;
  for (const std::uint64_t word : first) offsets.push_back(4 * word);
  const auto device_pool = to_device(pool);
  const auto device_offsets = to_device(offsets);
  const Vector<std::uint64_t> result("deltapipe::Test::hashes", first.size());
  Kokkos::deep_copy(result, 99);
  hash_ranges(ExecSpace(), reinterpret_cast<const std::uint8_t*>(device_pool.data()),
              device_offsets, 4 * words, result);
  return to_host(result);
}

Words words_of(std::size_t count) {
  Words words(count);
  std::uint32_t state = 12345;
  for (std::uint32_t& word : words) word = state = state * 1664525u + 1013904223u;
  return words;
}

TEST_CASE("A hash is the sum of its words' terms", "[content_hash]") {
  const Words pool = words_of(3 * kHashTile);
  for (const std::size_t words : {std::size_t{0}, std::size_t{1}, std::size_t{7},
                                  std::size_t{kHashTile}, std::size_t{2 * kHashTile + 5}}) {
    const std::vector<std::uint64_t> first = {0, 3, 900};
    const std::vector<std::uint64_t> found = hashes(pool, first, words);
    for (std::size_t b = 0; b < first.size(); ++b) {
      std::uint64_t expected = 0;
      for (std::size_t i = 0; i < words; ++i)
        expected += (std::uint64_t{pool[first[b] + i]} + 1) *
                    ((std::uint64_t{i} + 1) * 0x9e3779b97f4a7c15ull | 1);
      CHECK(found[b] == expected);
    }
  }
}

TEST_CASE("Flipped bits, moved and exchanged words change a hash", "[content_hash]") {
  Words pool(200, 0);
  std::set<std::uint64_t> seen;
  std::size_t count = 0;
  const auto note = [&] {
    seen.insert(hashes(pool, {0}, pool.size())[0]);
    ++count;
  };
  note();
  for (std::size_t i = 0; i < pool.size(); i += 7)
    for (int bit = 0; bit < 32; ++bit) {
      pool[i] ^= 1u << bit;
      note();
      pool[i] ^= 1u << bit;
    }
  pool = words_of(200);
  note();
  for (std::size_t i = 0; i + 1 < pool.size(); i += 11) {
    std::swap(pool[i], pool[i + 1]);
    note();
    std::swap(pool[i], pool[i + 1]);
  }
  CHECK(seen.size() == count);
}

std::uint64_t hash_of_bytes(const std::vector<std::uint8_t>& bytes, std::size_t size) {
  const auto device = to_device(bytes);
  const Vector<std::uint64_t> result("deltapipe::Test::hash", 1);
  Kokkos::deep_copy(result, 99);
  hash_bytes(ExecSpace(), device.data(), size, result);
  return to_host(result)[0];
}

TEST_CASE("A hash of bytes is that of their words and zeros behind them", "[content_hash]") {
  constexpr std::size_t kTile = 4 * kHashTile;
  std::vector<std::uint8_t> bytes(2 * kTile + 8);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 256 + 1);
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{4},
        std::size_t{127}, std::size_t{128}, std::size_t{131}, kTile - 1, kTile, kTile + 1,
        kTile + 4, 2 * kTile + 7}) {
    CAPTURE(size);
    std::uint64_t expected = 0;
    for (std::size_t i = 0; 4 * i < size; ++i) {
      std::uint32_t word = 0;
      for (std::size_t byte = 4 * i; byte < std::min(size, 4 * i + 4); ++byte)
        word |= std::uint32_t{bytes[byte]} << (8 * (byte - 4 * i));
      expected += (std::uint64_t{word} + 1) * ((std::uint64_t{i} + 1) * 0x9e3779b97f4a7c15ull | 1);
    }
    CHECK(hash_of_bytes(bytes, size) == expected);
    for (const std::size_t flipped : {std::size_t{0}, size / 2, size - 1}) {
      if (size == 0) break;
      bytes[flipped] ^= 16;
      CHECK(hash_of_bytes(bytes, size) != expected);
      bytes[flipped] ^= 16;
    }
    bytes[size] ^= 16;  // behind them
    CHECK(hash_of_bytes(bytes, size) == expected);
    bytes[size] ^= 16;
  }
}

}  // namespace
}  // namespace deltapipe
