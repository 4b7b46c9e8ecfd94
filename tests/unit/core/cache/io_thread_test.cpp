// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/io_thread.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <vector>

using deltapipe::CacheIoThread;
using deltapipe::IoTask;

namespace {

/// Notes its number in a log; the first one may block until told to go on.
struct LoggedTask : IoTask {
  void execute() noexcept override {
    if (gate != nullptr)
      while (!gate->load()) std::this_thread::sleep_for(std::chrono::microseconds(50));
    log->push_back(number);
  }
  int number = 0;
  std::vector<int>* log = nullptr;
  std::atomic<bool>* gate = nullptr;
};

}  // namespace

TEST_CASE("the I/O thread runs reads before writes, each in order", "[cache]") {
  std::vector<int> log;
  std::atomic<bool> gate{false};
  std::array<LoggedTask, 6> tasks;
  for (int i = 0; i < 6; ++i) {
    tasks[static_cast<std::size_t>(i)].number = i;
    tasks[static_cast<std::size_t>(i)].log = &log;
  }
  tasks[0].gate = &gate;
  {
    CacheIoThread io;
    io.submit_write(tasks[0]);
    // Task 0 has left the queue when it is running; then the order of the others is certain.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    io.submit_write(tasks[1]);
    io.submit_read(tasks[2]);
    io.submit_write(tasks[3]);
    io.submit_read(tasks[4]);
    REQUIRE(!tasks[4].is_done());
    gate = true;
    io.wait_read(tasks[4]);
    REQUIRE(tasks[4].is_done());
    io.wait_write(tasks[3]);
    REQUIRE(tasks[1].is_done());
    io.submit_write(tasks[5]);
  }
  REQUIRE(tasks[5].is_done());
  const auto at = [&](int number) {
    return std::find(log.begin(), log.end(), number) - log.begin();
  };
  REQUIRE(log.size() == 6);
  REQUIRE(at(4) < at(1));
  REQUIRE(at(2) < at(1));
  REQUIRE(at(1) < at(3));
}
