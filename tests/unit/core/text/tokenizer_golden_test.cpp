// SPDX-License-Identifier: BSD-3-Clause
// Ids against transformers' GPT2TokenizerFast (tests/golden/make_tokenizer_fixtures.py).
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/base/error.hpp"
#include "core/text/pretokenizer.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
const Json& expected() {
  return tokenizer_expectations();
}

void check_text(const Tokenizer& tokenizer, const std::string& text, const Json& entry) {
  const Ids ids = tokenizer.encode(text);
  CHECK(ids.size() == entry["ids"].get<std::size_t>());
  CHECK(hash_ids(ids) == expected_hash(entry["hash"]));
  CHECK(tokenizer.decode(ids) == text);
}

TEST_CASE("Lines of all kinds have the ids of transformers, also invalid UTF-8", "[tokenizer]") {
  const Lines& lines = mixed_lines();
  REQUIRE(lines.all.size() > 600);
  REQUIRE(lines.valid.size() > 400);
  REQUIRE(lines.valid.size() < lines.all.size());
  for (std::size_t i = 0; i < lines.all.size(); ++i) {
    const Json& line = expected()["lines"][i];
    const Ids ids = small_tokenizer().encode(lines.all[i]);
    INFO("line " << i << ": " << lines.all[i]);
    REQUIRE(ids.size() == line[1].get<std::size_t>());
    const Ids first(ids.begin(), ids.begin() + std::min<std::ptrdiff_t>(4, std::ssize(ids)));
    REQUIRE(first == line[3].get<Ids>());
    REQUIRE(hash_ids(ids) == expected_hash(line[2]));
    REQUIRE(small_tokenizer().decode(ids) == lines.all[i]);
  }
}

TEST_CASE("Flags of tokens with roles are refused where they count", "[tokenizer]") {
  const Json& roles = expected()["roles"];
  const std::string text = roles["text"];
  int counting = 0;
  for (const Json& made : roles["cases"]) {
    INFO(made.dump());
    const TemporaryDirectory directory;
    for (const char* const name : {"vocab.json", "merges.txt"})
      std::filesystem::copy_file(tokenizer_fixture(name), directory / name);
    if (made["whole"].get<bool>()) small_tokenizer().save(directory.path());
    write_bytes(directory / "tokenizer_config.json", made["config"].dump());
    write_bytes(directory / "special_tokens_map.json", made["map"].dump());
    if (made["ids"] == made["plain"]) {
      CHECK(Tokenizer::load(directory.path())->encode(text) == made["ids"].get<Ids>());
    } else {
      ++counting;
      const char* const file = made["map"].empty() ? "tokenizer_config.json: added token \"the\""
                                                   : "special_tokens_map.json: added token \"the\"";
      CHECK_THAT(message_of<UserError>([&] { Tokenizer::load(directory.path()); }),
                 Contains(file) && Contains("asks for"));
    }
  }
  CHECK(counting == 30);
}

TEST_CASE("A megabyte of mixed text has the ids of transformers", "[tokenizer]") {
  check_text(small_tokenizer(), drawn_megabyte(mixed_lines().valid), expected()["megabyte_valid"]);
  check_text(small_tokenizer(), drawn_megabyte(mixed_lines().all), expected()["megabyte"]);
}

TEST_CASE("GPT-2's own vocabulary on real text", "[tokenizer]") {
  if (real_data().empty()) {
    WARN("skipped: DELTAPIPE_DATA is not set");
    return;
  }
  const auto gpt2 = Tokenizer::load(real_data() + "/gpt2_bpe");
  CHECK(gpt2->vocabulary_size() == 50257);
  CHECK(gpt2->end_of_text() == 50256);
  CHECK(gpt2->encode("Hello world") == Ids{15496, 995});
  for (const auto& [name, entry] : expected()["gpt2"].items()) {
    INFO(name);
    check_text(*gpt2, read_bytes(real_data() + "/" + name), entry);
  }
  Ids ids;
  for (const std::string& line : mixed_lines().valid) gpt2->encode_to(line, ids);
  CHECK(ids.size() == expected()["gpt2_lines"]["ids"].get<std::size_t>());
  CHECK(hash_ids(ids) == expected_hash(expected()["gpt2_lines"]["hash"]));
}

bool is_one_piece(const std::string& text) {
  PieceReader reader(text);
  std::string_view piece;
  return reader.next(piece) && piece.size() == text.size();
}

char class_of(const std::string& character) {
  if (is_one_piece("a" + character)) return 'L';
  if (is_one_piece("1" + character)) return 'N';
  if (is_one_piece("!" + character)) return 'O';
  return 'S';
}

TEST_CASE("Letters, digits and spaces are those of the tokenizers package", "[tokenizer]") {
  std::string classes(0x110000, 'O');
  const std::array<std::pair<const char*, char>, 3> kinds = {
      {{"letters", 'L'}, {"digits", 'N'}, {"spaces", 'S'}}};
  for (const auto& [name, letter] : kinds) {
    for (const Json& range : expected()["classes"][name]) {
      for (std::size_t point = range[0]; point <= range[1]; ++point) classes[point] = letter;
    }
  }
  std::size_t differences = 0;
  for (std::uint32_t point = 0; point < classes.size(); ++point) {
    if (point >= 0xD800 && point < 0xE000) continue;  // not in UTF-8
    differences += class_of(utf8(point)) != classes[point];
  }
  CHECK(differences == 0);
  for (const char* symbol : {"\u180e", "\u200b", "\ufeff", "\u2060", "\u0301"}) {
    CHECK(class_of(symbol) == 'O');
  }
}

TEST_CASE("Every byte string comes back", "[tokenizer]") {
  CHECK(small_tokenizer().encode("").empty());
  CHECK(small_tokenizer().decode({}).empty());
  std::uint64_t counter = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes(splitmix64(counter++) % 40, '\0');
    // Few distinct bytes make UTF-8 sequences, whole and broken, likely.
    using namespace std::string_view_literals;
    constexpr std::string_view kBytes = "\x00 a'\n\xC3\xA9\xE2\x80\x82\xF0\x9F\x98\xED\xFF"sv;
    const bool any = splitmix64(counter++) % 4 == 0;
    for (char& c : bytes) {
      const std::uint64_t draw = splitmix64(counter++);
      c = any ? static_cast<char>(draw) : kBytes[draw % kBytes.size()];
    }
    REQUIRE(small_tokenizer().decode(small_tokenizer().encode(bytes)) == bytes);
  }
}

TEST_CASE("Long pieces are merged as short ones are, and in time", "[tokenizer]") {
  // A quadratic merge would take minutes.
  for (const std::string unit : {"a", " ", "the", "\n", "\xFF", "\xE4\xBD\xA0", "!?"}) {
    std::string text;
    while (text.size() < 200000) text += unit;
    CHECK(small_tokenizer().decode(small_tokenizer().encode(text)) == text);
  }
  std::string letters(1 << 19, 'a');
  for (std::size_t i = 0; i < letters.size(); ++i) {
    letters[i] = static_cast<char>('a' + splitmix64(i) % 26);
  }
  CHECK(small_tokenizer().decode(small_tokenizer().encode(letters)) == letters);
}

TEST_CASE("A safe cut changes no id", "[tokenizer]") {
  const std::string text = drawn_megabyte(mixed_lines().all).substr(0, 200000);
  const Ids whole = small_tokenizer().encode(text);
  std::string_view rest = text;
  Ids ids;
  std::size_t cuts = 0;
  for (std::uint64_t counter = 0; !rest.empty(); ++counter) {
    const std::string_view seen = rest.substr(0, 1 + splitmix64(counter) % 2000);
    const std::size_t cut =
        seen.size() == rest.size() ? seen.size() : small_tokenizer().safe_cut(seen);
    if (cut == 0) continue;
    small_tokenizer().encode_to(rest.substr(0, cut), ids);
    rest.remove_prefix(cut);
    ++cuts;
  }
  CHECK(cuts > 100);
  CHECK(ids == whole);
  CHECK(small_tokenizer().safe_cut("") == 0);
  CHECK(small_tokenizer().safe_cut(" ") == 0);
  CHECK(small_tokenizer().safe_cut("a ") == 1);
  CHECK(small_tokenizer().safe_cut("a  b") == 1);
  CHECK(small_tokenizer().safe_cut("\u3000 b") == 0);
}

TEST_CASE("Added tokens are taken out of the text first", "[tokenizer]") {
  const Tokenizer& tokenizer = small_tokenizer();
  const std::int32_t end = tokenizer.end_of_text();
  CHECK(end == tokenizer.vocabulary_size() - 1);
  CHECK(tokenizer.encode("<|endoftext|>") == Ids{end});
  CHECK(tokenizer.encode("<|endoftext|><|endoftext|>") == Ids{end, end});
  CHECK(tokenizer.encode("<|endoftext|").size() > 1);
  Ids parts = tokenizer.encode("a ");
  parts.push_back(end);
  tokenizer.encode_to(" b", parts);
  CHECK(tokenizer.encode("a <|endoftext|> b") == parts);
}

TEST_CASE("Ids outside the vocabulary are an error", "[tokenizer]") {}

TEST_CASE("Several threads may encode", "[tokenizer]") {
  const std::string text = drawn_megabyte(mixed_lines().all).substr(0, 100000);
  const Ids whole = small_tokenizer().encode(text);
  std::array<bool, 4> equal{};
  std::vector<std::thread> threads;
  for (bool& result : equal) {
    threads.emplace_back([&] { result = small_tokenizer().encode(text) == whole; });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(std::all_of(equal.begin(), equal.end(), [](bool value) { return value; }));
}

}  // namespace
}  // namespace deltapipe
