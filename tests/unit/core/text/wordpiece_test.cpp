// SPDX-License-Identifier: BSD-3-Clause
// WordPiece against transformers' BertTokenizer (tests/golden/make_wordpiece_fixtures.py), and its
// files.
#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/utf8.hpp"
#include "core/text/tokenizer_files.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
const std::string kVocabulary = DELTAPIPE_FIXTURES "/wordpiece/vocab.txt";

const Json& expected() {
  static const Json values = Json::parse(read_bytes(DELTAPIPE_FIXTURES "/wordpiece/expected.json"));
  return values;
}

/// A directory with the vocabulary and a tokenizer_config.json.
struct Directory : TemporaryDirectory {
  explicit Directory(const Json& config = Json::object()) {
    std::filesystem::copy_file(kVocabulary, path() + "/vocab.txt");
    write_bytes(path() + "/tokenizer_config.json", config.dump());
  }
  std::unique_ptr<const Tokenizer> load() const { return Tokenizer::load(path()); }
  std::string message() const {
    return message_of<UserError>([&] { load(); });
  }
};

/// A tokenizer.json that transformers wrote, with the vocabulary.
Json whole_file(const Json& from) {
  Json whole = from["json"];
  const std::string lines = read_bytes(kVocabulary);
  int id = 0;
  for (std::size_t start = 0; start < lines.size();) {
    const std::size_t end = lines.find('\n', start);
    whole["model"]["vocab"][lines.substr(start, end - start)] = id++;
    start = end + 1;
  }
  return whole;
}

const std::vector<std::string>& lines() {
  static const std::vector<std::string> texts = lines_and(expected()["special"]);
  return texts;
}

}  // namespace

TEST_CASE("WordPiece has the ids of transformers", "[tokenizer][wordpiece]") {
  const std::size_t number = GENERATE(range(0, 5));
  const Json& made = expected()["configs"][number];
  INFO(made["config"].dump());
  const Directory directory(made["config"]);
  const auto tokenizer = directory.load();
  check_texts(*tokenizer, lines(), made["lines"]);
  const std::string megabyte = drawn_megabyte(lines());
  check_ids(tokenizer->encode(megabyte), made["megabyte"]);

  write_bytes(directory / "tokenizer.json", whole_file(made).dump());
  std::filesystem::remove(directory / "tokenizer_config.json");
  const auto whole = directory.load();
  CHECK(whole->hash() == tokenizer->hash());
  check_ids(whole->encode(megabyte), made["megabyte"]);
}

TEST_CASE("WordPiece treats every character as transformers", "[tokenizer][wordpiece]") {
  for (const Json& made : expected()["configs"]) {
    INFO(made["config"].dump());
    check_texts(*Directory(made["config"]).load(), every_character(), made["blocks"]);
  }
}

TEST_CASE("WordPiece marks texts like BERT", "[tokenizer][wordpiece]") {
  const Json& made = expected()["configs"][0];
  const auto tokenizer = Directory().load();
  const TextMarks marks = tokenizer->marks();
  Ids ids = {marks.begin};
  tokenizer->encode_to("The first text", ids);
  ids.push_back(marks.separator);
  tokenizer->encode_to("and the second", ids);
  ids.push_back(marks.separator);
  CHECK(ids == made["pair"].get<Ids>());
  CHECK(marks.padding == 0);
  CHECK(tokenizer->end_of_text() == -1);
}

TEST_CASE("WordPiece ids become words again", "[tokenizer][wordpiece]") {
  const auto tokenizer = Directory().load();
  CHECK(tokenizer->decode(tokenizer->encode("The FIRST,text [SEP]")) == "the first , text [SEP]");
  CHECK(tokenizer->decode(Ids{-1, tokenizer->vocabulary_size()}).empty());
}

TEST_CASE("A text may be cut before a space", "[tokenizer][wordpiece]") {
  const auto tokenizer = Directory().load();
  for (const std::string& line : lines()) {
    const std::size_t cut = tokenizer->safe_cut(line);
    INFO(line << " at " << cut);
    Ids ids = tokenizer->encode(line.substr(0, cut));
    tokenizer->encode_to(line.substr(cut), ids);
    REQUIRE(ids == tokenizer->encode(line));
  }
}

TEST_CASE("WordPiece accepts invalid UTF-8, empty texts and long words", "[tokenizer][wordpiece]") {
  const auto tokenizer = Directory().load();
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->encode("\xff\xc3").empty());
  CHECK(tokenizer->encode("a\xff") == tokenizer->encode("a"));
  CHECK(tokenizer->encode(std::string(1u << 20, 'a')).size() == 1);
}

TEST_CASE("Real texts have the ids of BERT", "[tokenizer][wordpiece]") {
  if (real_data().empty()) {
    WARN("skipped: DELTAPIPE_DATA is not set");
    return;
  }
  const auto bert = Tokenizer::load(real_data() + "/bert_vocab");
  CHECK(bert->vocabulary_size() == 30522);
  for (const auto& [name, entry] : expected()["bert"].items()) {
    INFO(name);
    check_ids(bert->encode(read_bytes(real_data() + "/" + name)), entry);
  }
}

TEST_CASE("Files of WordPiece tokenizers are found and copied", "[tokenizer][wordpiece]") {
  const Directory directory;
  CHECK(has_tokenizer_files(directory.path()));
  std::vector<std::string> names;
  for (const TokenizerFile& file : tokenizer_files(directory.path())) names.push_back(file.name);
  CHECK(names == std::vector<std::string>{"tokenizer_config.json", "vocab.txt"});
}

TEST_CASE("WordPiece files may add tokens and name roles", "[tokenizer][wordpiece]") {
  const std::int32_t count = Directory().load()->vocabulary_size();
  const std::string id = std::to_string(count);
  const Directory added(Json::parse(R"({"added_tokens_decoder": {")" + id +
                                    R"(": {"content": "<new>", "special": true}}})"));
  CHECK(added.load()->vocabulary_size() == count + 1);
  CHECK(added.load()->encode("a<new>") == Ids{added.load()->encode("a").front(), count});
  write_bytes(added / "added_tokens.json", R"({"<new>": )" + id + "}");
  CHECK(added.load()->vocabulary_size() == count + 1);
  write_bytes(added / "added_tokens.json", R"({"<other>": )" + id + "}");
  CHECK_THAT(added.message(), Contains("added_tokens.json: the added token is searched in"));
  const Directory roles;
  write_bytes(roles / "special_tokens_map.json", R"({"cls_token": "[MASK]"})");
  CHECK(roles.load()->marks().begin == Directory().load()->encode("[MASK]").front());
}

TEST_CASE("WordPiece files that cannot be used are refused", "[tokenizer][wordpiece]") {
  const Json& made = expected()["configs"][0];
  SECTION("vocab.txt") {
    const auto [content, message] = GENERATE(table<std::string, std::string>(
        {{"", "the vocabulary is empty"},
         {"a\n\nb\n", "vocab.txt:2: a token is empty"},
         {"a\nb\na\n", "vocab.txt:3: the vocabulary has a token twice (got a)"},
         {"a\n\xff\n", "the vocabulary is not UTF-8 (got byte 2)"},
         {"a\nb\n", "the vocabulary lacks the unk_token (got [UNK])"},
         {"[UNK]\n[CLS]\n", "the vocabulary lacks the sep_token (got [SEP])"}}));
    const Directory directory;
    write_bytes(directory / "vocab.txt", content);
    CHECK_THAT(directory.message(), Contains(message));
  }
  SECTION("tokenizer_config.json") {
    const auto [config, message] = GENERATE(table<std::string, std::string>(
        {{R"({"tokenizer_class": "BertJapaneseTokenizer"})", "has its own rules for tokens"},
         {R"({"do_lower_case": "no"})", "'do_lower_case' is not a boolean"},
         {R"({"cls_token": "<s>"})", "the vocabulary lacks the cls_token (got <s>)"},
         {R"({"split_special_tokens": true})", "split_special_tokens"},
         {R"({"added_tokens_decoder": {"7": {"content": "[PAD]", "special": true}}})",
          "has another id in the vocabulary (got 7)"},
         {R"({"added_tokens_decoder": {"0": {"content": "[PAD]"}}})",
          "is searched in normalised text (got [PAD])"},
         {R"({"added_tokens_decoder": {"0": {"content": "[PAD]", "special": true,
              "lstrip": true}}})",
          "asks for lstrip"}}));
    CHECK_THAT(Directory(Json::parse(config)).message(), Contains(message));
  }
  SECTION("tokenizer.json") {
    const auto [patch, message] = GENERATE(table<std::string, std::string>(
        {{R"({"normalizer": null})", "the normalizer is not BERT's"},
         {R"({"normalizer": {"type": "Lowercase"}})", "the normalizer is not BERT's"},
         {R"({"normalizer": {"lowercase": 1}})", "'lowercase' is not a boolean"},
         {R"({"pre_tokenizer": {"type": "Whitespace"}})", "the pre_tokenizer is not BERT's"},
         {R"({"post_processor": {"type": "RobertaProcessing"}})", "unknown post_processor"},
         {R"({"post_processor": {"single": [{"Sequence": {"id": "A"}}]}})",
          "the post_processor is not that of BERT"},
         {R"({"model": {"vocab": []}})", "not a JSON object of tokens and ids"},
         {R"({"model": {"vocab": {"[SEP]": 2}}})", "two tokens have the same id"},
         {R"({"model": {"vocab": {"[SEP]": 1e9}}})", "no usable id"},
         {R"({"model": {"vocab": {"[SEP]": 1000000000}}})", "no usable id"},
         {R"({"model": {"unk_token": "<unk>"}})", "the vocabulary lacks the unk_token"},
         {R"({"model": {"continuing_subword_prefix": ""}})", "continuing_subword_prefix is empty"},
         {R"({"model": {"max_input_chars_per_word": 0}})", "max_input_chars_per_word"},
         {R"({"added_tokens": {}})", "'added_tokens' is not a list"}}));
    const Directory directory;
    Json whole = whole_file(made);
    whole.merge_patch(Json::parse(patch));
    write_bytes(directory / "tokenizer.json", whole.dump());
    CHECK_THAT(directory.message(), Contains(message));
  }
}

}  // namespace deltapipe
