// SPDX-License-Identifier: BSD-3-Clause
// Helper threads' cores: those of the process, not of the thread that starts them.
#include "core/base/parallel/helper_thread.hpp"

#include <catch2/catch.hpp>

#ifdef __linux__
#include <sched.h>

#include <thread>

#include "core/cache/io_thread.hpp"

namespace deltapipe {

namespace {

cpu_set_t cores_of_this_thread() {
  cpu_set_t cores;
  REQUIRE(sched_getaffinity(0, sizeof cores, &cores) == 0);
  return cores;
}

struct CoresTask : IoTask {
  cpu_set_t cores{};
  void execute() noexcept override { sched_getaffinity(0, sizeof cores, &cores); }
};

/// Binds the thread to the first of its cores, as OpenMP does with OMP_PROC_BIND.
class Binding {
 public:
  Binding() {
    int first = 0;
    while (!CPU_ISSET(first, &before_)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
  }
  ~Binding() { sched_setaffinity(0, sizeof before_, &before_); }
  const cpu_set_t& before() const { return before_; }

 private:
  cpu_set_t before_ = cores_of_this_thread();
};

}  // namespace

TEST_CASE("helper threads may use all cores of the process", "[threads]") {
  remember_process_cores();
  const Binding binding;
  CHECK(CPU_COUNT(&binding.before()) >= 1);
  cpu_set_t cores{};
  start_helper_thread("a test", [&] { cores = cores_of_this_thread(); }).join();
  CHECK(CPU_EQUAL(&cores, &binding.before()));

  CoresTask task;
  {
    CacheIoThread io;
    io.submit_read(task);
    io.wait_read(task);
  }
  CHECK(CPU_EQUAL(&task.cores, &binding.before()));
  // This thread stays where it was put.
  const cpu_set_t mine = cores_of_this_thread();
  CHECK(CPU_COUNT(&mine) == 1);
}

TEST_CASE("a bound thread starts threads that are not", "[threads]") {
  remember_process_cores();
  const Binding binding;
  const cpu_set_t bound = cores_of_this_thread();
  cpu_set_t inherited{};
  {
    const UnboundThread unbound;
    std::thread([&] { inherited = cores_of_this_thread(); }).join();
  }
  CHECK(CPU_EQUAL(&inherited, &binding.before()));
  const cpu_set_t after = cores_of_this_thread();
  CHECK(CPU_EQUAL(&after, &bound));
}

}  // namespace deltapipe
#endif
