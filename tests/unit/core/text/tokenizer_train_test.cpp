// SPDX-License-Identifier: BSD-3-Clause
// Training against the tokenizers package (tests/golden/make_tokenizer_fixtures.py) and by hand.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Ids = std::vector<std::int32_t>;

std::string merges_of(const Tokenizer& tokenizer) {
  const TemporaryDirectory directory;
  tokenizer.save(directory.path());
  return read_bytes(directory / "merges.txt");
}

TEST_CASE("Merges are those of the tokenizers package", "[tokenizer]") {
  const std::string bytes = read_bytes(tokenizer_fixture("mixed.bin"));
  const auto expected = nlohmann::json::parse(read_bytes(tokenizer_fixture("expected.json")));
  std::vector<std::string_view> documents;
  std::size_t start = 0;
  for (const auto& line : expected["lines"]) {
    const std::string_view text = std::string_view(bytes).substr(start, line[0].get<std::size_t>());
    start += text.size();
    bool valid = true;
    try {
      (void)nlohmann::json(text).dump();
    } catch (const nlohmann::json::type_error&) {
      valid = false;
    }
    if (valid && text.find("<|endoftext|>") == std::string_view::npos) documents.push_back(text);
  }
  const auto tokenizer = Tokenizer::train(documents, 1000);
  CHECK(tokenizer->vocabulary_size() == 1000);
  CHECK(tokenizer->end_of_text() == 999);
  CHECK(merges_of(*tokenizer) == read_bytes(tokenizer_fixture("trained_merges.txt")));
  CHECK(tokenizer->decode(tokenizer->encode(bytes)) == bytes);
}

TEST_CASE("Merges by hand", "[tokenizer]") {
  // Counts: aa 6, ab 3, " a" 2. Then the words are (aa)ab: (aa)a 3, ab 3, and ab has lower ids.
  const auto tokenizer = Tokenizer::train({"aaab aaab aaab"}, 259);
  CHECK(merges_of(*tokenizer) == "#version: 0.2\na a\na b\n");
  CHECK(tokenizer->encode("aaab") == Ids{256, 257});
  CHECK(tokenizer->end_of_text() == 258);
}

TEST_CASE("Training takes any bytes and stops when nothing repeats", "[tokenizer]") {
  for (const std::vector<std::string_view>& documents :
       std::vector<std::vector<std::string_view>>{{}, {""}, {"x"}, {"abcdefg"}, {"a", "b"}}) {
    const auto tokenizer = Tokenizer::train(documents, 5000);
    CHECK(tokenizer->vocabulary_size() == 257);
    CHECK(tokenizer->end_of_text() == 256);
    CHECK(tokenizer->decode(tokenizer->encode("any \xFF text")) == "any \xFF text");
  }
  const auto tokenizer = Tokenizer::train({"\xFF\xFE\xFF\xFE\xFF\xFE"}, 258);
  CHECK(tokenizer->encode("\xFF\xFE").size() == 1);
  CHECK_THROWS_AS(Tokenizer::train({"text"}, 256), UserError);
  CHECK_THROWS_AS(Tokenizer::train({"text"}, -1), UserError);
}

TEST_CASE("The end of text in a document separates, and is not learnt", "[tokenizer]") {
  CHECK(merges_of(*Tokenizer::train({"ab<|endoftext|>ab<|endoftext|>"}, 300)) ==
        merges_of(*Tokenizer::train({"ab", "ab"}, 300)));
}

}  // namespace
}  // namespace deltapipe
