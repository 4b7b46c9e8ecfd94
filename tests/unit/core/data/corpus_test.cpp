// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/corpus.hpp"

#include <array>
#include <catch2/catch.hpp>

#include "core/base/error.hpp"
#include "core/base/utf8.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/input_file.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
using Ids = std::vector<std::int32_t>;

/// Keeps the documents as they come.
struct Documents : TokenSink {
  std::vector<Ids> all;
  Ids current;
  std::size_t pieces = 0;
  void append(std::span<const std::int32_t> ids) override {
    current.insert(current.end(), ids.begin(), ids.end());
    ++pieces;
  }
  void end_document() override {
    all.push_back(current);
    current.clear();
  }
};

Documents read_all(const std::string& file, const DataSettings& settings = {}) {
  Documents documents;
  read_tokens(file, settings, small_tokenizer(), documents);
  CHECK(documents.current.empty());
  return documents;
}

std::string message(const std::string& file, const DataSettings& settings = {}) {
  return message_of<UserError>([&] { read_all(file, settings); });
}

Ids encode(const std::string& text) {
  return small_tokenizer().encode(text);
}

/// The text without the bytes that are no UTF-8, and without NUL.
std::string utf8_of(const std::string& bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    char32_t code_point = 0;
    const std::size_t length = utf8_sequence(std::string_view(bytes).substr(i), code_point);
    if (length > 0 && code_point != 0) text += bytes.substr(i, length);
    i += std::max<std::size_t>(length, 1);
  }
  return text;
}

TEST_CASE("The suffix tells the format unless it is set", "[data]") {
  CHECK(data_format("a/b.txt", DataFormat::automatic) == DataFormat::text);
  CHECK(data_format("b.jsonl", DataFormat::automatic) == DataFormat::jsonl);
  CHECK(data_format("b.h5", DataFormat::automatic) == DataFormat::hdf5);
  CHECK(data_format("b.hdf5", DataFormat::automatic) == DataFormat::hdf5);
  CHECK(data_format("b.dat", DataFormat::text) == DataFormat::text);
  CHECK(data_format("b.txt", DataFormat::jsonl) == DataFormat::jsonl);
  for (const auto& [file, asked] :
       {std::pair{"b.jsonl", DataFormat::text}, std::pair{"b.h5", DataFormat::text},
        std::pair{"b.h5", DataFormat::jsonl}, std::pair{"b.txt", DataFormat::hdf5}}) {
    CHECK_THAT(message_of<UserError>([&, file = file, asked = asked] { data_format(file, asked); }),
               Contains("another format") && Contains("automatic"));
  }
  const TemporaryDirectory directory;
  write_bytes(directory / "b.dat", "x");
  CHECK_THAT(message_of<UserError>([&] { data_format(directory / "b.dat", {}); }),
             Contains("suffix"));
  CHECK_THROWS_AS(data_format("", DataFormat::automatic), UserError);
  // A name that is not a file has no suffix to correct.
  CHECK_THAT(message_of<UserError>([] { data_format("/dev/zero", {}); }),
             Contains("this is a device"));
  CHECK_THAT(message_of<UserError>([&] { data_format(directory.path(), {}); }),
             Contains("directory"));
  CHECK_THAT(message_of<UserError>([&] { data_format(directory / "none.dat", {}); }),
             Contains("No such file"));
}

TEST_CASE("A text file is one document, large ones come in pieces", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.txt";
  write_bytes(file, "One.\n\nTwo.\n");
  CHECK(read_all(file).all == std::vector<Ids>{encode("One.\n\nTwo.\n")});

  const std::string mixed = utf8_of(read_bytes(tokenizer_fixture("mixed.bin")));
  std::string large;
  while (large.size() < 5'000'000) large += mixed;
  write_bytes(file, large);
  const Documents documents = read_all(file);
  REQUIRE(documents.all.size() == 1);
  CHECK(documents.pieces > 1);
  CHECK(documents.all[0] == encode(large));
}

TEST_CASE("Text that cannot be read is an error", "[data]") {
  const TemporaryDirectory directory;
  CHECK_THAT(message(directory / "none.txt"), Contains("none.txt: cannot be read: No such file"));
  DataSettings text;
  text.format = DataFormat::text;
  CHECK_THAT(message(directory.path(), text), Contains("directory"));
  write_bytes(directory / "empty.txt", "");
  CHECK_THAT(message(directory / "empty.txt"), Contains("is empty"));
}

TEST_CASE("Text that is not UTF-8 is an error with its place", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.txt";
  write_bytes(file, "One.\nCaf\xE9\n");
  CHECK_THAT(message(file), Contains("a.txt:2:4: this text is not UTF-8: byte 0xE9 at offset 8; "
                                     "convert the file, for example with iconv"));
  write_bytes(file, std::string("\xFF\xFEO\0n\0e\0", 8));
  CHECK_THAT(message(file), Contains("a.txt:1:1: this text is in UTF-16: byte 0xFF at offset 0") &&
                                Contains("iconv -f UTF-16"));
  write_bytes(file, std::string("O\0n\0e\0", 6));
  CHECK_THAT(message(file), Contains("a.txt:1:2: this is not text, it contains a NUL: byte 0x00 at "
                                     "offset 1; name a text file; one in UTF-16"));
  write_bytes(file, "One \xF0\x9F\x98");
  CHECK_THAT(message(file), Contains("byte 0xF0 at offset 4"));
  const std::string lines = directory / "a.jsonl";
  write_bytes(lines, "{\"text\": \"x\"}\n{\"text\": \"\xE9\"}\n");
  CHECK_THAT(message(lines),
             Contains("a.jsonl:2:11: this text is not UTF-8: byte 0xE9 at offset 24"));

  // Files are read in blocks of 4 MiB: a character across the border, and a mistake behind it.
  const std::string border(4 * 1024 * 1024 - 1, 'x');
  write_bytes(file, border + "\u00e9\n");
  CHECK(message(file).empty());
  write_bytes(file, border + "\xC3x\n");
  CHECK_THAT(message(file), Contains("a.txt:1:4194304: ") && Contains("0xC3 at offset 4194303"));
  write_bytes(file, "\n" + border + "\u00e9\n\xFF");
  CHECK_THAT(message(file), Contains("a.txt:3:1: ") && Contains("0xFF at offset 4194307"));
}

TEST_CASE("A JSONL line reaches into any number of blocks", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.jsonl";
  const std::string words(9'000'000, ' ');
  write_bytes(file, "{\"text\": \"a\"," + words + "\"more\": [[1]]}\n{\"text\": \"b\"}");
  CHECK(read_all(file).all == std::vector<Ids>{encode("a"), encode("b")});
}

TEST_CASE("Every line of a JSONL file is a document", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.jsonl";
  write_bytes(file,
              "{\"text\": \"One\\n\", \"title\": \"T\"}\r\n\n"
              "{\"title\": \"\\u00e9\", \"text\": \"Two\"}");
  CHECK(read_all(file).all == std::vector<Ids>{encode("One\n"), encode("Two")});
  DataSettings both;
  both.jsonl_fields = {"title", "text"};
  CHECK(read_all(file, both).all ==
        std::vector<Ids>{encode("T\n\nOne\n"), encode("\u00e9\n\nTwo")});
}

TEST_CASE("Lines that hold no document are left out if the deck says so", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.jsonl";
  write_bytes(file,
              "{\"text\": \"One\", \"score\": NaN}\n{\"text\": 3}\n\n{\n{\"text\": \"\\ud83d\"}\n"
              "{}\n{\"text\": \"Two\"}\n");
  CHECK_THAT(message(file), Contains("a.jsonl:2:") && Contains("is not a string"));
  struct Counting : Documents {
    std::vector<SkippedLines> skipped;
    void skip_lines(const SkippedLines& lines) override { skipped.push_back(lines); }
  } documents;
  DataSettings settings;
  settings.bad_lines = BadLines::skip;
  read_tokens(file, settings, small_tokenizer(), documents);
  CHECK(documents.all == std::vector<Ids>{encode("One"), encode("Two")});
  REQUIRE(documents.skipped.size() == 1);
  CHECK_THAT(text_of(documents.skipped[0]),
             Contains("a.jsonl: 4 of 7 lines are skipped") && Contains("a.jsonl:2: field 'text'"));
  // Lines that are no text, and one that is too long.
  write_bytes(file, "{\"text\": \"caf\xe9\"}\n{\"text\": \"One\"}\n{\"text\": \"a" +
                        std::string(1, '\0') + "\"}\n{\"text\": \"" +
                        std::string(file_limit::jsonl_line, 'x') +
                        "\"}\n{\"text\": \"Two\"}\n\xc3");
  documents = {};
  read_tokens(file, settings, small_tokenizer(), documents);
  CHECK(documents.all == std::vector<Ids>{encode("One"), encode("Two")});
  REQUIRE(documents.skipped.size() == 1);
  CHECK_THAT(text_of(documents.skipped[0]), Contains("4 of 6 lines are skipped") &&
                                                Contains("a.jsonl:1:14: this text is not UTF-8"));
  write_bytes(file, "{\n");
  CHECK_THAT(message(file, settings),
             Contains("no documents; 1 of 1 lines are skipped, the first: "));
  write_bytes(file, "[{\"text\": \"One\"}]\n");
  CHECK_THAT(message(file), Contains("jq -c"));
  write_bytes(file, "{\"text\"}\n");
  CHECK_THAT(message(file), Contains("data.bad_lines"));
}

TEST_CASE("Files of other kinds are named with what to do", "[data]") {
  const TemporaryDirectory directory;
  const std::vector<std::pair<std::string, const char*>> kinds = {
      {"\x1f\x8b\x08", "gzip"}, {"PAR1....", "Parquet"}, {"\x89HDF\r\n\x1a\n", "HDF5"}};
  for (const auto& [bytes, kind] : kinds) {
    for (const char* name : {"a.txt", "a.jsonl", "a.dat"}) {
      write_bytes(directory / name, bytes);
      CHECK_THAT(message(directory / name), Contains(std::string("a file of ") + kind));
    }
  }
  write_bytes(directory / "a.csv", "x,y");
  CHECK_THAT(message(directory / "a.csv"), Contains("JSON lines"));
}

TEST_CASE("Mistakes in JSONL files are named with their line", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.jsonl";
  const std::string good = "{\"text\": \"x\"}\n";
  for (const std::string line :
       {"{", "[]", "3", "\"text\"", "{\"text\": \"\xFF\"}", "{\"text\"}", "{\"text\": 3}",
        "{\"text\": null}", "{\"Text\": \"x\"}", "{\"text\": \"x\"} {}",
        "{\"text\": \"x\", \"text\": \"y\"}", "{\"text\": 1e400}"}) {
    INFO(line);
    write_bytes(file, good + "\n" + line + "\n" + good);
    CHECK_THAT(message(file), Contains("a.jsonl:3:"));
  }
  write_bytes(file, good + "{\"text\": " + std::string(100'000, '[') + "\n");
  CHECK_THAT(message(file), Contains("a.jsonl:2:73: the line is nested deeper than 64 levels"));
  write_bytes(file, "\n \n");
  CHECK_THAT(message(file), Contains("no documents"));
  CHECK_THAT(message(directory / "none.jsonl"), Contains("cannot be read"));
  DataSettings none;
  none.jsonl_fields = {};
  write_bytes(file, good);
  CHECK_THAT(message(file, none), Contains("data.jsonl_fields"));
}

template <class T>
void write_dataset(hdf5::File& file, const std::string& name, const std::vector<T>& values) {
  const std::vector<std::size_t> shape = {values.size()};  // named: nvcc's output loses its braces
  file.create_dataset(name, hdf5::element_type_of<T>(), shape).write(0, std::span<const T>(values));
}

template <class T>
void write_tokens(const std::string& path, const std::vector<T>& tokens,
                  const std::vector<std::int64_t>& offsets = {}) {
  hdf5::File file = hdf5::File::create(path);
  write_dataset(file, "tokens", tokens);
  if (!offsets.empty()) write_dataset(file, "document_offsets", offsets);
  file.close();
}

TEST_CASE("HDF5 files bring token ids and documents", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.h5";
  write_tokens<std::uint16_t>(file, {1, 2, 3, 2999});
  CHECK(read_all(file).all == std::vector<Ids>{{1, 2, 3, 2999}});
  write_tokens<std::int64_t>(file, {1, 2, 3, 4}, {0, 1, 3});
  CHECK(read_all(file).all == std::vector<Ids>{{1}, {2, 3}, {4}});
  write_tokens<std::int8_t>(file, {1, 2, 3, 4}, {0, 2, 2, 4});
  CHECK(read_all(file).all == std::vector<Ids>{{1, 2}, {}, {3, 4}});

  std::vector<std::int32_t> many(600'001);
  std::vector<std::int64_t> offsets;
  std::vector<Ids> expected;
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i] = static_cast<std::int32_t>(splitmix64(i) % 3000);
    if (i == 0 || splitmix64(i) % 50'000 == 1 || i == 262'144 || i == 524'289) {
      offsets.push_back(static_cast<std::int64_t>(i));
      expected.emplace_back();
    }
    expected.back().push_back(many[i]);
  }
  write_tokens<std::int32_t>(file, many, offsets);
  const bool same = read_all(file).all == expected;
  CHECK(same);
}

TEST_CASE("Mistakes in HDF5 files are named", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.h5";
  CHECK_THAT(message(file), Contains("a.h5"));
  write_bytes(file, "no HDF5");
  CHECK_THAT(message(file), Contains("a.h5"));
  write_tokens<std::int32_t>(file, {1, 2, 3000});
  CHECK_THAT(message(file), Contains("tokens[2] is outside the vocabulary of 3000 (got 3000)"));
  write_tokens<std::int32_t>(file, {1, -1});
  CHECK_THAT(message(file), Contains("tokens[1]"));
  write_tokens<std::uint64_t>(file, {~std::uint64_t{0}});
  CHECK_THAT(message(file), Contains("tokens[0]"));
  write_tokens<float>(file, {1, 2});
  CHECK_THAT(message(file), Contains("not a list of integers"));
  for (const std::vector<std::int64_t>& offsets : std::vector<std::vector<std::int64_t>>{
           {1}, {0, 3}, {0, 2, 1}, {-1, 1}, {0, 1, 2, 2}, {0, -1}}) {
    write_tokens<std::int32_t>(file, {1, 2}, offsets);
    CHECK_THAT(message(file), Contains("document_offsets"));
  }
  {
    hdf5::File other = hdf5::File::create(file);
    write_dataset<std::int32_t>(other, "ids", {1, 2});
    other.close();
  }
  CHECK_THAT(message(file), Contains("no dataset 'tokens' (got ids)"));
  {
    hdf5::File table = hdf5::File::create(file);
    table.create_dataset("tokens", hdf5::ElementType::i32, {2, 2});
    table.close();
  }
  CHECK_THAT(message(file), Contains("not a list of integers"));
  {
    hdf5::File empty = hdf5::File::create(file);
    empty.create_dataset("tokens", hdf5::ElementType::i32, {0}, {.chunk = {1}});
    empty.close();
  }
  CHECK_THAT(message(file), Contains("empty"));
}

TEST_CASE("Texts to train a tokenizer from", "[data]") {
  const TemporaryDirectory directory;
  write_bytes(directory / "a.txt", "One.\n");
  write_bytes(directory / "b.jsonl", "{\"text\": \"Two\"}\n{\"text\": \"\"}\n");
  write_tokens<std::int32_t>(directory / "c.h5", {1, 2});
  DataSettings settings;
  settings.train = {directory / "a.txt", directory / "b.jsonl"};
  CHECK(training_texts(settings) == std::vector<std::string>{"One.\n", "Two", ""});
  settings.train = {directory / "c.h5"};
  CHECK_THROWS_AS(training_texts(settings), UserError);
  settings.train = {};
  CHECK_THROWS_AS(training_texts(settings), UserError);
}

/// A dataset `tokens` of integers made through the C API, by what `set` asks for.
template <class Set>
void make_tokens(const std::string& path, std::vector<hsize_t> extent, const Set& set,
                 hid_t type = -1) {
  const hdf5::Lock lock;
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  const hid_t space =
      H5Screate_simple(static_cast<int>(extent.size()), extent.data(), extent.data());
  const hid_t options = H5Pcreate(H5P_DATASET_CREATE);
  set(options, space);
  const hid_t dataset = H5Dcreate2(file, "tokens", type >= 0 ? type : H5T_STD_I64LE, space,
                                   H5P_DEFAULT, options, H5P_DEFAULT);
  REQUIRE(dataset >= 0);
  H5Dclose(dataset);
  H5Pclose(options);
  H5Sclose(space);
  H5Fclose(file);
}

TEST_CASE("HDF5 extents are no proof of tokens", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.h5";
  const std::vector<hsize_t> vast = {hsize_t{1} << 40};
  const auto contiguous = [](hid_t, hid_t) {};
  const auto chunks_of = [](hsize_t rows) {
    return [rows](hid_t options, hid_t) { H5Pset_chunk(options, 1, &rows); };
  };
  make_tokens(file, vast, contiguous);
  CHECK_THAT(message(file), Contains("a.h5: dataset 'tokens' has elements that were never written "
                                     "(got 1099511627776, 0 bytes stored)"));
  make_tokens(file, vast, chunks_of(1024));
  CHECK_THAT(message(file), Contains("never written"));
  make_tokens(file, {10}, contiguous);
  CHECK_THAT(message(file), Contains("never written (got 10, 0 bytes"));
  make_tokens(file, {hsize_t{1} << 29}, chunks_of((hsize_t{1} << 27) + 1));
  CHECK_THAT(message(file), Contains("chunks of more than 1 GiB"));
  make_tokens(file, {2, 3}, contiguous);
  CHECK_THAT(message(file), Contains("not a list of integers"));

  // One chunk of three is written.
  make_tokens(file, {12}, chunks_of(5));
  {
    hdf5::File open = hdf5::File::open_read_write(file);
    const std::vector<std::int64_t> some = {1, 2, 3};
    open.open_dataset("tokens").write(5, std::span<const std::int64_t>(some));
    open.close();
  }
  CHECK_THAT(message(file), Contains("never written (got 12, 40 bytes stored)"));
  {
    hdf5::File open = hdf5::File::open_read_write(file);
    const std::vector<std::int64_t> all(12, 7);
    open.open_dataset("tokens").write(0, std::span<const std::int64_t>(all));
    open.close();
  }
  CHECK(read_all(file).all == std::vector<Ids>{Ids(12, 7)});

  // So few bytes that the offsets cannot be there.
  hdf5::File open = hdf5::File::create(file);
  write_dataset<std::int32_t>(open, "tokens", {1, 2, 3});
  open.create_dataset("document_offsets", hdf5::ElementType::i64, {2});
  open.close();
  CHECK_THAT(message(file), Contains("'document_offsets' has elements that were never written"));
}

TEST_CASE("Integers of any byte order are read, unknown filters are named", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.h5";
  {
    const hdf5::Lock lock;
    make_tokens(
        file, {3}, [](hid_t, hid_t) {}, H5T_STD_U16BE);
  }
  {
    hdf5::File open = hdf5::File::open_read_write(file);
    open.open_dataset("tokens").write(0, std::span<const std::int32_t>(std::array{1, 258, 2999}));
    open.close();
  }
  CHECK(read_all(file).all == std::vector<Ids>{{1, 258, 2999}});
  // The number is that of h5py's lzf. Optional, so that HDF5 makes the dataset without it.
  make_tokens(file, {3}, [](hid_t options, hid_t) {
    const hsize_t rows = 3;
    H5Pset_chunk(options, 1, &rows);
    H5Pset_filter(options, 32000, H5Z_FLAG_OPTIONAL, 0, nullptr);
  });
  CHECK_THAT(message(file), Contains("filter") && Contains("32000") && Contains("gzip"));
}

TEST_CASE("HDF5 data that lie in other files are not followed", "[data]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "a.h5", other = directory / "other.h5";
  write_tokens<std::int64_t>(other, {1, 2, 3, 4});
  const std::string raw = directory / "raw";
  write_bytes(raw, std::string(32, '\1'));

  make_tokens(file, {4},
              [&](hid_t options, hid_t) { H5Pset_external(options, raw.c_str(), 0, 32); });
  CHECK_THAT(message(file), Contains("a.h5: dataset 'tokens' has its elements in other files"));
  make_tokens(file, {4}, [&](hid_t options, hid_t space) {
    H5Pset_virtual(options, space, other.c_str(), "tokens", space);
  });
  CHECK_THAT(message(file), Contains("a.h5: dataset 'tokens' has its elements in other files"));

  for (const char* kind : {"external", "soft", "soft to nowhere"}) {
    INFO(kind);
    {
      const hdf5::Lock lock;
      hdf5::File open = hdf5::File::create(file);
      write_dataset<std::int64_t>(open, "x", {1, 2});
      if (std::string(kind) == "external") {
        H5Lcreate_external(other.c_str(), "tokens", open.id(), "tokens", H5P_DEFAULT, H5P_DEFAULT);
      } else {
        const char* target = std::string(kind) == "soft" ? "x" : "y";
        H5Lcreate_soft(target, open.id(), "tokens", H5P_DEFAULT, H5P_DEFAULT);
      }
      open.close();
    }
    CHECK_THAT(message(file), Contains("a.h5: 'tokens' is a link to another place"));
  }
  {
    const hdf5::Lock lock;
    hdf5::File open = hdf5::File::create(file);
    hdf5::Group group = open.create_group("group");
    H5Lcreate_external(other.c_str(), "/", open.id(), "elsewhere", H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_external(other.c_str(), "tokens", group.id(), "tokens", H5P_DEFAULT, H5P_DEFAULT);
    open.close();
  }
  const hdf5::File open = hdf5::File::open_read_only(file);
  CHECK_THROWS_AS(open.open_group("elsewhere"), UserError);
  CHECK_THROWS_AS(open.open_dataset("elsewhere/tokens"), UserError);
  CHECK_THROWS_AS(open.open_dataset("group/tokens"), UserError);
  CHECK_THROWS_AS(open.open_dataset("/group//tokens/"), UserError);
  CHECK_NOTHROW(open.open_group("/group"));
}

}  // namespace
}  // namespace deltapipe
