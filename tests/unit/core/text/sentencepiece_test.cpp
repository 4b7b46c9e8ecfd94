// SPDX-License-Identifier: BSD-3-Clause
// Unigram tokenizers against transformers' DebertaV2Tokenizer and DebertaV2TokenizerFast
// (tests/golden/make_sentencepiece_fixtures.py), and their files.
#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "core/base/error.hpp"
#include "core/base/utf8.hpp"
#include "core/text/charsmap.hpp"
#include "core/text/grapheme_class.hpp"
#include "core/text/sentencepiece_model.hpp"
#include "core/text/tokenizer_files.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
const std::string kModel = DELTAPIPE_FIXTURES "/sentencepiece/spm.model";

const Json& expected() {
  static const Json values =
      Json::parse(read_bytes(DELTAPIPE_FIXTURES "/sentencepiece/expected.json"));
  return values;
}

const SentencePieceModel& model() {
  static const SentencePieceModel made = read_sentencepiece_model(kModel, read_bytes(kModel));
  return made;
}

std::string base64(const std::string& bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t three = 0;
    for (std::size_t j = 0; j < 3; ++j)
      three = three << 8 | (i + j < bytes.size() ? static_cast<unsigned char>(bytes[i + j]) : 0u);
    for (int j = 0; j < 4; ++j)
      text += i + static_cast<std::size_t>(j) > bytes.size() ? '='
                                                             : kDigits[three >> (18 - 6 * j) & 63];
  }
  return text;
}

/// A tokenizer.json that transformers wrote, with the pieces and the character map of the model.
Json whole_file(const Json& made) {
  Json whole = made["json"];
  for (const SentencePiece& piece : model().pieces)
    whole["model"]["vocab"].push_back(Json::array({piece.text, double{piece.score}}));
  for (Json& step : whole["normalizer"]["normalizers"])
    if (step["type"] == "Precompiled")
      step["precompiled_charsmap"] = base64(model().precompiled_charsmap);
  return whole;
}

/// A directory with a tokenizer_config.json and other files.
struct Directory : TemporaryDirectory {
  explicit Directory(const Json& config = Json::object()) {
    write("tokenizer_config.json", config);
  }
  void write(const std::string& name, const Json& content) const {
    write_bytes(path() + "/" + name, content.dump());
  }
  std::unique_ptr<const Tokenizer> load() const { return Tokenizer::load(path()); }
  std::string message() const {
    return message_of<UserError>([&] { load(); });
  }
};

/// A directory with the spm.model, or with these bytes in its place.
struct ModelDirectory : Directory {
  explicit ModelDirectory(const Json& config = Json::object(),
                          const std::string& bytes = read_bytes(kModel))
      : Directory(config) {
    write_bytes(path() + "/spm.model", bytes);
  }
};

/// A directory with a tokenizer.json that transformers wrote.
struct JsonDirectory : Directory {
  explicit JsonDirectory(const Json& made = expected()["jsons"][0], const Json& patch = {},
                         const Json& config = Json::object())
      : Directory(config) {
    Json whole = whole_file(made);
    if (patch.is_object()) whole.merge_patch(patch);
    write("tokenizer.json", whole);
  }
};

const std::vector<std::string>& lines() {
  static const std::vector<std::string> texts = lines_and(expected()["special"]);
  return texts;
}

/// Characters of all classes that graphemes depend on, in any order.
std::vector<std::string> mixtures() {
  constexpr std::size_t kMixtures = 60, kLength = 500;
  const auto characters = expected()["mixed"].get<std::vector<std::string>>();
  std::vector<std::string> texts(kMixtures);
  for (std::size_t i = 0; i < kMixtures; ++i)
    for (std::size_t j = 0; j < kLength; ++j)
      texts[i] += characters[splitmix64(i * kLength + j) % characters.size()];
  return texts;
}

void check_all(const Tokenizer& tokenizer, const Json& made) {
  check_texts(tokenizer, lines(), made["lines"]);
  check_texts(tokenizer, mixtures(), made["mixtures"]);
  check_ids(tokenizer.encode(drawn_megabyte(lines())), made["megabyte"]);
  check_texts(tokenizer, every_character(), made["blocks"]);
  const TextMarks marks = tokenizer.marks();
  Ids ids = {marks.begin};
  tokenizer.encode_to("The first text", ids);
  ids.push_back(marks.separator);
  tokenizer.encode_to("and the second", ids);
  ids.push_back(marks.separator);
  CHECK(ids == made["pair"].get<Ids>());
  CHECK(marks.padding == 0);
  CHECK(tokenizer.end_of_text() == -1);
  CHECK(tokenizer.vocabulary_size() == 2001);
}

/// A replacement in a copy of the model.
template <class Change>
std::string changed_model(const Change& change) {
  SentencePieceModel copy = model();
  change(copy);
  return serialized(copy);
}

}  // namespace

TEST_CASE("An spm.model has the ids of DebertaV2Tokenizer", "[tokenizer][sentencepiece]") {
  check_all(*ModelDirectory().load(), expected()["model"]);
}

TEST_CASE("A tokenizer.json has the ids of DebertaV2TokenizerFast", "[tokenizer][sentencepiece]") {
  for (const Json& made : expected()["jsons"]) {
    INFO(made["config"].dump());
    check_all(*JsonDirectory(made).load(), made);
  }
}

TEST_CASE("Bytes outside of UTF-8 are U+FFFD", "[tokenizer][sentencepiece]") {
  const auto from_model = ModelDirectory().load();
  const auto from_json = JsonDirectory().load();
  std::size_t checked = 0;
  for (const std::string& line : mixed_lines().all) {
    if (is_valid_utf8(line)) continue;
    INFO(line);
    check_ids(from_model->encode(line), expected()["malformed"][checked++]);
    std::string valid;
    for (std::size_t i = 0; i < line.size();) {
      char32_t c = 0xFFFD;
      i += std::max(utf8_sequence(line.substr(i), c), std::size_t{1});
      append_utf8(c, valid);
    }
    CHECK(from_json->encode(line) == from_json->encode(valid));
  }
  CHECK(checked == expected()["malformed"].size());
  CHECK(checked > 0);
}

TEST_CASE("Graphemes end as Unicode defines them", "[tokenizer][sentencepiece]") {
  // Expected lengths from the examples of Unicode Standard Annex 29.
  const auto [text, length] = GENERATE(table<std::string, std::size_t>({
      {"ab", 1},
      {"a\u0301b", 3},
      {"\r\n", 2},
      {"\n\u0301", 1},
      {"\u0600a", 3},
      {"\u1112\u1161\u11ab\u1112", 9},
      {"\uac00\u11a8\u1161", 6},
      {"\u0915\u094d\u0937", 9},
      {"\u0915\u0937", 3},
      {"\U0001f469\u200d\U0001f680x", 11},
      {"a\u200d\U0001f680", 4},
  }));
  INFO(text);
  CHECK(grapheme_length(text) == length);
}

TEST_CASE("A Unigram text may be cut before a space", "[tokenizer][sentencepiece]") {
  const Json& made = expected()["jsons"][GENERATE(range(0, 5))];
  const auto tokenizer = JsonDirectory(made).load();
  std::size_t cuts = 0;
  for (const std::string& line : lines()) {
    const std::size_t cut = tokenizer->safe_cut(line);
    INFO(line << " at " << cut);
    Ids ids = tokenizer->encode(line.substr(0, cut));
    tokenizer->encode_to(line.substr(cut), ids);
    REQUIRE(ids == tokenizer->encode(line));
    cuts += cut > 0 ? 1 : 0;
  }
  CHECK(cuts > 100);
  CHECK(tokenizer->safe_cut("") == 0);
  CHECK(tokenizer->safe_cut("one two ") == 3);
  CHECK(tokenizer->safe_cut("one\u0301 two") == 0);
  CHECK(tokenizer->safe_cut("one  two") == 0);
  // A space before an added token ends a part of the whole text, but would begin one after a cut.
  const Json only_left = Json::parse(
      R"({"normalizer": {"normalizers": [{"type": "Strip", "strip_left": true, "strip_right": false}]}})");
  CHECK(JsonDirectory(made, only_left).load()->safe_cut("it's [CLS]") == 0);
  // The sums of scores in a whole text are rounded, so that a cut may change ids.
  CHECK(ModelDirectory().load()->safe_cut("one two") == 0);
}

TEST_CASE("Unigram ids become text again", "[tokenizer][sentencepiece]") {
  for (const Json& made : expected()["jsons"]) {
    const auto tokenizer = JsonDirectory(made).load();
    for (std::size_t i = 0; i < made["decoded"].size(); ++i) {
      const std::string text = expected()["special"][i];
      INFO(text);
      CHECK(tokenizer->decode(tokenizer->encode(text)) == made["decoded"][i].get<std::string>());
    }
    CHECK(tokenizer->decode(Ids{-1, tokenizer->vocabulary_size()}).empty());
  }
}

TEST_CASE("Unigram tokenizers with other ids have other hashes", "[tokenizer][sentencepiece]") {
  std::set<std::string> hashes{small_tokenizer().hash()};
  std::size_t count = 1;
  const auto add = [&](const Directory& directory) {
    hashes.insert(directory.load()->hash());
    CHECK(hashes.size() == ++count);
  };
  add(ModelDirectory());
  for (const Json& made : expected()["jsons"]) add(JsonDirectory(made));
  add(ModelDirectory(Json::object(), changed_model([](auto& m) { m.pieces[9].score -= 1; })));
  add(ModelDirectory(Json::object(),
                     changed_model([](auto& m) { m.precompiled_charsmap.clear(); })));
  add(ModelDirectory(Json::object(), changed_model([](auto& m) { m.add_dummy_prefix = false; })));
  add(ModelDirectory(Json{{"mask_token", "<mask>"}}));
  add(JsonDirectory(expected()["jsons"][0], Json::parse(R"({"model": {"unk_id": 5}})")));
  add(JsonDirectory(expected()["jsons"][0], Json::parse(R"({"normalizer": null})")));
  Json scores = {{"model", {{"vocab", whole_file(expected()["jsons"][0])["model"]["vocab"]}}}};
  scores["model"]["vocab"][9][1] = -1;
  add(JsonDirectory(expected()["jsons"][0], scores));
  CHECK(ModelDirectory().load()->hash() == ModelDirectory().load()->hash());
  CHECK(ModelDirectory(Json::object(), serialized(model())).load()->hash() ==
        ModelDirectory().load()->hash());
}

TEST_CASE("Files of Unigram tokenizers are found and copied", "[tokenizer][sentencepiece]") {
  using Names = std::vector<std::string>;
  const auto names_of = [](const std::string& path) {
    Names names;
    for (const TokenizerFile& file : tokenizer_files(path)) names.push_back(file.name);
    return names;
  };
  const ModelDirectory directory;
  CHECK(has_tokenizer_files(directory.path()));
  CHECK(is_tokenizer_file("spm.model"));
  CHECK(is_tokenizer_file("spiece.model"));
  CHECK(names_of(directory.path()) == Names{"tokenizer_config.json", "spm.model"});
  directory.write("tokenizer.json", whole_file(expected()["jsons"][0]));
  CHECK(names_of(directory.path()) ==
        Names{"tokenizer.json", "tokenizer_config.json", "spm.model"});
  // A copy of the model alone is read as the model alone.
  CHECK(names_of(directory / "spm.model") == Names{"spm.model", "tokenizer_config.json"});
  CHECK(Tokenizer::load(directory / "spm.model")->hash() == ModelDirectory().load()->hash());
  CHECK(directory.load()->hash() == JsonDirectory().load()->hash());
}

TEST_CASE("An spm.model may lack tokens with a role", "[tokenizer][sentencepiece]") {
  const auto id_of = [](const Tokenizer& tokenizer, const std::string& text) {
    return tokenizer.encode(text).front();
  };
  const auto plain = ModelDirectory().load();
  CHECK(id_of(*plain, "[MASK]") == 2000);
  // transformers numbers them in the order of its roles.
  const auto more = ModelDirectory(Json{{"mask_token", "<mask>"},
                                        {"cls_token", "<cls>"},
                                        {"pad_token", "<pad>"},
                                        {"additional_special_tokens", {"<more>"}}})
                        .load();
  CHECK(id_of(*more, "<pad>") == 2000);
  CHECK(id_of(*more, "<cls>") == 2001);
  CHECK(id_of(*more, "<mask>") == 2002);
  CHECK(id_of(*more, "<more>") == 2003);
  CHECK(more->marks().begin == 2001);
  CHECK(more->marks().padding == 2000);
  const ModelDirectory older;
  older.write("added_tokens.json", {{"[MASK]", 2050}});
  CHECK(id_of(*older.load(), "[MASK]") == 2050);
  CHECK(older.load()->vocabulary_size() == 2051);
}

TEST_CASE("Normalised added tokens are searched in normalised texts",
          "[tokenizer][sentencepiece]") {
  const Json added = Json::parse(R"({"added_tokens": [
    {"id": 2001, "content": "Ｎew", "normalized": true, "special": false},
    {"id": 2002, "content": "<Ｒaw>", "normalized": false, "special": false}]})");
  const auto tokenizer = JsonDirectory(expected()["jsons"][0], added).load();
  CHECK(tokenizer->encode("New") == Ids{2001});
  CHECK(tokenizer->encode("Ｎew") == Ids{2001});
  CHECK(tokenizer->encode("<Ｒaw>") == Ids{2002});
  CHECK(tokenizer->encode("<Raw>") != Ids{2002});
  const Json twice = Json::parse(R"({"added_tokens": [
    {"id": 2001, "content": "Ｎew", "normalized": true},
    {"id": 2002, "content": "New", "normalized": true}]})");
  CHECK_THAT(JsonDirectory(expected()["jsons"][0], twice).message(),
             Contains("tokenizer.json: two added tokens are the same in normalised text"));
}

TEST_CASE("A run of unknown characters may be a token", "[tokenizer][sentencepiece]") {
  // Ids of transformers 4.46 and tokenizers 0.20.
  const std::string name = "\U00010380\U00010381";
  const ModelDirectory directory(Json::object(), changed_model([&](auto& m) {
                                   m.pieces[1999] = {name, 0, PieceKind::control};
                                 }));
  CHECK(directory.load()->encode(name) == Ids{4, 1999});
  CHECK(directory.load()->encode(name + name) == Ids{4, 3});
  const Json scores = Json::parse(R"({"added_tokens": [], "model": {"vocab": [["[PAD]", 100],
    ["[CLS]", 100], ["[SEP]", 100], ["[UNK]", 100], ["▁", 100], ["xy", 100]]}})");
  const auto tokenizer = JsonDirectory(expected()["jsons"][0], scores).load();
  CHECK(tokenizer->encode("xy") == Ids{4, 5});
  CHECK(tokenizer->encode("yx") == Ids{4, 3});
}

TEST_CASE("An unknown character costs 10 more than the worst piece", "[tokenizer][sentencepiece]") {
  // "ab" with -12, or "a" and an unknown character with -12 - 10.
  const auto [score, ids] = GENERATE(table<double, Ids>({{9, {5}}, {11, {6, 3}}}));
  Json scores = Json::parse(R"({"added_tokens": [], "model": {"vocab": [["[PAD]", 0],
    ["[CLS]", 0], ["[SEP]", 0], ["[UNK]", 0], ["▁", 0], ["▁ab", -12], ["▁a", 0]]}})");
  scores["model"]["vocab"][6][1] = score;
  CHECK(JsonDirectory(expected()["jsons"][0], scores).load()->encode("ab") == ids);
}

TEST_CASE("A damaged spm.model is refused", "[tokenizer][sentencepiece]") {
  const std::string whole = read_bytes(kModel);
  SECTION("cut off") {
    for (std::size_t size = 0; size < whole.size(); size += size < 200 ? 1 : 977) {
      INFO(size);
      const ModelDirectory directory(Json::object(), whole.substr(0, size));
      const std::string message = directory.message();
      CHECK_THAT(message, Contains("spm.model: "));
    }
  }
  SECTION("bytes changed") {
    for (std::uint64_t i = 0; i < 300; ++i) {
      std::string bytes = whole;
      for (std::uint64_t j = 0; j < 4; ++j)
        bytes[splitmix64(8 * i + 2 * j) % bytes.size()] =
            static_cast<char>(splitmix64(8 * i + 2 * j + 1));
      const ModelDirectory directory(Json::object(), bytes);
      try {
        const auto tokenizer = directory.load();
        for (const std::int32_t id : tokenizer->encode(lines()[i % lines().size()]))
          REQUIRE((id >= 0 && id < tokenizer->vocabulary_size()));
      } catch (const UserError& error) {
        CHECK_THAT(error.what(), Contains(directory.path()));
      }
    }
  }
  SECTION("lies") {
    const auto check = [](const std::string& expected_message, const auto& change) {
      CHECK_THAT(ModelDirectory(Json::object(), changed_model(change)).message(),
                 Contains("spm.model: ") && Contains(expected_message));
    };
    check("of another kind than unigram (got 2)", [](auto& m) { m.model_type = 2; });
    check("the score of piece 7 is not finite",
          [](auto& m) { m.pieces[7].score = std::numeric_limits<float>::quiet_NaN(); });
    check("the score of piece 7 is not finite",
          [](auto& m) { m.pieces[7].score = std::numeric_limits<float>::infinity(); });
    check("piece 7 is empty", [](auto& m) { m.pieces[7].text.clear(); });
    check("piece 7 is not UTF-8 text", [](auto& m) { m.pieces[7].text = "\xff"; });
    check("piece 7 is not UTF-8 text", [](auto& m) { m.pieces[7].text = {'a', '\0', 'b'}; });
    check("the model has a piece twice", [](auto& m) { m.pieces[7].text = m.pieces[8].text; });
    check("piece 7 has an unknown type (got 9)",
          [](auto& m) { m.pieces[7].kind = static_cast<PieceKind>(9); });
    check("must have exactly one unknown piece (got 0)",
          [](auto& m) { m.pieces[3].kind = PieceKind::normal; });
    check("must have exactly one unknown piece (got 2)",
          [](auto& m) { m.pieces[7].kind = PieceKind::unknown; });
    check("does not fit byte_fallback (got 1)",
          [](auto& m) { m.pieces[7].kind = PieceKind::byte; });
    check("does not fit byte_fallback (got 0)", [](auto& m) { m.byte_fallback = true; });
    check("libsentencepiece refuses the model", [](auto& m) {
      for (SentencePiece& piece : m.pieces)
        if (piece.kind == PieceKind::normal) piece.kind = PieceKind::control;
    });
    check("too many user-defined pieces begin with others", [](auto& m) {
      for (std::size_t i = 100; i < 170; ++i)
        m.pieces[i] = {std::string(i, '#'), 0, PieceKind::user_defined};
    });
    check("this is not a SentencePiece model: it has no pieces", [](auto& m) { m.pieces.clear(); });
  }
}

TEST_CASE("A damaged character map is refused", "[tokenizer][sentencepiece]") {
  const auto [what, change] = GENERATE(table<std::string, std::function<void(std::string&)>>({
      {"its sizes do not fit (got 0 of 2 bytes)", [](std::string& map) { map.resize(2); }},
      {"its sizes do not fit", [](std::string& map) { map[0] = 1; }},
      {"its sizes do not fit", [](std::string& map) { map[3] = '\x7f'; }},
      {"its last text has no end", [](std::string& map) { map.back() = 'x'; }},
      {"a replacement is not UTF-8", [](std::string& map) { map[map.size() - 2] = '\xff'; }},
      {"a state is outside of the array", [](std::string& map) { map[7] = '\x7f'; }},
  }));
  std::string map = model().precompiled_charsmap;
  change(map);
  CHECK_THAT(message_of<UserError>([&] { Charsmap("a file", map); }),
             Contains("a file: the precompiled_charsmap is damaged: " + what));
  CHECK_THAT(
      ModelDirectory(Json::object(), changed_model([&](auto& m) { m.precompiled_charsmap = map; }))
          .message(),
      Contains("spm.model: the precompiled_charsmap is damaged: " + what));
}

TEST_CASE("Loops and long chains in a character map are refused", "[tokenizer][sentencepiece]") {
  // A double array whose states are blocks of 256 units; from each, 'a' leads to the next.
  const auto map_with = [](std::size_t blocks, bool loops) {
    std::vector<std::uint32_t> units(256 * (blocks + 1), 1u << 31);
    units[0] = 256 << 10;
    for (std::size_t block = 1; block < blocks; ++block) {
      const std::size_t position = 256 * block + 'a';
      const std::size_t next = 256 * (loops && block + 1 == blocks ? 1 : block + 1);
      units[position] = static_cast<std::uint32_t>((position ^ next) << 10 | 256 | 'a');
    }
    std::string bytes;
    const auto put = [&](std::uint32_t number) {
      for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(number >> shift);
    };
    put(static_cast<std::uint32_t>(4 * units.size()));
    for (const std::uint32_t unit : units) put(unit);
    return bytes + "x" + '\0';
  };
  const Charsmap map("", map_with(33, false));
  CHECK(map.shortest("aaa") == "x");
  CHECK(map.shortest("b") == std::nullopt);
  CHECK_THAT(message_of<UserError>([&] { Charsmap("", map_with(34, false)); }),
             Contains("too many of its strings begin with others"));
  CHECK_THAT(message_of<UserError>([&] { Charsmap("", map_with(4, true)); }),
             Contains("its strings have no end"));
}

TEST_CASE("Settings that an spm.model lacks are refused", "[tokenizer][sentencepiece]") {
  const auto [config, message] = GENERATE(table<std::string, std::string>(
      {{R"({"tokenizer_class": "AlbertTokenizer"})", "has its own rules for tokens"},
       {R"({"do_lower_case": true})", "do_lower_case is not supported with an spm.model"},
       {R"({"split_by_punct": true})", "split_by_punct is not supported with an spm.model"},
       {R"({"do_lower_case": 1})", "'do_lower_case' is not a boolean"},
       {R"({"sp_model_kwargs": {"enable_sampling": true}})", "sp_model_kwargs is not supported"},
       {R"({"split_special_tokens": true})", "split_special_tokens"},
       {R"({"additional_special_tokens": [1]})", "a special token has no text (got 1)"},
       {R"({"added_tokens_decoder": {"2000": {"content": "[PAD]"}}})",
        "has another id in the vocabulary (got 2000)"},
       {R"({"added_tokens_decoder": {"2000": {"content": "x y", "lstrip": true}}})",
        "asks for lstrip"},
       {R"({"added_tokens_decoder": {"7": {"content": "<x>"}}})", "two tokens have the same id"},
       {R"({"added_tokens_decoder": {"999999": {"content": "<x>"}}})", "no usable id"}}));
  CHECK_THAT(ModelDirectory(Json::parse(config)).message(), Contains(message));
}

TEST_CASE("An spiece.model needs a tokenizer class", "[tokenizer][sentencepiece]") {
  const ModelDirectory directory;
  std::filesystem::rename(directory / "spm.model", directory / "spiece.model");
  CHECK_THAT(directory.message(), Contains("do not name the tokenizer's rules"));
  directory.write("tokenizer_config.json", {{"tokenizer_class", "DebertaV2Tokenizer"}});
  CHECK(directory.load()->hash() == ModelDirectory().load()->hash());
}

TEST_CASE("Unigram tokenizer.json that cannot be used are refused", "[tokenizer][sentencepiece]") {
  const auto [patch, message] = GENERATE(table<std::string, std::string>(
      {{R"({"normalizer": {"type": "NFD"}})", "the normalizer has an unknown step (got \"NFD\")"},
       {R"({"normalizer": {"normalizers": [{"type": "Replace", "content": "x",
            "pattern": {"Regex": "\\s{2,}|[\\n\\r\\t]"}}]}})",
        "the normalizer has an unknown Replace"},
       {R"({"normalizer": {"normalizers": [{"type": "Replace", "content": "x",
            "pattern": {"Regex": " {2,}"}}]}})",
        "the normalizer has an unknown Replace"},
       {R"({"normalizer": {"normalizers": [{"type": "Precompiled"}]}})", "is not a text"},
       {R"({"normalizer": {"normalizers": [{"type": "Precompiled",
            "precompiled_charsmap": "a*=="}]}})",
        "is not base64"},
       {R"({"normalizer": {"normalizers": [{"type": "Precompiled",
            "precompiled_charsmap": "abc"}]}})",
        "is not base64"},
       {R"({"normalizer": {"normalizers": [{"type": "Precompiled",
            "precompiled_charsmap": "abcdabcdabcd"}]}})",
        "precompiled_charsmap is damaged"},
       {R"({"normalizer": {"normalizers": [{"type": "Strip", "strip_left": 1}]}})",
        "'strip_left' is not a boolean"},
       {R"({"pre_tokenizer": null})", "the pre_tokenizer is not that of DeBERTa"},
       {R"({"pre_tokenizer": {"type": "Whitespace"}})", "the pre_tokenizer is not that of DeBERTa"},
       {R"({"pre_tokenizer": {"pretokenizers": [{"type": "Punctuation", "behavior": "Removed"},
            {"type": "Metaspace"}]}})",
        "unknown Punctuation (got \"Removed\")"},
       {R"({"pre_tokenizer": {"pretokenizers": [{"type": "Metaspace",
            "prepend_scheme": "first"}]}})",
        "unknown prepend_scheme (got \"first\")"},
       {R"({"pre_tokenizer": {"pretokenizers": [{"type": "Metaspace", "split": false}]}})",
        "Metaspace does not split"},
       {R"({"pre_tokenizer": {"pretokenizers": [{"type": "Metaspace", "replacement": "_"}]}})",
        "another replacement than U+2581"},
       {R"({"post_processor": {"type": "RobertaProcessing"}})", "unknown post_processor"},
       {R"({"post_processor": {"single": [{"Sequence": {"id": "A"}}]}})",
        "the post_processor is not that of BERT"},
       {R"({"model": {"vocab": []}})", "not a list of pieces and scores"},
       {R"({"model": {"vocab": {"a": 1}}})", "not a list of pieces and scores"},
       {R"({"model": {"vocab": [["[CLS]", 0, 1]]}})", "is not a piece and its score"},
       {R"({"model": {"vocab": [["[CLS]", "x"]]}})", "is not a piece and its score"},
       {R"({"model": {"vocab": [["a", 0], ["a", 1]]}})", "the vocabulary has a token twice"},
       {R"({"model": {"vocab": [["", 0]]}})", "a token is empty"},
       {R"({"model": {"unk_id": 2000}})", "unk_id is not the id of a piece (got 2000)"},
       {R"({"model": {"unk_id": null}})", "unk_id is not the id of a piece (got null)"},
       {R"({"model": {"unk_id": -1}})", "unk_id is not the id of a piece (got -1)"},
       {R"({"model": {"byte_fallback": true}})", "the model has byte_fallback"},
       {R"({"added_tokens": {}})", "'added_tokens' is not a list"},
       {R"({"added_tokens": [{"content": "<x>"}]})", "no usable id"},
       {R"({"added_tokens": [{"content": "[CLS]", "id": 5}]})", "has another id"}}));
  INFO(patch);
  CHECK_THAT(JsonDirectory(expected()["jsons"][0], Json::parse(patch)).message(),
             Contains(message) && Contains("tokenizer.json: "));
}

TEST_CASE("Settings that contradict a Unigram tokenizer.json are refused",
          "[tokenizer][sentencepiece]") {
  const auto [number, config, message] = GENERATE(table<std::size_t, std::string, std::string>(
      {{0, R"({"do_lower_case": true})", "does not have the setting do_lower_case (got true)"},
       {0, R"({"split_by_punct": true})", "does not have the setting split_by_punct (got true)"},
       {3, R"({"do_lower_case": false})", "does not have the setting do_lower_case (got false)"},
       {3, R"({"split_by_punct": false})", "does not have the setting split_by_punct (got false)"},
       {0, R"({"tokenizer_class": "T5Tokenizer"})", "has its own rules for tokens"},
       {0, R"({"cls_token": "<cls>"})", "the vocabulary lacks the cls_token"}}));
  CHECK_THAT(JsonDirectory(expected()["jsons"][number], {}, Json::parse(config)).message(),
             Contains(message));
}

}  // namespace deltapipe
