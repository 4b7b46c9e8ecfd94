// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/checkpoint_files.hpp"

#include <sys/stat.h>
#include <xxhash.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/files/replacement.hpp"
#include "tests/unit/core/files/files_support.hpp"

using namespace deltapipe;
using deltapipe::testing::message_of;
using deltapipe::testing::read_bytes;
using deltapipe::testing::TemporaryDirectory;
using deltapipe::testing::write_bytes;

namespace fs = std::filesystem;

namespace {

CheckpointMarker marker_of(std::uint64_t step) {
  CheckpointMarker marker;
  marker.step = step;
  marker.run_id = "0123456789abcdef0123456789abcdef";
  marker.milestone = step % 100 == 0;
  marker.stages = 2;
  marker.partition = {3, 1};
  marker.deltapipe_version = "0.1.0";
  marker.source_revision = "abc";
  marker.output_directory = "/somewhere/runs/a";
  marker.seconds = 0.1;
  marker.deck = "[training]\nsteps = 7 # \"é\"\n";
  marker.train_fingerprint = 0xfedcba9876543210;
  marker.validation_fingerprint = 1;
  return marker;
}

/// A complete checkpoint of two files; returns its directory.
std::string write_checkpoint(const std::string& directory, CheckpointMarker marker) {
  const std::string place = unfinished_checkpoint(directory, marker.run_id, marker.step);
  make_directory(place);
  for (int rank = 0; rank < marker.ranks(); ++rank) {
    const std::string name = rank_file_name(rank);
    write_bytes(place + "/" + name, std::string(3000000 * static_cast<std::size_t>(rank) + 7, 'x'));
    marker.files.push_back(secure_file(place, name));
  }
  complete_checkpoint(directory, place, marker);
  CHECK(!fs::exists(place));
  return directory + "/" + checkpoint_name(marker.step);
}

void replace_in(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = read_bytes(path);
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  write_bytes(path, text.replace(at, from.size(), to));
}

/// With a checksum that fits, as another version of the program might write it.
void replace_member(const std::string& path, const std::string& from, const std::string& to) {
  replace_in(path, from, to);
  nlohmann::json marker = nlohmann::json::parse(read_bytes(path));
  marker.erase("xxh3");
  const std::string text = marker.dump(1);
  marker["xxh3"] = hex_digits(XXH3_64bits(text.data(), text.size()));
  write_bytes(path, marker.dump(1));
}

}  // namespace

TEST_CASE("A marker comes back as it was written", "[files][checkpoint]") {
  const TemporaryDirectory directory;
  CheckpointMarker expected = marker_of(12);
  const std::string checkpoint = write_checkpoint(directory.path(), expected);
  CHECK(fs::path(checkpoint).filename() == "step-000000012");
  const CheckpointMarker found = read_marker(checkpoint);
  REQUIRE(found.files.size() == 2);
  CHECK(found.file("rank-1.h5").bytes == 3000007);
  expected.files = found.files;
  CHECK(found == expected);
  for (const CheckpointFile& file : found.files) CHECK_NOTHROW(check_file(checkpoint, file));
  CHECK_THROWS_AS(found.file("rank-2.h5"), UserError);
}

TEST_CASE("Checkpoints are found by their names in the order of steps", "[files][checkpoint]") {
  const TemporaryDirectory directory;
  CHECK(checkpoint_steps(directory / "nowhere").empty());
  for (const std::uint64_t step : {7u, 1000u, 100u})
    write_checkpoint(directory.path(), marker_of(step));
  write_checkpoint(directory.path(), marker_of(12345678901));
  for (const char* const name :
       {"step-12", "step-0000000x1", "step-", "other", "step-0000000000000000000000012"})
    fs::create_directory(directory / name);
  CHECK(checkpoint_steps(directory.path()) ==
        std::vector<std::uint64_t>{7, 100, 1000, 12345678901});
  CHECK(remove_checkpoint(directory.path(), 100).empty());
  CHECK(remove_checkpoint(directory.path(), 99).empty());
  CHECK(checkpoint_steps(directory.path()) == std::vector<std::uint64_t>{7, 1000, 12345678901});
  CHECK(!fs::exists(directory / checkpoint_name(100)));
}

TEST_CASE("A checkpoint of the same step is replaced", "[files][checkpoint]") {
  const TemporaryDirectory directory;
  write_checkpoint(directory.path(), marker_of(3));
  CheckpointMarker other = marker_of(3);
  other.source_revision = "def";
  CHECK(read_marker(write_checkpoint(directory.path(), other)).source_revision == "def");
  CHECK(std::distance(fs::directory_iterator(directory.path()), {}) == 1);
}

TEST_CASE("Files that differ from the marker are refused with the reason", "[files][checkpoint]") {
  const TemporaryDirectory directory;
  const std::string checkpoint = write_checkpoint(directory.path(), marker_of(5));
  const CheckpointFile file = read_marker(checkpoint).file("rank-1.h5");
  const std::string path = checkpoint + "/rank-1.h5";
  const auto problem = [&] { return message_of<UserError>([&] { check_file(checkpoint, file); }); };
  CHECK(problem().empty());
  SECTION("truncated") {
    fs::resize_file(path, 1000);
    CHECK_THAT(problem(), Catch::Contains("another size") && Catch::Contains("1000 bytes"));
  }
  SECTION("a named pipe") {
    fs::remove(path);
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    CHECK_THAT(problem(), Catch::Contains("not a regular file"));
  }
  SECTION("one bit flipped") {
    std::string bytes = read_bytes(path);
    bytes[2999999] ^= 4;
    write_bytes(path, bytes);
    CHECK_THAT(problem(), Catch::Contains("damaged") && Catch::Contains("rank-1.h5"));
  }
  SECTION("gone") {
    fs::remove(path);
    CHECK_THAT(problem(), Catch::Contains("No such file"));
  }
  SECTION("a link to another file") {
    fs::rename(path, directory / "elsewhere");
    fs::create_symlink(directory / "elsewhere", path);
    CHECK_THAT(problem(), Catch::Contains("is a symbolic link"));
  }
}

TEST_CASE("Markers that are damaged or of others are refused", "[files][checkpoint]") {
  const TemporaryDirectory directory;
  const std::string checkpoint = write_checkpoint(directory.path(), marker_of(5));
  const std::string path = checkpoint + "/complete.json";
  const auto problem = [&] { return message_of<UserError>([&] { read_marker(checkpoint); }); };
  REQUIRE(problem().empty());
  SECTION("none") {
    fs::remove(path);
    CHECK(!problem().empty());
  }
  SECTION("cut short") {
    fs::resize_file(path, fs::file_size(path) / 2);
    CHECK(!problem().empty());
  }
  SECTION("empty") {
    write_bytes(path, "");
    CHECK(!problem().empty());
  }
  SECTION("no object") {
    write_bytes(path, "[1, 2]");
    CHECK_THAT(problem(), Catch::Contains("no marker"));
  }
  SECTION("another version") {
    replace_in(path, "\"format_version\": 3", "\"format_version\": 2");
    CHECK_THAT(problem(), Catch::Contains("another version"));
  }
  SECTION("an invalid step") {
    replace_member(path, "\"step\": 5", "\"step\": -5");
    CHECK_THAT(problem(), Catch::Contains("'step'"));
  }
  SECTION("an invalid layout") {
    replace_member(path, "\"stages\": 2", "\"stages\": 3");
    CHECK_THAT(problem(), Catch::Contains("layout"));
  }
  SECTION("a file elsewhere") {
    replace_member(path, "\"rank-0.h5\"", "\"../k-0.h5\"");
    CHECK_THAT(problem(), Catch::Contains("elsewhere"));
  }
  SECTION("a missing member") {
    replace_member(path, "\"run_id\"", "\"ran_id\"");
    CHECK_THAT(problem(), Catch::Contains("run_id"));
  }
  SECTION("an invalid hash") {
    replace_member(path, "\"xxh3\": \"", "\"xxh3\": \"z");
    CHECK_THAT(problem(), Catch::Contains("xxh3"));
  }
  SECTION("another step than its name says") {
    replace_member(path, "\"step\": 5", "\"step\": 4");
    CHECK_THAT(problem(), Catch::Contains("another step"));
  }
  SECTION("a directory that was given another name") {
    const std::string other = directory / checkpoint_name(6);
    fs::rename(checkpoint, other);
    CHECK_THAT(message_of<UserError>([&] { read_marker(other); }), Catch::Contains("another step"));
  }
  SECTION("any bit flipped") {
    const std::string whole = read_bytes(path);
    const CheckpointMarker marker = read_marker(checkpoint);
    for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
      std::string flipped = whole;
      flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
      write_bytes(path, flipped);
      // The same content in another form is not damage: white space, and zeros behind a point.
      if (problem().empty()) CHECK(read_marker(checkpoint) == marker);
    }
  }
}
