#include <catch2/catch.hpp>
#include <filesystem>

#include "core/error.hpp"
#include "core/files/checked_file.hpp"
#include "core/files/input_file.hpp"
#include "files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::FileSizeLimit;
using deltapipe::testing::message_of;
using deltapipe::testing::read_bytes;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

TEST_CASE("A text file is read whole or refused", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  write_bytes(path, std::string("x\0y\n", 4));
  CHECK(read_text_file(path, 100) == std::string("x\0y\n", 4));
  CHECK(read_text_file(path, 4).size() == 4);
  CHECK(message_of<UserError>([&] { read_text_file(path, 3); }).find("4 bytes") !=
        std::string::npos);
  write_bytes(path, "");
  CHECK(read_text_file(path, 100).empty());
  CHECK(message_of<UserError>([&] { read_text_file(directory / "none", 100); }) ==
        (directory / "none") + ": cannot be read: No such file or directory; check the path");
  CHECK_THROWS_AS(read_text_file(directory.path(), 100), UserError);
  CHECK_THROWS_AS(read_text_file("/dev/zero", 100), UserError);
}

TEST_CASE("An atomic write replaces the whole file or nothing", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  write_file_atomically(path, std::string_view("old"));
  {
    AtomicFile file(path);
    file.append(std::as_bytes(std::span("new")));
    CHECK(read_bytes(path) == "old");
  }
  CHECK(read_bytes(path) == "old");
  write_file_atomically(path, std::string_view("newer"));
  CHECK(read_bytes(path) == "newer");
  const auto entries = std::filesystem::directory_iterator(directory.path());
  CHECK(std::distance(begin(entries), end(entries)) == 1);
}

TEST_CASE("A full disk leaves the old file and no temporary one", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  write_file_atomically(path, std::string_view("old"));
  std::string while_writing;
  std::string while_reserving;
  {
    const FileSizeLimit limit(1000);
    while_writing =
        message_of<UserError>([&] { write_file_atomically(path, std::string(5000, 'x')); });
    while_reserving = message_of<UserError>([&] { AtomicFile(path).reserve(5000); });
  }
  for (const std::string& message : {while_writing, while_reserving}) {
    CHECK(message.find(path) == 0);
    CHECK(message.find("free disk space") != std::string::npos);
  }
  CHECK(read_bytes(path) == "old");
  CHECK_FALSE(std::filesystem::exists(path + ".partial"));
}

TEST_CASE("Places that cannot be written are refused", "[files]") {
  const TemporaryDirectory directory;
  const std::string_view text = "x";
  CHECK_THROWS_AS(write_file_atomically(directory.path(), text), UserError);
  CHECK_THROWS_AS(write_file_atomically(directory / "no/such", text), UserError);
  CHECK_THROWS_AS(write_file_atomically("/dev/null", text), UserError);
  write_bytes(directory / "file", "");
  CHECK_THROWS_AS(make_directory(directory / "file/sub"), UserError);
  CHECK_THROWS_AS(make_directory(directory / "file"), UserError);
  make_directory(directory / "a/b/c");
  make_directory(directory / "a/b/c");
  CHECK(std::filesystem::is_directory(directory / "a/b/c"));
}

TEST_CASE("Writing through a link keeps the link", "[files]") {
  const TemporaryDirectory directory;
  write_bytes(directory / "real", "old");
  std::filesystem::create_symlink(directory / "real", directory / "link");
  write_file_atomically(directory / "link", std::string_view("new"));
  CHECK(std::filesystem::is_symlink(directory / "link"));
  CHECK(read_bytes(directory / "real") == "new");
}
