// SPDX-License-Identifier: BSD-3-Clause
// Tokenizer files: all layouts that are read, what is written, mistakes.
#include "core/text/tokenizer_files.hpp"

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
using Json = nlohmann::json;
using Ids = std::vector<std::int32_t>;

const std::string kText =
    "Now is the winter of our discontent,\n\n\u00e9t\u00e9 \xFF 123<|endoftext|> x";

void copy_fixture(const TemporaryDirectory& directory, const std::string& vocabulary,
                  const std::string& merges) {
  std::filesystem::copy_file(tokenizer_fixture("vocab.json"), directory / vocabulary);
  std::filesystem::copy_file(tokenizer_fixture("merges.txt"), directory / merges);
}

/// The fixture's tokenizer as a tokenizer.json; its merges as text or as pairs.
Json tokenizer_json(bool pairs) {
  Json vocabulary = Json::parse(read_bytes(tokenizer_fixture("vocab.json")));
  vocabulary.erase("<|endoftext|>");
  Json merges = Json::array();
  std::istringstream lines(read_bytes(tokenizer_fixture("merges.txt")));
  std::string line;
  std::getline(lines, line);
  while (std::getline(lines, line)) {
    const std::size_t space = line.find(' ');
    if (pairs) {
      merges.push_back({line.substr(0, space), line.substr(space + 1)});
    } else {
      merges.push_back(line);
    }
  }
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Json end = {{"id", 2999},           {"content", "<|endoftext|>"},
                    {"single_word", false}, {"lstrip", false},
                    {"rstrip", false},      {"special", true}};
  return {{"version", "1.0"},
          {"added_tokens", Json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", byte_level},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"}, {"dropout", nullptr}, {"vocab", vocabulary}, {"merges", merges}}}};
}

std::string load_message(const std::string& path) {
  return message_of<UserError>([&] { Tokenizer::load(path); });
}

void check_same(const Tokenizer& tokenizer) {
  CHECK(tokenizer.vocabulary_size() == small_tokenizer().vocabulary_size());
  CHECK(tokenizer.end_of_text() == small_tokenizer().end_of_text());
  CHECK(tokenizer.encode(kText) == small_tokenizer().encode(kText));
}

TEST_CASE("All layouts of tokenizer files give the same ids", "[tokenizer]") {
  SECTION("OpenAI's names") {
    const TemporaryDirectory directory;
    copy_fixture(directory, "encoder.json", "vocab.bpe");
    check_same(*Tokenizer::load(directory.path()));
  }
  SECTION("Windows line ends and no header") {
    const TemporaryDirectory directory;
    copy_fixture(directory, "vocab.json", "old.txt");
    std::string merges;
    for (const char c : read_bytes(directory / "old.txt"))
      merges += c == '\n' ? "\r\n" : std::string(1, c);
    write_bytes(directory / "merges.txt", merges.substr(merges.find('\n') + 1));
    check_same(*Tokenizer::load(directory.path()));
  }
  for (const bool pairs : {false, true}) {
    DYNAMIC_SECTION("tokenizer.json, merges as pairs: " << pairs) {
      const TemporaryDirectory directory;
      write_bytes(directory / "tokenizer.json", tokenizer_json(pairs).dump());
      check_same(*Tokenizer::load(directory.path()));
      check_same(*Tokenizer::load(directory / "tokenizer.json"));
    }
  }
}

/// Files that transformers 5 writes beside the vocabulary.
Json transformers5_json() {
  Json root = tokenizer_json(true);
  const Json first = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const Json second = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  root["truncation"] = {
      {"direction", "Left"}, {"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}};
  root["padding"] = {{"strategy", "BatchLongest"}, {"direction", "Right"}, {"pad_id", 2999}};
  root["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", Json::array({first})},
                            {"pair", Json::array({first, second})},
                            {"special_tokens", Json::object()}};
  return root;
}

TEST_CASE("Parts that change no id are read in all their spellings", "[tokenizer]") {
  const Json split = {
      {"type", "Split"},
      {"pattern",
       {{"Regex", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"},
      {"invert", false}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  const Json good = transformers5_json();
  const Json none = Json::object();
  const std::vector<Json> changes = {
      none,
      {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}}},
      {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", Json::array({byte_level})}}}},
      {{"post_processor",
        {{"type", "Sequence"}, {"processors", {good["post_processor"], byte_level}}}}},
      {{"post_processor", nullptr}},
      {{"decoder", {{"type", "Sequence"}, {"decoders", Json::array({byte_level})}}}},
      {{"normalizer", {{"type", "Sequence"}, {"normalizers", Json::array()}}}},
  };
  for (const Json& change : changes) {
    INFO(change.dump());
    Json root = good;
    root.update(change);
    const TemporaryDirectory directory;
    write_bytes(directory / "tokenizer.json", root.dump());
    check_same(*Tokenizer::load(directory.path()));
  }
}

TEST_CASE("Parts that would change ids are refused", "[tokenizer]") {
  const TemporaryDirectory directory;
  const Json end = {{"SpecialToken", {{"id", "<|endoftext|>"}, {"type_id", 0}}}};
  Json root = transformers5_json();
  root["post_processor"]["single"].insert(root["post_processor"]["single"].begin(), end);
  write_bytes(directory / "tokenizer.json", root.dump());
  CHECK_THAT(load_message(directory.path()),
             Contains("adds tokens to a text") && Contains("add_bos_token=False"));
  root = transformers5_json();
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json split = {{"type", "Split"},
                      {"pattern", {{"Regex", R"(\p{N}{1,3}|\p{L}+)"}}},
                      {"behavior", "Isolated"},
                      {"invert", false}};
  root["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}};
  write_bytes(directory / "tokenizer.json", root.dump());
  CHECK_THAT(load_message(directory.path()), Contains("GPT-2's pattern"));
  root = transformers5_json();
  write_bytes(directory / "tokenizer.json", root.dump());
  write_bytes(directory / "tokenizer_config.json", R"({"add_bos_token": true})");
  CHECK_THAT(load_message(directory.path()), Contains("tokenizer_config.json") &&
                                                 Contains("add_bos_token") &&
                                                 Contains("adds no tokens"));
}

TEST_CASE("Added tokens that are normalized come after the others", "[tokenizer]") {
  Json root = tokenizer_json(true);
  const Json added = {{"id", 3000}, {"content", "to<|end"}, {"special", false}};
  root["added_tokens"].push_back(added);
  for (const bool normalized : {false, true}) {
    INFO(normalized);
    root["added_tokens"][0]["normalized"] = false;
    root["added_tokens"][1]["normalized"] = normalized;
    const TemporaryDirectory directory;
    write_bytes(directory / "tokenizer.json", root.dump());
    const auto tokenizer = Tokenizer::load(directory.path());
    const Ids ids = tokenizer->encode("to<|endoftext|>");
    CHECK(ids.front() == (normalized ? small_tokenizer().encode("to").front() : 3000));
    CHECK((ids.back() == 2999) == normalized);
    CHECK(tokenizer->encode("xto<|end") == Ids{small_tokenizer().encode("x").front(), 3000});
    tokenizer->save(directory / "again");
    CHECK(Tokenizer::load(directory / "again")->encode("to<|endoftext|>") == ids);
  }
}

TEST_CASE("What is saved loads to the same ids", "[tokenizer]") {
  const TemporaryDirectory directory;
  small_tokenizer().save(directory / "deep/below");
  const std::string saved = directory / "deep/below";
  check_same(*Tokenizer::load(saved));
  std::filesystem::remove(saved + "/tokenizer.json");
  check_same(*Tokenizer::load(saved));
  CHECK(read_bytes(saved + "/merges.txt") == read_bytes(tokenizer_fixture("merges.txt")));
  CHECK(Json::parse(read_bytes(saved + "/vocab.json")) ==
        Json::parse(read_bytes(tokenizer_fixture("vocab.json"))));
  const Json config = Json::parse(read_bytes(saved + "/tokenizer_config.json"));
  CHECK(config["tokenizer_class"] == "GPT2Tokenizer");
  CHECK(config["eos_token"] == "<|endoftext|>");
  write_bytes(directory / "file", "");
  CHECK_THROWS_AS(small_tokenizer().save(directory / "file/below"), UserError);
}

TEST_CASE("add_prefix_space puts a space before every stretch of text", "[tokenizer]") {
  Json root = tokenizer_json(true);
  root["pre_tokenizer"]["add_prefix_space"] = true;
  const TemporaryDirectory directory;
  write_bytes(directory / "tokenizer.json", root.dump());
  const auto tokenizer = Tokenizer::load(directory.path());
  CHECK(tokenizer->encode("winter") == small_tokenizer().encode(" winter"));
  CHECK(tokenizer->encode(" winter") == small_tokenizer().encode(" winter"));
  CHECK(tokenizer->encode("\nw") == small_tokenizer().encode(" \nw"));
  CHECK(tokenizer->encode("a<|endoftext|>b") == small_tokenizer().encode(" a<|endoftext|> b"));
  CHECK(tokenizer->encode("").empty());
  CHECK(tokenizer->safe_cut("a\nb") == 0);
  CHECK(tokenizer->safe_cut("a b") == 1);
}

TEST_CASE("Side files name added tokens and the end of text", "[tokenizer]") {
  const TemporaryDirectory directory;
  copy_fixture(directory, "vocab.json", "merges.txt");
  write_bytes(directory / "added_tokens.json", R"({"<pad here>": 3000})");
  write_bytes(directory / "tokenizer_config.json",
              R"({"eos_token": {"content": "<eos>"}, "add_prefix_space": false,
                  "added_tokens_decoder": {"3001": {"content": "<eos>", "special": true}}})");
  const auto tokenizer = Tokenizer::load(directory.path());
  CHECK(tokenizer->vocabulary_size() == 3002);
  CHECK(tokenizer->end_of_text() == 3001);
  CHECK(tokenizer->encode("<eos><pad here>") == Ids{3001, 3000});
  CHECK(tokenizer->safe_cut("a b") == 0);
  CHECK(tokenizer->decode(Ids{3000}) == "<pad here>");
  tokenizer->save(directory / "again");
  const auto again = Tokenizer::load(directory / "again");
  CHECK(again->end_of_text() == 3001);
  CHECK(again->encode("<eos><pad here>") == Ids{3001, 3000});
}

TEST_CASE("Lost merges are reported", "[tokenizer]") {
  const TemporaryDirectory directory;
  copy_fixture(directory, "vocab.json", "merges.txt");
  const std::string merges = read_bytes(tokenizer_fixture("merges.txt"));
  const auto warnings = [&] { return Tokenizer::load(directory.path())->warnings(); };
  CHECK(warnings().empty());
  // Cut short at the end of a line, which leaves each one whole.
  const std::string short_one = merges.substr(0, merges.rfind('\n', merges.size() - 100) + 1);
  write_bytes(directory / "merges.txt", short_one);
  REQUIRE(warnings().size() == 1);
  CHECK_THAT(warnings()[0], Contains("merges.txt: ") && Contains("are not the result of a merge"));
  for (const char* const empty : {"", "#version: 0.2\n"}) {
    write_bytes(directory / "merges.txt", empty);
    CHECK_THAT(load_message(directory.path()), Contains("merges.txt: has no merges"));
  }
  // A tokenizer.json goes before the pair, which other programs may read.
  write_bytes(directory / "tokenizer.json", tokenizer_json(true).dump());
  for (const std::string& damaged : {std::string(), short_one, std::string("a\n")}) {
    write_bytes(directory / "merges.txt", damaged);
    REQUIRE(warnings().size() == 1);
    CHECK_THAT(warnings()[0], Contains("merges.txt") && Contains("other programs"));
  }
  write_bytes(directory / "merges.txt", merges);
  CHECK(warnings().empty());
}

TEST_CASE("Merges are passed over for whole tokens if the file says so", "[tokenizer]") {
  Json root = tokenizer_json(true);
  root["model"]["ignore_merges"] = true;
  root["model"]["vocab"]["qqqzz"] = 3000;  // no merge makes it
  const TemporaryDirectory directory;
  write_bytes(directory / "tokenizer.json", root.dump());
  const auto tokenizer = Tokenizer::load(directory.path());
  CHECK(tokenizer->encode("qqqzz") == Ids{3000});
  CHECK(tokenizer->decode(tokenizer->encode("qqqzzz")) == "qqqzzz");
}

TEST_CASE("A vocabulary without some bytes reads texts that do not need them", "[tokenizer]") {
  Json root = tokenizer_json(true);
  const Json vocabulary = root["model"]["vocab"];
  // The name of byte 0xF5, which UTF-8 never has.
  const std::int32_t id = vocabulary["\u00f5"];
  root["model"]["vocab"].erase("\u00f5");
  root["model"]["vocab"]["<|unused|>"] = id;
  const TemporaryDirectory directory;
  write_bytes(directory / "tokenizer.json", root.dump());
  const auto tokenizer = Tokenizer::load(directory.path());
  CHECK(tokenizer->encode("winter \u00e9 \U0001F600") ==
        small_tokenizer().encode("winter \u00e9 \U0001F600"));
  for (const std::size_t length : {1, 100}) {
    const std::string text = std::string(length, 'x') + "\xF5";
    CHECK_THAT(message_of<UserError>([&] { (void)tokenizer->encode(text); }),
               Contains("byte 245") && Contains("has no token"));
  }
  CHECK(tokenizer->decode(Ids{id}) == "<|unused|>");
}

TEST_CASE("Tokens with roles are found in texts as transformers finds them", "[tokenizer]") {
  const auto load = [](const TemporaryDirectory& directory, const char* config, const char* map) {
    copy_fixture(directory, "vocab.json", "merges.txt");
    write_bytes(directory / "tokenizer_config.json", config);
    if (map != nullptr) write_bytes(directory / "special_tokens_map.json", map);
    return Tokenizer::load(directory.path());
  };
  // Ids of transformers 4.46 and 5.24 for "a the and".
  const std::string text = "a the and";
  {
    const TemporaryDirectory directory;
    const auto tokenizer =
        load(directory, R"({"bos_token": "the", "additional_special_tokens": ["and"]})", nullptr);
    CHECK(tokenizer->encode(text + "<|endoftext|>") == Ids{64, 220, 371, 220, 403, 2999});
    CHECK(tokenizer->end_of_text() == 2999);
  }
  {
    const TemporaryDirectory directory;
    const auto tokenizer =
        load(directory, R"({"eos_token": "and"})", R"({"eos_token": {"content": "the"}})");
    CHECK(tokenizer->encode(text) == Ids{64, 220, 371, 299});
    CHECK(tokenizer->end_of_text() == 371);
  }
  {
    const TemporaryDirectory directory;
    const auto tokenizer = load(
        directory,
        R"({"eos_token": "and", "added_tokens_decoder": {"2999": {"content": "<|endoftext|>"}}})",
        R"({"eos_token": "the"})");
    CHECK(tokenizer->encode(text) == Ids{64, 266, 220, 403});
  }
  {
    const TemporaryDirectory directory;
    const auto tokenizer = load(directory, R"({"pad_token": "<pad>"})", nullptr);
    CHECK(tokenizer->vocabulary_size() == 3000);
    CHECK_THAT(message_of<UserError>([&] { (void)tokenizer->encode("a <pad> b"); }),
               Contains("<pad>") && Contains("without an id"));
  }
}

TEST_CASE("Files of a tokenizer are known by their names", "[tokenizer]") {
  const auto names_of = [](const std::string& path) {
    std::vector<std::string> names;
    for (const TokenizerFile& file : tokenizer_files(path)) names.push_back(file.name);
    return names;
  };
  using Names = std::vector<std::string>;
  const TemporaryDirectory directory;
  copy_fixture(directory, "encoder.json", "vocab.bpe");
  write_bytes(directory / "README.md", "");
  CHECK(names_of(directory.path()) == Names{"vocab.json", "merges.txt"});
  std::filesystem::create_directory(directory / "additional_chat_templates");
  write_bytes(directory / "additional_chat_templates/a.jinja", "");
  write_bytes(directory / "chat_template.jinja", "");
  write_bytes(directory / "other.json", tokenizer_json(true).dump());
  CHECK(names_of(directory / "other.json") ==
        Names{"tokenizer.json", "chat_template.jinja", "additional_chat_templates/a.jinja"});
  CHECK(is_tokenizer_file("additional_chat_templates/a.jinja"));
  CHECK_FALSE(is_tokenizer_file("README.md"));
}

TEST_CASE("Ids beyond the vocabulary have no text, as in transformers", "[tokenizer]") {
  CHECK(small_tokenizer().decode(Ids{5000, 30, -1}) == "?");
}

TEST_CASE("Mistakes in tokenizer files are named", "[tokenizer]") {
  const TemporaryDirectory directory;
  SECTION("places") {
    CHECK_THAT(load_message(directory / "none"), Contains("no such tokenizer"));
    CHECK_THAT(load_message(directory.path()), Contains("has no tokenizer"));
    copy_fixture(directory, "vocab.json", "other.txt");
    CHECK_THAT(load_message(directory.path()), Contains("merges.txt: cannot be read"));
  }
  SECTION("JSON") {
    copy_fixture(directory, "other.json", "merges.txt");
    for (const char* text :
         {"", "{", "{\n\n\"a\": 0,\n?}", "[]", "{}", "null", "{\"a\": -1}", "{\"a\": 1e30}",
          "{\"a\": 0.5}", "{\"a\": \"b\"}", "{\"a\": 4000000000}", "{\"a\": 0, \"b\": 0}",
          "{\"\": 0}", "{\"a\": 18446744073709551615}", "\xFF"}) {
      INFO(text);
      write_bytes(directory / "vocab.json", text);
      CHECK_THAT(load_message(directory.path()), Contains("vocab.json"));
    }
    write_bytes(directory / "vocab.json", "{\n\n\"a\": 0,\n?}");
    CHECK_THAT(load_message(directory.path()), Contains("vocab.json:4:"));
  }
  SECTION("merges") {
    copy_fixture(directory, "vocab.json", "other.txt");
    for (const char* line : {"abc", "a b c", " a", "a ", "zzzz qqqq", "a  b"}) {
      INFO(line);
      write_bytes(directory / "merges.txt", std::string("#version: 0.2\nt h\n") + line + "\n");
      CHECK_THAT(load_message(directory.path()), Contains("merges.txt:3: "));
    }
  }
  SECTION("other kinds of tokenizer.json") {
    const Json good = tokenizer_json(false);
    const std::vector<std::pair<const char*, Json>> changes = {
        {"/model/type", "WordPiece"},
        {"/model/type", 3},
        {"/model", 3},
        {"/model/vocab", Json::array()},
        {"/model/merges", "t h"},
        {"/model/merges/0", {"t", "h", "e"}},
        {"/model/merges/0", 3},
        {"/model/merges/0", "zz qqq"},
        {"/model/dropout", 0.1},
        {"/model/byte_fallback", true},
        {"/model/end_of_word_suffix", "</w>"},
        {"/normalizer", {{"type", "NFC"}}},
        {"/pre_tokenizer", nullptr},
        {"/pre_tokenizer/type", "Whitespace"},
        {"/pre_tokenizer/use_regex", false},
        {"/pre_tokenizer/add_prefix_space", "yes"},
        {"/post_processor/type", "TemplateProcessing"},
        {"/decoder/type", "Metaspace"},
        {"/added_tokens", 3},
        {"/added_tokens/0", 3},
        {"/added_tokens/0/id", 5},
        {"/added_tokens/0/id", "x"},
        {"/added_tokens/0/content", ""},
        {"/added_tokens/0/lstrip", true},
    };
    for (const auto& [where, value] : changes) {
      INFO(where << " = " << value.dump());
      Json bad = good;
      bad[Json::json_pointer(where)] = value;
      write_bytes(directory / "tokenizer.json", bad.dump());
      CHECK_THAT(load_message(directory.path()), Contains("tokenizer.json: "));
    }
    for (const char* text : {"[]", "3", "{}", "\"x\""}) {
      write_bytes(directory / "tokenizer.json", text);
      CHECK_THAT(load_message(directory.path()), Contains("tokenizer.json: "));
    }
    write_bytes(directory / "tokenizer.json", good.dump());
    for (const char* config :
         {R"({"tokenizer_class": "RobertaTokenizer"})", R"({"split_special_tokens": true})",
          R"({"fast_tokenizer_files": ["tokenizer.4.0.json"]})"}) {
      INFO(config);
      write_bytes(directory / "tokenizer_config.json", config);
      CHECK_THAT(load_message(directory.path()), Contains("tokenizer_config.json: "));
    }
  }
  SECTION("an end of text that is no token") {
    copy_fixture(directory, "vocab.json", "merges.txt");
    write_bytes(directory / "tokenizer_config.json", R"({"eos_token": "</s>"})");
    CHECK_THAT(load_message(directory.path()), Contains("end-of-text"));
  }
}

}  // namespace
}  // namespace deltapipe
