// SPDX-License-Identifier: BSD-3-Clause
// Documents on several threads: the ids and the order of one after the other on one.
#include "core/data/parallel_tokenizer.hpp"

#include <catch2/catch.hpp>
#include <numeric>
#include <thread>

#include "core/base/error.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Ids = std::vector<std::int32_t>;

struct Documents : TokenSink {
  std::vector<Ids> all;
  Ids current;
  std::thread::id thread = std::this_thread::get_id();
  void append(std::span<const std::int32_t> ids) override {
    CHECK(std::this_thread::get_id() == thread);
    CHECK_FALSE(ids.empty());
    current.insert(current.end(), ids.begin(), ids.end());
  }
  void end_document() override {
    all.push_back(current);
    current.clear();
  }
};

/// Words of many lengths and scripts; without blanks: nowhere to be cut.
std::string text_of(std::size_t bytes, std::uint64_t seed, bool blanks = true) {
  std::string text;
  for (std::uint64_t i = 0; text.size() < bytes; ++i) {
    const std::uint64_t random = splitmix64(seed * 1000003 + i);
    for (std::uint64_t c = 0; c <= random % 9; ++c)
      text += (random >> 20) % 50 == 0
                  ? utf8(0x400 + (random >> c) % 64)
                  : std::string(1, static_cast<char>('a' + (random >> c) % 26));
    if (blanks) text += random % 31 == 0 ? "\n" : random % 17 == 0 ? ".  " : " ";
  }
  return text;
}

/// Tokens of documents in pieces of `piece` bytes.
std::vector<Ids> tokenise(const std::vector<std::string>& documents, int threads,
                          std::size_t piece) {
  Documents sink;
  ParallelTokenizer tokenizer(small_tokenizer(), sink, threads);
  for (const std::string& document : documents) {
    for (std::size_t i = 0; i < document.size(); i += piece)
      tokenizer.add(std::string_view(document).substr(i, piece));
    tokenizer.end_document();
  }
  tokenizer.finish();
  CHECK(sink.current.empty());
  return sink.all;
}

TEST_CASE("Any number of threads makes the ids of one", "[data][tokenizer]") {
  std::vector<std::string> documents = {"", text_of(5000000, 1), "", "a", text_of(1 << 20, 2)};
  for (std::uint64_t seed = 3; seed < 400; ++seed)
    documents.push_back(text_of(splitmix64(seed) % 9000, seed));
  documents.push_back(text_of(3000000, 4, false));
  documents.emplace_back();
  std::vector<Ids> expected;
  for (const std::string& document : documents)
    expected.push_back(small_tokenizer().encode(document));
  for (const int threads : {1, 2, 3, 8}) {
    CAPTURE(threads);
    CHECK(tokenise(documents, threads, 4u << 20) == expected);
    CHECK(tokenise(documents, threads, 70001) == expected);
  }
  CHECK(tokenise({}, 4, 1).empty());
}

TEST_CASE("What is not finished is given up", "[data][tokenizer]") {
  Documents sink;
  {
    ParallelTokenizer tokenizer(small_tokenizer(), sink, 3);
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      tokenizer.add(text_of(1200000, seed));
      tokenizer.end_document();
    }
  }
  CHECK(sink.all.size() < 4);
}

struct Full : TokenSink {
  void append(std::span<const std::int32_t>) override { throw UserError({.what = "full"}); }
  void end_document() override {}
};

TEST_CASE("A sink that refuses ends it", "[data][tokenizer]") {
  Full sink;
  ParallelTokenizer tokenizer(small_tokenizer(), sink, 3);
  tokenizer.add("some text");
  tokenizer.end_document();
  CHECK_THROWS_AS(tokenizer.finish(), UserError);
}

}  // namespace
}  // namespace deltapipe
