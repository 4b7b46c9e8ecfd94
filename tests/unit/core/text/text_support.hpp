// SPDX-License-Identifier: BSD-3-Clause
// What the tests of tokenizers and data share.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "core/base/utf8.hpp"
#include "core/text/tokenizer.hpp"
#include "tests/unit/core/files/files_support.hpp"

namespace deltapipe::testing {

using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

inline std::string tokenizer_fixture(const std::string& name) {
  return std::string(DELTAPIPE_FIXTURES) + "/tokenizer/" + name;
}

/// 3,000 ids; <|endoftext|> is 2999.
inline const Tokenizer& small_tokenizer() {
  static const auto tokenizer = Tokenizer::load(DELTAPIPE_FIXTURES "/tokenizer");
  return *tokenizer;
}

/// Folder of real texts; empty: not available.
inline std::string real_data() {
  const char* folder = std::getenv("DELTAPIPE_DATA");
  return folder == nullptr ? "" : folder;
}

/// FNV-1a over ids, as tests/golden/make_tokenizer_fixtures.py has it.
inline std::uint64_t hash_ids(std::span<const std::int32_t> ids) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const std::int32_t id : ids) {
    hash = (hash ^ static_cast<std::uint64_t>(id)) * 0x100000001B3u;
  }
  return hash;
}

/// Counter-based random numbers (splitmix64), the same in the script.
inline std::uint64_t splitmix64(std::uint64_t counter) {
  std::uint64_t z = (counter + 1) * 0x9E3779B97F4A7C15u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

/// expected.json of the fixtures.
inline const Json& tokenizer_expectations() {
  static const Json values = Json::parse(read_bytes(tokenizer_fixture("expected.json")));
  return values;
}

inline std::uint64_t expected_hash(const Json& entry) {
  return std::stoull(entry.get<std::string>(), nullptr, 16);
}

/// Compares ids with {"ids": their number, "hash": hash_ids()}.
inline void check_ids(const Ids& ids, const Json& summary) {
  REQUIRE(ids.size() == summary["ids"].get<std::size_t>());
  REQUIRE(hash_ids(ids) == expected_hash(summary["hash"]));
}

inline void check_texts(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                        const Json& summaries) {
  REQUIRE(texts.size() == summaries.size());
  for (std::size_t i = 0; i < texts.size(); ++i) {
    INFO("text " << i << ": " << texts[i].substr(0, 200));
    check_ids(tokenizer.encode(texts[i]), summaries[i]);
  }
}

struct Lines {
  std::vector<std::string> all;
  std::vector<std::string> valid;
};

inline bool is_valid_utf8(const std::string& text) {
  try {
    (void)Json(text).dump();
    return true;
  } catch (const Json::type_error&) {
    return false;
  }
}

/// The lines of mixed.bin.
inline const Lines& mixed_lines() {
  static const Lines lines = [] {
    Lines made;
    const std::string bytes = read_bytes(tokenizer_fixture("mixed.bin"));
    std::size_t start = 0;
    for (const Json& line : tokenizer_expectations()["lines"]) {
      made.all.push_back(bytes.substr(start, line[0].get<std::size_t>()));
      start += made.all.back().size();
      if (is_valid_utf8(made.all.back())) made.valid.push_back(made.all.back());
    }
    return made;
  }();
  return lines;
}

/// The valid ones of them, and other texts.
inline std::vector<std::string> lines_and(const Json& others) {
  std::vector<std::string> texts = mixed_lines().valid;
  for (const Json& text : others) texts.push_back(text);
  return texts;
}

/// Every code point between two letters, 32,768 of them in a text.
inline const std::vector<std::string>& every_character() {
  constexpr std::size_t kBlock = 0x8000;
  static const std::vector<std::string> texts = [] {
    std::vector<std::string> made;
    std::size_t count = 0;
    for (char32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xD800 && c < 0xE000) continue;
      if (count++ % kBlock == 0) made.emplace_back();
      made.back() += 'a';
      append_utf8(c, made.back());
      made.back() += "b ";
    }
    return made;
  }();
  return texts;
}

/// Lines drawn by splitmix64, the same in the scripts.
inline std::string drawn_megabyte(const std::vector<std::string>& lines) {
  std::string text;
  for (std::uint64_t counter = 0; text.size() < (std::size_t{1} << 20); ++counter) {
    text += lines[splitmix64(counter) % lines.size()];
  }
  return text;
}

/// One UTF-8 sequence.
inline std::string utf8(std::uint32_t point) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((point >> shift) & 0x3F)); };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xC0 | (point >> 6)), tail(0)};
  if (point < 0x10000) return {static_cast<char>(0xE0 | (point >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (point >> 18)), tail(12), tail(6), tail(0)};
}

}  // namespace deltapipe::testing
