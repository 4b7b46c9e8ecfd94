// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/host_team.hpp"

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/parallel/kernel.hpp"

using namespace deltapipe;

TEST_CASE("A team does every part once", "[threads]") {
  const int threads = GENERATE(1, 2, 3, 7);
  HostTeam team;
  team.resize(threads);
  CHECK(team.size() == threads);
  for (int round = 0; round < 2000; ++round) {
    const int parts = round % 23;
    std::vector<std::atomic<int>> done(23);
    team.run(parts, [&](int part) { ++done[static_cast<std::size_t>(part)]; });
    for (int part = 0; part < 23; ++part)
      REQUIRE(done[static_cast<std::size_t>(part)] == (part < parts ? 1 : 0));
  }
}

namespace {

/// True if each of `threads` parts had its own thread: a part ends when all have begun, which
/// one thread alone never sees.
bool all_meet(HostTeam& team, int threads) {
  std::atomic<int> present{0};
  team.run(threads, [&](int) {
    ++present;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (present < threads && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  });
  return present == threads;
}

}  // namespace

TEST_CASE("Several threads of a team work at a time", "[threads]") {
  constexpr int kThreads = 3;
  HostTeam team;
  team.resize(kThreads);
  // After a sleep, too: the workers have to be woken.
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(all_meet(team, kThreads));
  }
}

TEST_CASE("A team works whole from its first run", "[threads]") {
  HostTeam team;
  for (int round = 0; round < 200; ++round) {
    team.resize(2 + round % 3);  // ends the threads before, starts others
    REQUIRE(all_meet(team, 2 + round % 3));
  }
}

TEST_CASE("Shares cover a range without gaps", "[threads]") {
  HostTeam team;
  team.resize(4);
  for (const std::int64_t count : {0, 1, 2, 3, 4, 5, 17, 1000, 123457}) {
    for (const std::int64_t least : {1, 3, 100}) {
      std::mutex mutex;
      std::vector<std::pair<std::int64_t, std::int64_t>> shares;
      team.share(count, least, [&](std::int64_t first, std::int64_t end) {
        const std::lock_guard lock(mutex);
        shares.emplace_back(first, end);
      });
      std::sort(shares.begin(), shares.end());
      std::int64_t at = 0;
      for (const auto& [first, end] : shares) {
        CHECK(first == at);
        CHECK((end - first >= least || shares.size() == 1));
        at = end;
      }
      CHECK(at == count);
      CHECK(shares.size() <= 4);
    }
  }
}

TEST_CASE("What a part throws reaches the caller, and the team goes on", "[threads]") {
  HostTeam team;
  team.resize(3);
  for (int thrower = 0; thrower < 3; ++thrower) {
    std::atomic<int> done{0};
    CHECK_THROWS_WITH(team.run(3,
                               [&](int part) {
                                 if (part == thrower) throw std::runtime_error("part");
                                 ++done;
                               }),
                      "part");
    CHECK(done == 2);
    CHECK_FALSE(HostTeam::is_inside());
    team.run(3, [&](int) { ++done; });
    CHECK(done == 5);
  }
}

TEST_CASE("Runs within a part and beside another run are the caller's", "[threads]") {
  HostTeam team;
  team.resize(3);
  std::atomic<int> inner{0}, known{0};
  team.run(3, [&](int part) {
    known += HostTeam::is_inside() && HostTeam::part() == part ? 1 : 0;
    const auto self = std::this_thread::get_id();
    team.run(5, [&](int) { inner += std::this_thread::get_id() == self ? 1 : 100; });
  });
  CHECK(known == 3);
  CHECK(inner == 15);

  std::vector<std::thread> callers;
  std::atomic<int> parts{0};
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      for (int round = 0; round < 500; ++round) team.run(3, [&](int) { ++parts; });
    });
  for (std::thread& caller : callers) caller.join();
  CHECK(parts == 4 * 500 * 3);
}

TEST_CASE("The process's team is as large as Kokkos where that has threads", "[threads]") {
  if (kOpenMpExecution) CHECK(HostTeam::instance().size() == ExecSpace().concurrency());
}

TEST_CASE("Scratch memory of a row is its thread's own", "[threads]") {
  if (!kTeamExecution) return;
  HostTeam& team = HostTeam::instance();
  const int before = team.size();
  team.resize(4);
  std::vector<int> wrong(1000, 1);
  int* const result = wrong.data();
  for_rows(
      "deltapipe::Test::scratch", row_policy(ExecSpace(), 1000, 3000),
      DELTAPIPE_LAMBDA(const RowMember& row) {
        auto* const first = static_cast<int*>(row.team_scratch(0).get_shmem(1000));
        auto* const second = static_cast<int*>(row.team_scratch(0).get_shmem(2000));
        const int n = row.league_rank();
        std::fill(first, first + 250, n);
        std::fill(second, second + 500, -n);
        result[n] = std::accumulate(first, first + 250, 0) != 250 * n ||
                    std::accumulate(second, second + 500, 0) != -500 * n;
      });
  CHECK(std::accumulate(wrong.begin(), wrong.end(), 0) == 0);
  team.resize(before);
}

TEST_CASE("Atomics are atomic among a team's threads", "[threads]") {
  if (!kTeamExecution) return;
  HostTeam& team = HostTeam::instance();
  const int before = team.size();
  team.resize(4);
  std::uint64_t sum = 0;
  std::uint32_t largest = 0;
  std::uint64_t* const sum_place = &sum;
  std::uint32_t* const largest_place = &largest;
  for_range(
      "deltapipe::Test::atomics", ExecSpace(), 400000, DELTAPIPE_LAMBDA(int i) {
        atomic_add(sum_place, std::uint64_t{1});
        atomic_max(largest_place, static_cast<std::uint32_t>(i * std::int64_t{7919} % 400000));
      });
  CHECK(sum == 400000);
  CHECK(largest == 399999);
  team.resize(before);
}
