// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/json.hpp"

#include <sys/resource.h>

#include <catch2/catch.hpp>

#include "core/base/error.hpp"
#include "core/files/input_file.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

namespace {

std::string message(const std::string& text, JsonSource source = {.file = "a.json"}) {
  return message_of<UserError>([&] { parse_json(text, source); });
}

std::string nested(int depth, const std::string& open, const std::string& close) {
  std::string text;
  for (int i = 0; i < depth; ++i) text += open;
  text += "1";
  for (int i = 0; i < depth; ++i) text += close;
  return text;
}

std::vector<std::string> members(const std::string& text, const std::string& unwanted = "") {
  std::vector<std::string> found;
  for_each_json_member(
      text, {.file = "a.json"}, [&](const std::string& key) { return key != unwanted; },
      [&](const std::string& key, Json&& value) { found.push_back(key + "=" + value.dump()); });
  return found;
}

/// Processor seconds of a call, the smaller of two.
template <class Function>
double seconds_of(const Function& function) {
  double best = 1e9;
  for (int i = 0; i < 2; ++i) {
    const std::clock_t start = std::clock();
    function();
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

}  // namespace

TEST_CASE("JSON values are those of the parser beneath", "[json]") {
  for (const char* text :
       {"null", "true", " -3 ", "18446744073709551615", "1.5e3", "\"\\u00e9\\n\"", "[]", "{}",
        R"([1, [2, {"a": [3, []]}], "x"])", R"({"b": {"c": null, "a": [{}, {"d": 1}]}, "a": 2})"}) {
    CHECK(parse_json(text, {}) == Json::parse(text));
  }
}

TEST_CASE("Mistakes in JSON are named with line and column", "[json]") {
  CHECK(message("{\"a\":\n 1,\n }") ==
        "a.json:3:2: is not valid JSON: syntax error while parsing object key - unexpected '}'; "
        "expected string literal; copy or download the file again");
  CHECK(message("[1e400]") ==
        "a.json:1:7: is not valid JSON: number overflow parsing '1e400'; copy or download the file "
        "again");
  CHECK_THAT(message("{\"a\": 1,\n\"a\": 2}"),
             Catch::StartsWith("a.json:2:3: has the key 'a' twice"));
  CHECK_THAT(message("[{\"a\":[{\"b\":1,\"b\":2}]}]"), Catch::Contains("has the key 'b' twice"));
  CHECK_THAT(message(""), Catch::StartsWith("a.json:1:1: is not valid JSON: "));
  CHECK_THAT(message(std::string("[1]\n\0", 5)),
             Catch::StartsWith("a.json:2:1: ") && Catch::Contains("NUL"));
  CHECK_THAT(message("\"\xff\""), Catch::Contains("ill-formed UTF-8") && Catch::Contains("\\xFF"));
  CHECK_THAT(message("[1] 2"), Catch::Contains("expected end of input"));
  CHECK_THAT(message("{", {.file = "b", .line = 17}), Catch::StartsWith("b:17:1: "));
  CHECK_THAT(message("[x", {.file = "b", .line = 0, .subject = "its header "}),
             Catch::StartsWith("b: its header is not valid JSON") &&
                 Catch::Contains("(byte 2 of the JSON text)"));
  // The library repeats the token that it stopped at.
  CHECK(message("\"" + std::string(1'000'000, 'x') + "\x01\"").size() < 400);
}

TEST_CASE("Python's words for numbers that are not finite", "[json]") {
  const JsonSource null{.file = "a.json", .nan_is_null = true};
  CHECK(parse_json(R"({"a": [NaN, -Infinity, Infinity], "NaN\\": "\"NaN", "b": 1})", null) ==
        Json::parse(R"({"a": [null, null, null], "NaN\\": "\"NaN", "b": 1})"));
  CHECK_THAT(message("[NaN]", null), !Catch::Contains("not valid"));
  CHECK_THAT(message("[NaNa]", null), Catch::Contains("not valid"));
  CHECK_THAT(message("[NaN]"), Catch::EndsWith("write a number or null instead"));
  CHECK_THAT(message("[\"\\ud83d\"]"), Catch::Contains("half of a pair"));
}

TEST_CASE("JSON is nested to its limit and no further", "[json]") {
  CHECK(message(nested(64, "[", "]")).empty());
  CHECK(message(nested(64, "{\"a\":", "}")).empty());
  CHECK(message(nested(65, "[", "]")) ==
        "a.json:1:65: is nested deeper than 64 levels; copy or download the file again");
  CHECK_THAT(message(nested(65, "{\"a\":", "}")), Catch::Contains("deeper than 64"));
  CHECK_THAT(message(std::string(10'000'000, '[')), Catch::Contains("deeper than 64"));
  CHECK_THAT(message_of<UserError>([] { members("{\"a\":" + std::string(1'000'000, '[')); }),
             Catch::Contains("deeper than 64"));
  // Also where nobody reads the value.
  CHECK_THAT(message_of<UserError>([] { members("{\"a\":" + std::string(100'000, '['), "a"); }),
             Catch::Contains("deeper than 64"));
}

TEST_CASE("The number of values in JSON is limited", "[json]") {
  const JsonSource ten{.file = "a.json", .max_values = 10};
  CHECK(message("[1,2,3,4,5,6,7,8,9]", ten).empty());
  CHECK_THAT(message("[1,2,3,4,5,6,7,8,9,10]", ten), Catch::Contains("too many values"));
}

TEST_CASE("Members of a JSON object come one by one", "[json]") {
  CHECK(members("{}").empty());
  CHECK(members(R"({"b": [1, {"c": 2}], "a": {"b": {}}, "c": null})") ==
        std::vector<std::string>{"b=[1,{\"c\":2}]", "a={\"b\":{}}", "c=null"});
  CHECK(members(R"({"a": 1, "b": [1, {"c": [2], "d": {}}], "c": {"x": 1}})", "b") ==
        std::vector<std::string>{"a=1", "c={\"x\":1}"});
  CHECK(members(R"({"a": {"x": {"y": 1}}, "b": 2})", "a") == std::vector<std::string>{"b=2"});
  CHECK(members(R"({"a": 1, "b": 2})", "b") == std::vector<std::string>{"a=1"});
  for (const char* text : {"[]", "[{}]", "3", "\"a\"", "null"}) {
    CHECK_THAT(message_of<UserError>([&] { members(text); }),
               Catch::Contains("is not a JSON object"));
  }
  CHECK_THAT(message_of<UserError>([&] { members(R"({"a":1,"a":2})", "a"); }),
             Catch::Contains("has the key 'a' twice"));
}

TEST_CASE("Time for JSON grows with its keys, not with their square", "[json]") {
  const auto object = [](int keys) {
    std::string text = "{";
    for (int i = 0; i < keys; ++i) text += (i > 0 ? ",\"k" : "\"k") + std::to_string(i) + "\":1";
    return text + "}";
  };
  const std::string small = object(20'000), large = object(160'000);
  // 8 times the keys; the square would be 64 times the time.
  CHECK(seconds_of([&] { parse_json(large, {}); }) <
        32 * seconds_of([&] { parse_json(small, {}); }) + 0.05);
  CHECK(seconds_of([&] { members(large); }) < 32 * seconds_of([&] { members(small); }) + 0.05);
}

TEST_CASE("Long values are shown shortened and short ones whole", "[json]") {
  for (const char* text : {"null", "3", "\"a\\nb\"", "[1,[2,{\"a\":[]}],\"x\"]", "{}"}) {
    CHECK(shown(Json::parse(text)) == text);
  }
  CHECK(shown(Json(std::string(100'000, 'x'))) == "\"" + std::string(59, 'x') + "...");
  CHECK(shown(Json(std::vector<int>(100'000, 1))).size() == 63);
  CHECK(shown(Json::parse("{\"" + std::string(100'000, 'k') + "\": 1}")).size() == 63);
  CHECK(shown(Json("\x1b\u009b")) == "\"\\u001b\\u{9B}\"");
}

TEST_CASE("A JSON file is limited in size", "[json]") {
  const TemporaryDirectory directory;
  write_bytes(directory / "a.json", "[1, 2]");
  CHECK(read_json_file(directory / "a.json", 6) == Json::parse("[1,2]"));
  CHECK_THAT(message_of<UserError>([&] { read_json_file(directory / "a.json", 5); }),
             Catch::Contains("larger than the 5 bytes"));
}
