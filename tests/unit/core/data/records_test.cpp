// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/records.hpp"

#include <catch2/catch.hpp>
#include <utility>

#include "core/data/labelled_text.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using Catch::Matchers::Contains;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;

namespace {

using Record = std::pair<std::size_t, std::vector<std::string>>;  // line, fields

struct Read {
  std::vector<Record> records;
  SkippedLines skipped;
};

class Table {
 public:
  std::string write(const std::string& name, const std::string& content) {
    const std::string path = directory_.path() + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  Read read(DataFormat format, const std::string& content, std::vector<std::string> names,
            BadLines bad_lines = BadLines::error, bool header = true,
            bool last_is_optional = false) {
    const RecordFields fields{.format = format,
                              .names = std::move(names),
                              .keys = "data.labelled.texts",
                              .header = header,
                              .numbers = true,
                              .last_is_optional = last_is_optional};
    Read read;
    read.skipped = read_records(
        write("table", content), bad_lines, fields,
        [](std::vector<std::string>&& values, std::size_t line) {
          return Record(line, std::move(values));
        },
        [&](const Record& record) { read.records.push_back(record); });
    return read;
  }

 private:
  TemporaryDirectory directory_;
};

constexpr auto csv = DataFormat::csv, tsv = DataFormat::tsv, jsonl = DataFormat::jsonl;

}  // namespace

TEST_CASE("Records of CSV are those of RFC 4180", "[data][records]") {
  Table table;
  const std::string text =
      "\xef\xbb\xbfid,text,label\r\n"
      "1,\"a, \"\"b\"\"\",yes\r\n"
      "2,\"two\nlines\",no\n"
      "\n"
      "3,,\"\"\n"
      "4,5\" disk,x";
  const Read read = table.read(csv, text, {"label", "text"});
  CHECK(read.records == std::vector<Record>{{2, {"yes", "a, \"b\""}},
                                            {3, {"no", "two\nlines"}},
                                            {6, {"", ""}},
                                            {7, {"x", "5\" disk"}}});
  CHECK(read.skipped.lines == 7);
  CHECK(table.read(csv, "id\n\"1\"\n", {"id"}).records == std::vector<Record>{{2, {"1"}}});
}

TEST_CASE("A byte-order mark is no part of the first field", "[data][records]") {
  Table table;
  const std::string mark = "\xef\xbb\xbf";
  const std::vector<Record> expected = {{1, {"pos"}}, {2, {"pos"}}};
  for (const DataFormat format : {csv, tsv})
    CHECK(table.read(format, mark + "pos\npos\n", {"1"}, BadLines::error, false).records ==
          expected);
  CHECK(table.read(csv, mark + "\"text\",\"kind\"\n\"a\",\"b\"\n", {"text"}).records ==
        std::vector<Record>{{2, {"a"}}});
  CHECK(table.read(jsonl, mark + "{\"t\": \"a\"}\n", {"t"}).records ==
        std::vector<Record>{{1, {"a"}}});
}

TEST_CASE("Records of TSV have no quotes", "[data][records]") {
  Table table;
  const Read read = table.read(tsv, "a\tb\r\n\"x\t\"y\"\r\n\n\t2\n", {"b", "a"});
  CHECK(read.records == std::vector<Record>{{2, {"\"y\"", "\"x"}}, {4, {"2", ""}}});
  CHECK(table.read(tsv, "p\tq\nr\ts\n", {"2"}, BadLines::error, false).records ==
        std::vector<Record>{{1, {"q"}}, {2, {"s"}}});
}

TEST_CASE("Labels of JSON lines may be whole numbers", "[data][records]") {
  Table table;
  CHECK(table.read(jsonl, "{\"t\": \"a\", \"l\": 3}\n{\"l\": \"x\", \"t\": \"b\"}\n", {"t", "l"})
            .records == std::vector<Record>{{1, {"a", "3"}}, {2, {"b", "x"}}});
  CHECK_THAT(message_of<UserError>([&] { table.read(jsonl, "{\"t\": 1.5}", {"t"}); }),
             Contains("field 't' is not a string"));
}

TEST_CASE("The last field may be optional", "[data][records]") {
  Table table;
  const auto read = [&](DataFormat format, const std::string& text, std::vector<std::string> names,
                        bool header = true) {
    return table.read(format, text, std::move(names), BadLines::error, header, true).records;
  };
  const std::vector<Record> without = {{2, {"a", ""}}};
  CHECK(read(csv, "t\na\n", {"t", "l"}) == without);
  CHECK(read(tsv, "x\tt\n1\ta\n", {"t", "l"}) == without);
  CHECK(read(csv, "l,t\n3,a\n", {"t", "l"}) == std::vector<Record>{{2, {"a", "3"}}});
  CHECK(read(csv, "a\nb\n", {"1", "2"}, false) ==
        std::vector<Record>{{1, {"a", ""}}, {2, {"b", ""}}});
  CHECK(read(csv, "a,3\n", {"1", "2"}, false) == std::vector<Record>{{1, {"a", "3"}}});
  CHECK(read(jsonl, "{\"t\": \"a\"}\n{\"t\": \"b\", \"l\": \"3\"}\n", {"t", "l"}) ==
        std::vector<Record>{{1, {"a", ""}}, {2, {"b", "3"}}});
  CHECK(read(jsonl, "{\"t\": \"a\", \"l\": null}\n", {"t", "l"}) ==
        std::vector<Record>{{1, {"a", ""}}});
  CHECK_THAT(message_of<UserError>([&] {
               read(jsonl, "{\"t\": null, \"l\": \"3\"}\n", {"t", "l"});
             }),
             Contains("field 't' is not a string"));
  CHECK_THAT(message_of<UserError>([&] {
               read(csv, "l\n3\n", {"t", "l"});
             }),
             Contains("the header has no column 't'"));
}

TEST_CASE("Mistakes in tables have a line and a remedy", "[data][records]") {
  Table table;
  const auto message = [&](DataFormat format, const std::string& text,
                           std::vector<std::string> names, bool header = true) {
    return message_of<UserError>(
        [&] { table.read(format, text, std::move(names), BadLines::error, header); });
  };
  CHECK_THAT(message(csv, "a,b\n1,2\n", {"c"}),
             Contains("the header has no column 'c' (got a, b)"));
  CHECK_THAT(message(csv, "a,b,a\n1,2,3\n", {"a"}),
             Contains(":1: the header has more than one column 'a' (got a, b, a)"));
  CHECK(message(csv, "a,b,a\n1,2,3\n", {"b"}) == "");
  CHECK_THAT(message(csv, "a,b\n1,2\n1,2,3\n", {"a"}),
             Contains(":3: the line has another number of columns") && Contains("3 columns"));
  CHECK_THAT(message(tsv, "a\tb\n1\n", {"b"}), Contains(":2: ") && Contains("one tab"));
  CHECK_THAT(message(csv, "a,b\n1,\"x\"y\n", {"b"}), Contains(":2: text follows a closing quote"));
  CHECK_THAT(message(csv, "a,b\n1,\"x\n2,3\n", {"b"}), Contains(":2: a quoted field has no end"));
  CHECK_THAT(message(tsv, "p\tq\n", {"text"}, false), Contains("columns are numbers from 1"));
  CHECK_THAT(message(tsv, "p\tq\n", {"3"}, false), Contains(":1: ") && Contains("2 columns"));
  CHECK_THAT(message(csv, "a,b\n", {"a"}), Contains("no documents"));
  CHECK_THAT(message(csv, "", {"a"}), Contains("no documents"));
  CHECK_THAT(message(csv, "a\n\xff\n", {"a"}), Contains(":2:1: this text is not UTF-8"));
  CHECK_THAT(message(csv, "\x1f\x8b", {"a"}), Contains("gzip"));
}

TEST_CASE("Bad lines of tables are skipped on request, but never the rest of a file",
          "[data][records]") {
  Table table;
  const Read read = table.read(csv, "a,b\n1\n\xff,2\n3,4\n5,\"6\"7\n8,9\n", {"b"}, BadLines::skip);
  CHECK(read.records == std::vector<Record>{{4, {"4"}}, {6, {"9"}}});
  CHECK(read.skipped.count == 3);
  CHECK_THAT(read.skipped.first, Contains(":2: "));
  CHECK_THAT(message_of<UserError>(
                 [&] { table.read(csv, "a,b\n1,2\n3,\"4\n5,6\n", {"b"}, BadLines::skip); }),
             Contains(":3: a quoted field has no end"));
}
