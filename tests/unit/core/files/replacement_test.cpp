// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/replacement.hpp"

#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <optional>
#include <set>

#include "core/base/error.hpp"
#include "core/files/directory_lock.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::FileSizeLimit;
using deltapipe::testing::message_of;
using deltapipe::testing::read_bytes;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

namespace fs = std::filesystem;

namespace {

std::set<std::string> names_in(const std::string& directory) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory))
    names.insert(entry.path().filename().string());
  return names;
}

bool is_ours(const std::string& name) {
  return name == "a" || name == "b";
}

/// A directory whose files a and b say who wrote them.
void replace(const std::string& target, const std::string& who, DirectorySwap swap,
             std::string* former = nullptr) {
  AtomicDirectory directory(target, is_ours, swap);
  write_bytes(directory.path() + "/a", who);
  write_bytes(directory.path() + "/b", who);
  const std::string kept = directory.commit();
  if (former != nullptr) *former = kept;
}

}  // namespace

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
  CHECK(names_in(directory.path()) == std::set<std::string>{"a.txt"});
}

TEST_CASE("Writers of one file do not share what they write", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / "a.txt";
  AtomicFile first(path);
  AtomicFile second(path);
  first.append(std::as_bytes(std::span("1111", 4)));
  second.append(std::as_bytes(std::span("22", 2)));
  first.commit();
  CHECK(read_bytes(path) == "1111");
  second.commit();
  CHECK(read_bytes(path) == "22");
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
  CHECK(names_in(directory.path()) == std::set<std::string>{"a.txt"});
}

TEST_CASE("Places that cannot be written are refused", "[files]") {
  const TemporaryDirectory directory;
  const std::string_view text = "x";
  CHECK_THROWS_AS(write_file_atomically(directory.path(), text), UserError);
  CHECK_THROWS_AS(write_file_atomically(directory / "no/such", text), UserError);
  CHECK_THROWS_AS(write_file_atomically("/dev/null", text), UserError);
  REQUIRE(::mkfifo((directory / "fifo").c_str(), 0666) == 0);
  CHECK_THROWS_AS(write_file_atomically(directory / "fifo", text), UserError);
  write_bytes(directory / "file", "");
  CHECK_THROWS_AS(make_directory(directory / "file/sub"), UserError);
  CHECK_THROWS_AS(make_directory(directory / "file"), UserError);
  CHECK_THROWS_AS(AtomicDirectory(directory / "no/such", is_ours), UserError);
  make_directory(directory / "a/b/c");
  make_directory(directory / "a/b/c");
  CHECK(fs::is_directory(directory / "a/b/c"));
}

TEST_CASE("Links are replaced, what they point to stays", "[files]") {
  const TemporaryDirectory directory;
  write_bytes(directory / "precious", "old");
  fs::create_symlink(directory / "precious", directory / "link");
  // The name that a temporary file once had.
  fs::create_symlink(directory / "precious", directory / "link.partial");
  write_file_atomically(directory / "link", std::string_view("new"));
  CHECK_FALSE(fs::is_symlink(directory / "link"));
  CHECK(read_bytes(directory / "link") == "new");
  CHECK(read_bytes(directory / "precious") == "old");
}

TEST_CASE("A directory is replaced as a whole", "[files]") {
  const DirectorySwap swap = GENERATE(DirectorySwap::exchange, DirectorySwap::two_renames);
  const TemporaryDirectory place;
  const std::string target = place / "model";
  replace(target, "first", swap);
  CHECK(read_bytes(target + "/a") == "first");
  std::string former;
  replace(target, "second", swap, &former);
  CHECK(former.empty());
  CHECK(read_bytes(target + "/a") == "second");
  CHECK(read_bytes(target + "/b") == "second");
  {
    AtomicDirectory given_up(target, is_ours, swap);
    write_bytes(given_up.path() + "/a", "third");
  }
  CHECK(read_bytes(target + "/a") == "second");
  CHECK(names_in(place.path()) == std::set<std::string>{"model"});
}

TEST_CASE("What is no former version is kept beside the new one", "[files]") {
  const DirectorySwap swap = GENERATE(DirectorySwap::exchange, DirectorySwap::two_renames);
  const TemporaryDirectory place;
  const std::string target = place / "model";
  std::string former;
  SECTION("a directory with a stranger's file") {
    replace(target, "first", swap);
    write_bytes(target + "/notes", "mine");
    replace(target, "second", swap, &former);
    CHECK(former == target + ".former");
    CHECK(read_bytes(former + "/notes") == "mine");
    CHECK(read_bytes(former + "/a") == "first");
    write_bytes(target + "/notes", "mine again");
    replace(target, "third", swap, &former);
    CHECK(former == target + ".former-2");
    CHECK(read_bytes(former + "/notes") == "mine again");
    CHECK(read_bytes(target + "/a") == "third");
  }
  SECTION("a link to a directory") {
    fs::create_directory(place / "elsewhere");
    write_bytes(place / "elsewhere/a", "precious");
    fs::create_directory_symlink("elsewhere", target);
    replace(target, "new", swap, &former);
    CHECK(fs::is_symlink(former));
    CHECK_FALSE(fs::is_symlink(target));
    CHECK(read_bytes(place / "elsewhere/a") == "precious");
    CHECK(read_bytes(target + "/a") == "new");
  }
}

TEST_CASE("Leftovers of killed processes go, and nothing else", "[files]") {
  const TemporaryDirectory place;
  const std::string digits = "0123456789abcdef";
  const std::set<std::string> others = {"run.h5",
                                        ".deltapipe-partial-",
                                        ".deltapipe-partial-12",
                                        ".deltapipe-partial-" + digits + ".txt",
                                        ".deltapipe-partial-0123456789ABCDEF",
                                        "model.partial"};
  for (const std::string& name : others) write_bytes(place / name, "x");
  fs::create_directory(place / "elsewhere");
  write_bytes(place / "elsewhere/precious", "x");
  write_bytes(temporary_name_in(place.path()), "x");
  fs::create_directory_symlink("elsewhere", temporary_name_in(place.path()));
  const std::string partial = temporary_name_in(place.path());
  fs::create_directory(partial);
  write_bytes(partial + "/a", "x");
  fs::create_directory_symlink(place / "elsewhere", partial + "/link");
  // Killed between two renames: the old directory comes back only when nothing took its place.
  fs::create_directory(place / (".deltapipe-aside-" + digits + "-model"));
  write_bytes(place / (".deltapipe-aside-" + digits + "-model/a"), "old");
  fs::create_directory(place / "done");
  fs::create_directory(place / (".deltapipe-aside-" + digits + "-done"));

  const std::string used = temporary_name_in(place.path());
  fs::create_directory(used);
  std::optional<DirectoryLock> lock(std::in_place, used, "run 1");

  remove_leftovers(place.path());
  std::set<std::string> expected = others;
  expected.insert({"elsewhere", "model", "done"});
  std::set<std::string> with_used = expected;
  with_used.insert(fs::path(used).filename().string());
  CHECK(names_in(place.path()) == with_used);
  lock.reset();
  remove_leftovers(place.path());
  CHECK(names_in(place.path()) == expected);
  CHECK(read_bytes(place / "model/a") == "old");
  CHECK(fs::exists(place / "elsewhere/precious"));
  remove_leftovers(place / "no/such");
}
