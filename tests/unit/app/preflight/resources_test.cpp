// SPDX-License-Identifier: BSD-3-Clause
// Who shares a machine's memory, a device or a disk takes of it together.
#include <catch2/catch.hpp>

#include "app/preflight/memory_prediction.hpp"
#include "core/base/error.hpp"
#include "tests/unit/core/files/files_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Contains;

constexpr std::uint64_t kGB = 1'000'000'000;

std::string refusal(const std::vector<RankPeak>& peaks, const std::vector<RankMachine>& machines) {
  return message_of<UserError>([&] { check_memory(peaks, machines); });
}

RankMachine on_host(int machine, std::uint64_t total) {
  return {machine, {total, total}, {}};
}

RankMachine on_device(int machine, std::uint64_t device, std::uint64_t total) {
  return {machine, {1000 * kGB, 1000 * kGB}, {device, total, total}};
}

TEST_CASE("Ranks of a machine share its memory", "[resources]") {
  const std::vector<RankPeak> peaks(3, {4 * kGB, 0});
  CHECK(refusal(peaks, {on_host(0, 12 * kGB), on_host(0, 12 * kGB), on_host(0, 12 * kGB)}) == "");
  CHECK_THAT(refusal(peaks, {on_host(0, 11 * kGB), on_host(0, 11 * kGB), on_host(0, 11 * kGB)}),
             Contains("more memory than the machine of rank 0") && Contains("for 3 rank(s)"));
  CHECK(refusal(peaks, {on_host(0, 8 * kGB), on_host(1, 4 * kGB), on_host(0, 8 * kGB)}) == "");
  CHECK_THAT(refusal(peaks, {on_host(0, 8 * kGB), on_host(1, 3 * kGB), on_host(0, 8 * kGB)}),
             Contains("machine of rank 1") && Contains("for 1 rank(s)"));
  CHECK(refusal(peaks, {on_host(0, 0), on_host(0, 0), on_host(0, 0)}) == "");  // unknown
}

TEST_CASE("Ranks share a device or have their own, on each machine", "[resources]") {
  const std::vector<RankPeak> peaks(2, {kGB, 50 * kGB});
  CHECK(refusal(peaks, {on_device(0, 7, 80 * kGB), on_device(0, 8, 80 * kGB)}) == "");
  CHECK(refusal(peaks, {on_device(0, 7, 80 * kGB), on_device(1, 7, 80 * kGB)}) == "");
  CHECK_THAT(refusal(peaks, {on_device(0, 7, 80 * kGB), on_device(0, 7, 80 * kGB)}),
             Contains("more memory than the device of rank 0") && Contains("for 2 rank(s)") &&
                 Contains("80.0 GB there"));
  CHECK_THAT(refusal(peaks, {on_device(0, 7, 80 * kGB), on_device(0, 8, 40 * kGB)}),
             Contains("device of rank 1") && Contains("for 1 rank(s)"));
  CHECK(refusal(peaks, {on_device(0, 0, 0), on_device(0, 0, 0)}) == "");  // kernels on the host
}

TEST_CASE("Spill files of a file system add up", "[resources]") {
  const auto refused = [](const std::vector<SpillNeed>& needs) {
    return message_of<UserError>([&] { check_spill_space(needs); });
  };
  CHECK(refused({}) == "");
  CHECK(refused({{0, 1, 500, 1000, "/a"}, {0, 1, 500, 1000, "/b"}}) == "");
  CHECK_THAT(refused({{0, 1, 500, 1000, "/a"}, {0, 1, 501, 1000, "/b"}}),
             Contains("too little disk space in /a") && Contains("machine of rank 0"));
  CHECK(refused({{0, 1, 800, 1000, "/a"}, {0, 2, 800, 1000, "/b"}}) == "");
  CHECK_THAT(refused({{0, 1, 800, 1000, "/a"}, {3, 1, 800, 700, "/b"}}),
             Contains("/b") && Contains("machine of rank 3"));
  CHECK(refused({{0, 1, 0, 0, "/a"}}) == "");  // nothing spills
}

TEST_CASE("Spill files that stay take their space beside new ones", "[resources]") {
  CacheNeed need;
  need.disk_bytes = 500;
  need.row_bytes = 800;
  const auto bytes = [&](std::uint64_t there, const FormerSpillFiles& former) {
    return new_spill_bytes(need, "/a/c.h5", there, former);
  };
  CHECK(bytes(0, {}) == 500);
  CHECK(bytes(300, {}) == 200);  // is removed first
  CHECK(bytes(700, {}) == 0);
  CHECK(bytes(300, {{}, {"/a/c.h5"}}) == 500);
  CHECK(bytes(300, {{}, {"/a/d.h5"}}) == 200);
  CHECK(bytes(810, {{"/a/c.h5"}, {}}) == 0);
  CHECK(bytes(790, {{"/a/c.h5"}, {}}) == 500);  // a copy with more rows
  CHECK(bytes(790, {{"/a/d.h5"}, {}}) == 0);
}

TEST_CASE("A directory that is not there yet is looked at where it will be made", "[resources]") {
  const TemporaryDirectory directory;
  CHECK(existing_parent(directory / "a/b/c") == directory.path());
  CHECK(existing_parent(directory.path()) == directory.path());
}

}  // namespace
}  // namespace deltapipe
