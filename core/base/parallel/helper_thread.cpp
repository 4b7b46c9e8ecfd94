// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/helper_thread.hpp"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <array>
#include <cstddef>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.hpp"

namespace deltapipe {

#ifdef __linux__

namespace {

/// A set of cores; one cpu_set_t has 1024.
struct Cores {
  static constexpr std::size_t kMostSets = 64;
  std::array<cpu_set_t, kMostSets> sets{};
  std::size_t count = 0;  ///< number of sets; 0: unknown

  std::size_t bytes() const { return count * sizeof(cpu_set_t); }

  /// Reads the settings of the calling thread.
  void read() {
    // The kernel refuses a mask that is shorter than its own.
    for (std::size_t tried = 1; tried <= kMostSets && count == 0; tried *= 2)
      if (sched_getaffinity(0, tried * sizeof(cpu_set_t), sets.data()) == 0) count = tried;
  }

  std::vector<int> numbers() const {
    std::vector<int> list;
    for (int core = 0; core < static_cast<int>(8 * bytes()); ++core)
      if (CPU_ISSET_S(core, bytes(), sets.data())) list.push_back(core);
    return list;
  }
};

constinit Cores remembered;  // before constructors

/// Binds the calling thread to `cores`. A refusal (the cores are no longer allowed) costs only
/// speed.
void use_cores(const Cores& cores) noexcept {
  if (cores.count > 0) (void)sched_setaffinity(0, cores.bytes(), cores.sets.data());
}

}  // namespace

void remember_process_cores() {
  if (remembered.count == 0) remembered.read();
}

void use_process_cores() noexcept {
  use_cores(remembered);
}

int process_core_count() {
  if (remembered.count == 0)
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(1, CPU_COUNT_S(remembered.bytes(), remembered.sets.data()));
}

std::vector<int> process_cores() {
  return remembered.numbers();
}

UnboundThread::UnboundThread() {
  Cores own;
  own.read();
  std::vector<int> cores = own.numbers();
  if (remembered.count == 0 || cores == process_cores()) return;
  bound_to_ = std::move(cores);
  use_process_cores();
}

UnboundThread::~UnboundThread() {
  if (bound_to_.empty()) return;
  Cores own;
  own.count = remembered.count;
  for (const int core : bound_to_) CPU_SET_S(core, own.bytes(), own.sets.data());
  use_cores(own);
}

#else

std::vector<int> process_cores() {
  return {};
}
void remember_process_cores() {}
void use_process_cores() noexcept {}
UnboundThread::UnboundThread() = default;
UnboundThread::~UnboundThread() = default;
int process_core_count() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

#endif

std::thread start_helper_thread(const std::string& purpose, std::function<void()> run) {
  try {
    return std::thread([run = std::move(run)] {
      use_process_cores();
      run();
    });
  } catch (const std::system_error& error) {
    throw UserError({.what = "the system cannot start a thread for " + purpose,
                     .value = error.code().message(),
                     .remedy = "raise the limits on processes and threads (ulimit -u, the "
                               "cgroup's pids.max) and on address space (ulimit -v), or set "
                               "OMP_NUM_THREADS to fewer"});
  }
}

}  // namespace deltapipe
