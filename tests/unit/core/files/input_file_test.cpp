// SPDX-License-Identifier: BSD-3-Clause
// Only regular files are read, and opening anything else neither waits nor reads.
#include "core/files/input_file.hpp"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "app/deck/deck.hpp"
#include "core/base/error.hpp"
#include "core/data/corpus.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/safetensors.hpp"
#include "core/text/tokenizer.hpp"
#include "models/config_file.hpp"
#include "models/gpt2/gpt2_config.hpp"
#include "tests/unit/core/files/files_support.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
namespace fs = std::filesystem;

/// A socket in the file system; its path has to be short.
class SocketFile {
 public:
  explicit SocketFile(const std::string& path) : descriptor_(::socket(AF_UNIX, SOCK_STREAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    REQUIRE(::bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  }
  ~SocketFile() { ::close(descriptor_); }
  SocketFile(const SocketFile&) = delete;
  SocketFile& operator=(const SocketFile&) = delete;

 private:
  int descriptor_;
};

struct Ignore : TokenSink {
  void append(std::span<const std::int32_t>) override {}
  void end_document() override {}
};

/// Every kind of file that is read, as the reader of a directory in which it has the name.
struct Reader {
  const char* name;
  void (*read)(const std::string& directory);
};

void read_data(const std::string& file) {
  Ignore sink;
  read_tokens(file, {}, small_tokenizer(), sink);
}

const std::vector<Reader> readers = {
    {"deck.toml", [](const std::string& d) { read_deck(d + "/deck.toml"); }},
    {"config.json", [](const std::string& d) { Gpt2Config::read(read_config_file(d)); }},
    {"model.safetensors", [](const std::string& d) { SafetensorsReader::open_directory(d); }},
    {"model.safetensors.index.json",
     [](const std::string& d) { SafetensorsReader::open_directory(d); }},
    {"tokenizer.json", [](const std::string& d) { Tokenizer::load(d); }},
    {"vocab.json", [](const std::string& d) { Tokenizer::load(d); }},
    {"merges.txt", [](const std::string& d) { Tokenizer::load(d); }},
    {"added_tokens.json", [](const std::string& d) { Tokenizer::load(d); }},
    {"tokenizer_config.json", [](const std::string& d) { Tokenizer::load(d); }},
    {"a.txt", [](const std::string& d) { read_data(d + "/a.txt"); }},
    {"a.jsonl", [](const std::string& d) { read_data(d + "/a.jsonl"); }},
    {"a.h5", [](const std::string& d) { read_data(d + "/a.h5"); }},
};

TEST_CASE("Nothing but a regular file is read, of any kind of file", "[files][kinds]") {
  for (const Reader& reader : readers) {
    INFO(reader.name);
    const TemporaryDirectory directory;
    const std::string path = directory / reader.name;
    const auto refused = [&](const std::string& reason) {
      const std::string message = message_of<UserError>([&] { reader.read(directory.path()); });
      CHECK_THAT(message,
                 Catch::StartsWith(path + ": cannot be read: ") && Catch::Contains(reason));
      fs::remove_all(path);
    };
    // Files that must be there for this one to be read.
    const std::string name = reader.name;
    const bool of_tokenizer = name == "merges.txt" || name.starts_with("added_tokens") ||
                              name.starts_with("tokenizer_config");
    if (of_tokenizer) {
      fs::copy(tokenizer_fixture("vocab.json"), directory / "vocab.json");
      if (name != "merges.txt") fs::copy(tokenizer_fixture("merges.txt"), directory / "merges.txt");
    }
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    refused("this is a named pipe; name a regular file");
    fs::create_symlink("/dev/zero", path);
    refused("this is a device");
    fs::create_directory(path);
    refused("Is a directory; name a file, not a directory");
    {
      const SocketFile socket(path);
      refused("this is a socket");
    }
  }
}

TEST_CASE("A file is read as it was when it was opened", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  write_bytes(path, "12345");
  const ReadOnlyFile file(path);
  write_bytes(path, "1234567");
  std::string text;
  file.for_each_block([&](std::string_view block) { text += block; });
  CHECK(text == "12345");
  write_bytes(path, "123");
  CHECK_THAT(message_of<UserError>([&] { file.for_each_block([](std::string_view) {}); }),
             Catch::Contains("ends before byte 5"));
}

TEST_CASE("A path with a NUL is no path", "[files]") {
  const TemporaryDirectory directory;
  write_bytes(directory / "a", "x");
  const std::string path = (directory / "a") + std::string("\0b", 2);
  CHECK_THAT(
      message_of<UserError>([&] { read_text_file(path, 10); }),
      Catch::StartsWith((directory / "a") + "\\x00b: cannot be read: a path cannot contain NUL"));
}

TEST_CASE("Blocks of a file add up to it", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  std::string content(9'000'001, 'a');
  content[4 << 20] = 'b';
  for (const std::size_t size : {std::size_t{0}, std::size_t{4} << 20, content.size()}) {
    write_bytes(path, content.substr(0, size));
    std::string text;
    std::size_t blocks = 0;
    ReadOnlyFile(path).for_each_block([&](std::string_view block) {
      text += block;
      ++blocks;
    });
    CHECK(text == content.substr(0, size));
    CHECK(blocks == (size + (4 << 20) - 1) / (4 << 20));
  }
}

}  // namespace
}  // namespace deltapipe
