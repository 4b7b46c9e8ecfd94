// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/directory_lock.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <optional>

#include "core/base/error.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::message_of;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

TEST_CASE("One run at a time holds a directory", "[files]") {
  const TemporaryDirectory directory;
  std::optional<DirectoryLock> first;
  first.emplace(directory.path(), "run 1");
  CHECK(first->is_holder());
  const std::string message =
      message_of<UserError>([&] { DirectoryLock(directory.path(), "run 2"); });
  CHECK(message.find(directory.path() + ": another run writes into this directory") == 0);
  CHECK(message.find("process " + std::to_string(::getpid()) + " on ") != std::string::npos);
  CHECK(message.find(" since 20") != std::string::npos);
  {
    // Another process of the same run.
    const DirectoryLock shared(directory.path(), "run 1");
    CHECK_FALSE(shared.is_holder());
  }
  CHECK_THROWS_AS(DirectoryLock(directory.path(), "run 2"), UserError);
  first.reset();
  CHECK(std::filesystem::is_empty(directory.path()));
  CHECK(DirectoryLock(directory.path(), "run 2").is_holder());
  CHECK(new_run_id() != new_run_id());
}

TEST_CASE("A lock that each machine grants for itself has one holder in a run", "[files]") {
  const TemporaryDirectory directory;
  // As the lock file looks on a second machine, where nobody holds the kernel's lock.
  const std::string file = "run 1\nprocess 1 on another since 2026-01-01T00:00:00Z\n";
  write_bytes(directory / ".deltapipe.lock", file);
  {
    const DirectoryLock second(directory.path(), "run 1");
    CHECK_FALSE(second.is_holder());
    CHECK(second.warning().empty());
  }
  CHECK(deltapipe::testing::read_bytes(directory / ".deltapipe.lock") == file);
  CHECK(DirectoryLock(directory.path(), "run 2").is_holder());
}

TEST_CASE("A lock can leave the file of a killed process", "[files]") {
  const TemporaryDirectory directory;
  const std::string path = directory / ".deltapipe.lock";
  int runs = 1;
  const auto is_left = [&](bool leave) {
    {
      DirectoryLock lock(directory.path(), "run " + std::to_string(++runs));
      lock.leave_former(leave);
    }
    return std::filesystem::exists(path);
  };
  CHECK_FALSE(is_left(true));  // there was none
  write_bytes(path, "run 1\nprocess 1 on here since 2026-01-01T00:00:00Z\n");
  CHECK(is_left(true));
  CHECK(is_left(true));
  CHECK_FALSE(is_left(false));
}

TEST_CASE("Who has patience gets a lock that is released meanwhile", "[files]") {
  const TemporaryDirectory directory;
  std::optional<DirectoryLock> first;
  first.emplace(directory.path(), "run 1");
  int looks = 0;
  const DirectoryLock second(directory.path(), "run 2", [&](const std::string& holder) {
    CHECK(holder.find("process " + std::to_string(::getpid()) + " on ") == 0);
    if (++looks == 3) first.reset();
    return true;
  });
  CHECK(second.is_holder());
  CHECK(looks == 3);
  CHECK_THROWS_AS(DirectoryLock(directory.path(), "run 3", [](const auto&) { return false; }),
                  UserError);
}

TEST_CASE("A killed process leaves no lock", "[files]") {
  const TemporaryDirectory directory;
  int ready[2];
  REQUIRE(::pipe(ready) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const DirectoryLock lock(directory.path(), "killed");
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  REQUIRE(child > 0);
  char byte = 0;
  REQUIRE(::read(ready[0], &byte, 1) == 1);
  CHECK_THROWS_AS(DirectoryLock(directory.path(), "next"), UserError);
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(DirectoryLock(directory.path(), "next").is_holder());
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_CASE("What is no lock file is left alone", "[files]") {
  const TemporaryDirectory directory;
  write_bytes(directory / "precious", "x");
  std::filesystem::create_symlink("precious", directory / ".deltapipe.lock");
  CHECK_THROWS_AS(DirectoryLock(directory.path(), "run"), UserError);
  std::filesystem::remove(directory / ".deltapipe.lock");
  std::filesystem::create_directory(directory / ".deltapipe.lock");
  CHECK_THROWS_AS(DirectoryLock(directory.path(), "run"), UserError);
  CHECK(deltapipe::testing::read_bytes(directory / "precious") == "x");
  CHECK_THROWS_AS(DirectoryLock(directory / "none", "run"), UserError);
}
