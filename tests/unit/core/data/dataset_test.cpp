// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/dataset.hpp"

#include <algorithm>
#include <catch2/catch.hpp>

#include "app/session/data_of_stage.hpp"
#include "core/base/error.hpp"
#include "core/data/token_store.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
using Ids = std::vector<std::int32_t>;

struct Sample {
  Ids inputs, targets;
  int length;
};

Sample sample(const TokenDataset& set, std::uint64_t id) {
  Sample read{Ids(static_cast<std::size_t>(set.sequence_length()), -7),
              Ids(static_cast<std::size_t>(set.sequence_length()), -7), 0};
  read.length = set.read(id, read.inputs, read.targets);
  return read;
}

const TokenDataset& tokens_of(const std::shared_ptr<const Dataset>& set) {
  return dynamic_cast<const TokenDataset&>(*set);
}

/// Documents of one text each in a JSONL file.
class Corpus {
 public:
  DataSettings settings;

  explicit Corpus(const std::vector<std::string>& documents) {
    settings.train = {add("train.jsonl", documents)};
  }
  std::string add(const std::string& name, const std::vector<std::string>& documents) {
    std::string lines;
    for (const std::string& document : documents) lines += "{\"text\": \"" + document + "\"}\n";
    write_bytes(directory_ / name, lines);
    return directory_ / name;
  }
  DataSplit load(int sequence_length) const {
    return load_data(settings, small_tokenizer(), sequence_length);
  }
  std::string message(int sequence_length = 4) const {
    return message_of<UserError>([&] { load(sequence_length); });
  }

 private:
  TemporaryDirectory directory_;
};

constexpr std::int32_t kEnd = 2999;

/// All documents with the end of text behind each.
Ids joined(const std::vector<std::string>& documents) {
  Ids ids;
  for (const std::string& document : documents) {
    small_tokenizer().encode_to(document, ids);
    ids.push_back(kEnd);
  }
  return ids;
}

/// Checks that samples are the windows of `tokens` from the first on, by the formula.
void check_stream(const TokenDataset& set, const Ids& tokens, std::uint64_t first_window) {
  const auto width = static_cast<std::size_t>(set.sequence_length());
  std::uint64_t targets = 0;
  for (std::uint64_t id = 0; id < set.size(); ++id) {
    const Sample read = sample(set, id);
    const std::size_t start = (first_window + id) * width;
    for (std::size_t i = 0; i < width; ++i) {
      const bool inside = start + i + 1 < tokens.size();
      CHECK(inside == (static_cast<int>(i) < read.length));
      CHECK(read.inputs[i] == (inside ? tokens[start + i] : kEnd));
      CHECK(read.targets[i] == (inside ? tokens[start + i + 1] : -1));
    }
    targets += static_cast<std::uint64_t>(read.length);
  }
  CHECK(set.all_targets() == targets);
}

const std::vector<std::string> kDocuments = {"Now is the winter of our discontent", "", "x",
                                             "Made glorious summer by this sun of York; 12345"};
const std::vector<std::string> kWithText = {kDocuments[0], kDocuments[2], kDocuments[3]};

TEST_CASE("A stream is cut into windows that overlap by one token", "[data]") {
  Corpus corpus(kDocuments);
  corpus.settings.validation_fraction = 0;
  const Ids tokens = joined(kWithText);
  for (int length = 1; length <= static_cast<int>(tokens.size()) + 2; ++length) {
    const DataSplit data = corpus.load(length);
    const auto width = static_cast<std::size_t>(length);
    INFO("T = " << length << " of " << tokens.size());
    CHECK(data.train->size() == (tokens.size() - 1 + width - 1) / width);
    CHECK(data.train->all_targets() == tokens.size() - 1);
    CHECK(data.validation->size() == 0);
    check_stream(tokens_of(data.train), tokens, 0);
  }
}

TEST_CASE("The last windows are held out", "[data]") {
  Corpus corpus(kDocuments);
  const Ids tokens = joined(kWithText);
  const std::uint64_t windows = (tokens.size() - 1 + 2) / 3;
  REQUIRE(windows > 8);
  for (const double fraction : {1e-9, 0.05, 0.25, 0.5, 0.999999}) {
    corpus.settings.validation_fraction = fraction;
    const DataSplit data = corpus.load(3);
    const auto held = std::clamp<std::uint64_t>(
        static_cast<std::uint64_t>(fraction * static_cast<double>(windows) + 0.5), 1, windows - 1);
    CHECK(data.validation->size() == held);
    CHECK(data.train->size() == windows - held);
    check_stream(tokens_of(data.train), tokens, 0);
    check_stream(tokens_of(data.validation), tokens, windows - held);
  }
}

TEST_CASE("Validation files are a set of their own", "[data]") {
  Corpus corpus(kDocuments);
  corpus.settings.validation = {corpus.add("validation.jsonl", {"summer sun"})};
  const DataSplit data = corpus.load(5);
  check_stream(tokens_of(data.train), joined(kWithText), 0);
  CHECK(data.train->all_targets() == joined(kWithText).size() - 1);
  check_stream(tokens_of(data.validation), joined({"summer sun"}), 0);
  CHECK(data.validation->all_targets() == joined({"summer sun"}).size() - 1);
}

TEST_CASE("With document packing every document starts a window", "[data]") {
  Corpus corpus(kDocuments);
  corpus.settings.packing = Packing::document;
  corpus.settings.validation_fraction = 0;
  const DataSplit data = corpus.load(6);
  std::uint64_t id = 0;
  for (const std::string& document : kWithText) {
    const Ids tokens = joined({document});
    for (std::size_t start = 0; start + 1 < tokens.size(); start += 6, ++id) {
      const Sample read = sample(tokens_of(data.train), id);
      const std::size_t length = std::min<std::size_t>(6, tokens.size() - 1 - start);
      REQUIRE(read.length == static_cast<int>(length));
      for (std::size_t i = 0; i < 6; ++i) {
        CHECK(read.inputs[i] == (i < length ? tokens[start + i] : kEnd));
        CHECK(read.targets[i] == (i < length ? tokens[start + i + 1] : -1));
      }
    }
  }
  CHECK(data.train->size() == id);
}

TEST_CASE("A document that ends with the end of text gets no second one", "[data]") {
  Corpus with({"a b<|endoftext|>", "c"});
  Corpus without({"a b", "c"});
  with.settings.validation_fraction = without.settings.validation_fraction = 0;
  CHECK(with.load(4).train->fingerprint() == without.load(4).train->fingerprint());
}

TEST_CASE("Samples can be limited", "[data]") {
  Corpus corpus(kDocuments);
  corpus.settings.validation_fraction = 0.5;
  const DataSplit all = corpus.load(3);
  corpus.settings.max_train_samples = 2;
  corpus.settings.max_validation_samples = 1;
  const DataSplit few = corpus.load(3);
  CHECK(few.train->size() == 2);
  CHECK(few.validation->size() == 1);
  CHECK(sample(tokens_of(few.train), 1).inputs == sample(tokens_of(all.train), 1).inputs);
  CHECK(sample(tokens_of(few.validation), 0).inputs == sample(tokens_of(all.validation), 0).inputs);
  corpus.settings.max_train_samples = 1'000'000;
  CHECK(corpus.load(3).train->fingerprint() == all.train->fingerprint());
}

TEST_CASE("The fingerprint tells sets apart", "[data]") {
  Corpus corpus(kDocuments);
  corpus.settings.validation_fraction = 0;
  const std::uint64_t fingerprint = corpus.load(4).train->fingerprint();
  CHECK(corpus.load(4).train->fingerprint() == fingerprint);
  CHECK(corpus.load(5).train->fingerprint() != fingerprint);
  corpus.settings.packing = Packing::document;
  CHECK(corpus.load(4).train->fingerprint() != fingerprint);
  corpus.settings.packing = Packing::stream;
  corpus.settings.max_train_samples = 2;
  CHECK(corpus.load(4).train->fingerprint() != fingerprint);
  Corpus other({kDocuments[0], "y", kDocuments[3]});
  other.settings.validation_fraction = 0;
  CHECK(other.load(4).train->fingerprint() != fingerprint);
  CHECK(TokenDataset().fingerprint() == TokenDataset().fingerprint());
}

TEST_CASE("An outline has all of a set but its tokens", "[data]") {
  Corpus corpus({"a b c d e f g h i j", "k", "l m n o p q r s", "t u v"});
  for (const Packing packing : {Packing::stream, Packing::document}) {
    corpus.settings.packing = packing;
    const DataSplit data = corpus.load(3);
    std::vector<std::uint64_t> numbers;
    for (const TokenDataset& set :
         {tokens_of(data.train), tokens_of(data.validation), TokenDataset()})
      put_outline(set, numbers);
    std::span<const std::uint64_t> rest(numbers);
    for (const TokenDataset& set :
         {tokens_of(data.train), tokens_of(data.validation), TokenDataset()}) {
      const TokenDataset outline = take_outline(rest);
      CHECK(outline.fingerprint() == set.fingerprint());
      CHECK(outline.all_targets() == set.all_targets());
      CHECK(outline.sequence_length() == set.sequence_length());
      REQUIRE(outline.size() == set.size());
      for (std::uint64_t id = 0; id < set.size(); ++id) {
        CHECK(outline.length(id) == set.length(id));
        Ids inputs(3, 7), targets(3, 7);
        CHECK(outline.read(id, inputs, targets) == set.length(id));
        CHECK(inputs == Ids(3, 0));
        CHECK(targets == Ids(3, -1));
      }
    }
    CHECK(rest.empty());
    rest = std::span<const std::uint64_t>(numbers).first(3);
    CHECK_THROWS_AS(take_outline(rest), InternalError);
  }
}

/// A corpus and a file of prompts with answers.
class Prompts {
 public:
  explicit Prompts(const std::string& lines) : corpus_({"a b c d e f g h i j k l"}) {
    write_bytes(directory_ / "prompts.jsonl", lines);
    corpus_.settings.answers.files = {directory_ / "prompts.jsonl"};
  }
  DataSettings& settings() { return corpus_.settings; }
  DataSplit load(int sequence_length = 8) const { return corpus_.load(sequence_length); }
  std::string message(int sequence_length = 8) const { return corpus_.message(sequence_length); }

 private:
  TemporaryDirectory directory_;
  Corpus corpus_;
};

TEST_CASE("Answers are the only targets of prompts", "[data]") {
  Prompts prompts(
      "{\"prompt\": \"a b\", \"answer\": \" c d\", \"id\": 3}\n"
      "{\"answer\": \" x\", \"prompt\": \"q\"}\n");
  for (const bool has_end : {false, true}) {
    prompts.settings().answers.end = has_end ? "!" : "";
    const Ids end = has_end ? small_tokenizer().encode("!") : Ids{kEnd};
    const TokenDataset set = prompts.load().answers;
    REQUIRE(set.size() == 2);
    for (const auto& [id, prompt, answer] :
         {std::tuple(0, "a b", " c d"), std::tuple(1, "q", " x")}) {
      const Ids before = small_tokenizer().encode(prompt);
      Ids all = small_tokenizer().encode(std::string(prompt) + answer);
      all.insert(all.end(), end.begin(), end.end());
      const Sample read = sample(set, id);
      const auto length = static_cast<int>(all.size()) - 1;
      REQUIRE(read.length == length);
      CHECK(set.first_target(id) == static_cast<int>(before.size()) - 1);
      CHECK(set.targets(id) == length - set.first_target(id));
      for (int t = 0; t < length; ++t) {
        CHECK(read.inputs[t] == all[t]);
        CHECK(read.targets[t] == (t < set.first_target(id) ? -1 : all[t + 1]));
      }
      CHECK(read.targets[length] == -1);
      // Target by target.
      for (int k = 0; k < set.targets(id); ++k) {
        const std::uint64_t ids[] = {static_cast<std::uint64_t>(id)};
        const TokenDataset one = set.at_target(k, ids);
        const Sample cut = sample(one, 0);
        const int place = set.first_target(id) + k;
        CHECK(cut.length == place + 1);
        CHECK(cut.targets[place] == read.targets[place]);
        CHECK(std::count(cut.targets.begin(), cut.targets.end(), -1) == 7);
        CHECK(std::equal(cut.inputs.begin(), cut.inputs.begin() + cut.length, read.inputs.begin()));
        CHECK(one.all_targets() == 1);
      }
    }
    CHECK(set.all_targets() == static_cast<std::uint64_t>(set.targets(0) + set.targets(1)));
    std::vector<std::uint64_t> numbers;
    put_outline(set, numbers);
    std::span<const std::uint64_t> rest(numbers);
    const TokenDataset outline = take_outline(rest);
    REQUIRE(outline.size() == 2);
    for (const std::uint64_t id : {0, 1}) {
      CHECK(outline.length(id) == set.length(id));
      CHECK(outline.first_target(id) == set.first_target(id));
    }
    CHECK(outline.all_targets() == set.all_targets());
  }
}

TEST_CASE("Prompts without a place for their answer are mistakes", "[data]") {
  const std::string good = "{\"prompt\": \"a b\", \"answer\": \" c\"}\n";
  const auto message = [&](const std::string& line) {
    Prompts prompts(good + line);
    const std::string said = prompts.message();
    CHECK_THAT(said, Contains("prompts.jsonl:2"));
    prompts.settings().bad_lines = BadLines::skip;
    const DataSplit data = prompts.load();
    CHECK(data.answers.size() == 1);
    REQUIRE(data.skipped.size() == 1);
    CHECK(data.skipped[0].count == 1);
    return said;
  };
  CHECK_THAT(message("{\"prompt\": \"a b\"}\n"),
             Contains("'answer'") && Contains("evaluation.answer_field"));
  CHECK_THAT(message("{\"prompt\": \"\", \"answer\": \"c\"}\n"), Contains("prompt is empty"));
  CHECK_THAT(message("{\"prompt\": \"th\", \"answer\": \"e\"}\n"),
             Contains("continues in the answer"));
  CHECK_THAT(message("{\"prompt\": \"a b c d e f g h i\", \"answer\": \" j\"}\n"),
             Contains("longer than a sample") && Contains("sequence_length"));
  Prompts prompts(good);
  prompts.settings().validation_fraction = 0;
  CHECK_THAT(prompts.message(), Contains("no validation data"));
}

TEST_CASE("Data that gives no sample is an error", "[data]") {
  Corpus corpus({"a b c d e f g"});
  CHECK_THAT(corpus.message(0), Contains("sequence_length"));
  CHECK_THAT(corpus.message(-3), Contains("sequence_length"));
  CHECK_THAT(corpus.message(1000), Contains("only one sample"));
  for (const double fraction : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    corpus.settings.validation_fraction = fraction;
    CHECK_THAT(corpus.message(), Contains("validation_fraction"));
  }
  corpus.settings.train = {};
  CHECK_THAT(corpus.message(), Contains("data.train"));
  corpus.settings.train = {corpus.add("empty.jsonl", {"", ""})};
  CHECK_THAT(corpus.message(), Contains("data.train give no sample"));
}

TEST_CASE("Ids are kept whole in small and large vocabularies", "[data]") {
  for (const int vocabulary : {1, 65535, 65536, 65537, 1'000'000}) {
    TokenStore store(vocabulary);
    const Ids ids = {0, vocabulary / 2, vocabulary - 1};
    store.append(ids);
    store.append(ids);
    Ids copy(4);
    store.copy(2, copy);
    CHECK(store.size() == 6);
    CHECK(copy == Ids{vocabulary - 1, 0, vocabulary / 2, vocabulary - 1});
  }
}

}  // namespace
}  // namespace deltapipe
