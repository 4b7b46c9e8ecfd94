// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/labelled_text.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <set>

#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using Catch::Matchers::Contains;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;

namespace {

constexpr int kLength = 8;

/// Files of labelled texts, and a tokenizer of bytes.
struct Files {
  Files() : tokenizer(Tokenizer::train({"ab"}, 257)) {
    settings.kind = DataKind::labelled_text;
    settings.validation_fraction = 0;
  }
  void add(const std::string& content,
           std::vector<std::string> DataSettings::*files = &DataSettings::train) {
    const std::string path = directory.path() + "/" + std::to_string((settings.*files).size()) +
                             (files == &DataSettings::train ? "t" : "v") + ".tsv";
    std::ofstream(path, std::ios::binary) << content;
    (settings.*files).push_back(path);
  }
  DataSplit load(const std::vector<std::string>& classes, int length = kLength) const {
    return load_labelled_texts(settings, *tokenizer, classes, length);
  }

  TemporaryDirectory directory;
  std::unique_ptr<const Tokenizer> tokenizer;
  DataSettings settings;
};

struct Sample {
  std::vector<std::int32_t> tokens, segments;
  std::int32_t label = -1;
};
Sample read(const Dataset& data, std::uint64_t id) {
  const auto length = static_cast<std::size_t>(data.sequence_length());
  Sample sample{std::vector<std::int32_t>(length, -7), std::vector<std::int32_t>(length, -7)};
  SampleSpans spans;
  spans.set(Field::tokens, std::span(sample.tokens));
  spans.set(Field::segments, std::span(sample.segments));
  spans.set(Field::label, std::span(&sample.label, 1));
  data.read(id, {}, spans);
  return sample;
}

}  // namespace

TEST_CASE("Labelled texts have marks, padding and segments", "[data][labelled]") {
  Files files;
  files.add("text\tlabel\nab\tyes\n\tno\nabababab\tyes\n");
  const DataSplit split = files.load({"no", "yes"});
  const Dataset& data = *split.train;
  const std::int32_t e = files.tokenizer->end_of_text();
  const std::vector<std::int32_t> ab = files.tokenizer->encode("ab");
  REQUIRE(ab.size() == 2);
  REQUIRE(data.size() == 3);
  CHECK(data.fields()[Field::tokens] == kLength);
  CHECK(data.fields()[Field::segments] == kLength);
  CHECK(data.fields()[Field::label] == 1);
  CHECK(read(data, 0).tokens == std::vector<std::int32_t>{e, ab[0], ab[1], e, e, e, e, e});
  CHECK(read(data, 0).segments == std::vector<std::int32_t>(kLength, 0));
  CHECK(data.length(0) == 4);
  CHECK(read(data, 0).label == 1);
  CHECK(data.length(1) == 2);
  CHECK(read(data, 1).label == 0);
  CHECK(data.length(2) == kLength);
  CHECK(read(data, 2).tokens.back() == e);
  CHECK(data.all_targets() == 3);
  REQUIRE(split.notes.size() == 2);
  CHECK_THAT(split.notes[0], Contains("no 1, yes 2"));
  CHECK_THAT(split.notes[1], Contains("1 sample is truncated to 8 tokens"));
}

TEST_CASE("The second text of a pair is segment 1", "[data][labelled]") {
  Files files;
  files.settings.labelled.texts = {"q", "s"};
  files.settings.labelled.label = "l";
  files.add("l\tq\ts\n0\tab\tb\n1\tababab\tab\n");
  const DataSplit split = files.load({"no", "yes"});
  const std::int32_t e = files.tokenizer->end_of_text();
  const std::int32_t a = files.tokenizer->encode("a")[0], b = files.tokenizer->encode("b")[0];
  CHECK(read(*split.train, 0).tokens == std::vector<std::int32_t>{e, a, b, e, b, e, e, e});
  CHECK(read(*split.train, 0).segments == std::vector<std::int32_t>{0, 0, 0, 0, 1, 1, 0, 0});
  CHECK(split.train->length(0) == 6);
  // Five tokens are left beside three marks: the longer text keeps three of its six.
  CHECK(read(*split.train, 1).tokens == std::vector<std::int32_t>{e, a, b, a, e, a, b, e});
  CHECK(read(*split.train, 1).label == 1);
}

TEST_CASE("Pairs are truncated as Hugging Face's longest_first does", "[data][labelled]") {
  const auto kept = [](std::size_t n1, std::size_t n2, std::size_t most) {
    const KeptTokens k = truncate_longest_first(n1, n2, most);
    return std::pair(k.first, k.second);
  };
  using Pair = std::pair<std::size_t, std::size_t>;
  CHECK(kept(3, 4, 7) == Pair(3, 4));
  CHECK(kept(10, 2, 7) == Pair(5, 2));
  CHECK(kept(2, 10, 7) == Pair(2, 5));
  CHECK(kept(10, 9, 7) == Pair(4, 3));
  CHECK(kept(9, 10, 7) == Pair(3, 4));
  CHECK(kept(9, 9, 7) == Pair(3, 4));
  CHECK(kept(9, 9, 0) == Pair(0, 0));
  CHECK(kept(5, 0, 3) == Pair(3, 0));
}

TEST_CASE("Labels are names or numbers of classes", "[data][labelled]") {
  Files files;
  files.add("text\tlabel\nab\t10\nab\t9\nab\t-1\nab\t9\n");
  CHECK(labels_of_files(files.settings) == std::vector<std::string>{"-1", "9", "10"});
  files.add("text\tlabel\nab\tx\n");
  CHECK(labels_of_files(files.settings) == std::vector<std::string>{"-1", "10", "9", "x"});
  CHECK_THAT(message_of<UserError>([&] {
               files.load({"no", "yes"});
             }),
             Contains(":2: the label is not one of the model's 2 classes (got 10)"));
  files.settings.bad_lines = BadLines::skip;
  const DataSplit split = files.load({"9", "x"});
  CHECK(split.train->size() == 3);
  CHECK(split.skipped.size() == 1);
  CHECK(split.skipped[0].count == 2);

  Files one;
  one.add("text\tlabel\nab\tx\nab\tx\n");
  CHECK_THAT(message_of<UserError>([&] { labels_of_files(one.settings); }),
             Contains("fewer than two labels (got x)"));
}

TEST_CASE("Held-out labelled samples come from everywhere in the files", "[data][labelled]") {
  Files files;
  std::string content = "text\tlabel\n";
  for (int i = 0; i < 100; ++i) content += "a\t" + std::to_string(i / 50) + "\n";
  files.add(content);
  files.settings.validation_fraction = 0.2;
  const DataSplit split = files.load({"0", "1"});
  CHECK(split.train->size() == 80);
  CHECK(split.validation->size() == 20);
  std::map<std::int32_t, int> counts;
  for (std::uint64_t id = 0; id < 20; ++id) ++counts[read(*split.validation, id).label];
  CHECK(counts[0] > 4);
  CHECK(counts[1] > 4);
  CHECK(files.load({"0", "1"}).validation->fingerprint() == split.validation->fingerprint());
  CHECK(split.validation->fingerprint() != split.train->fingerprint());
  files.settings.max_train_samples = 7;
  CHECK(files.load({"0", "1"}).train->size() == 7);
}

TEST_CASE("Fingerprints see tokens, segments and labels", "[data][labelled]") {
  std::set<std::uint64_t> seen;
  for (const char* const row : {"ab\tb\t0", "ab\ta\t0", "a\tbb\t0", "ab\tb\t1"}) {
    Files files;
    files.settings.labelled.texts = {"q", "s"};
    files.add("q\ts\tlabel\n" + std::string(row) + "\n");
    CHECK(seen.insert(files.load({"0", "1"}).train->fingerprint()).second);
  }
}

TEST_CASE("Samples that are too short for their marks are refused", "[data][labelled]") {
  Files files;
  files.add("text\tlabel\nab\t0\nab\t1\n");
  CHECK_THAT(message_of<UserError>([&] { files.load({"0", "1"}, 2); }), Contains("at least 3"));
  CHECK(files.load({"0", "1"}, 3).train->length(0) == 3);
  files.settings.train[0] = "x.txt";
  CHECK_THAT(message_of<UserError>([&] {
               files.load({"0", "1"});
             }),
             Contains("JSON lines, CSV and TSV"));
}
