// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/helper_thread.hpp"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <system_error>
#include <utility>
#include <vector>

#include "core/base/error.hpp"

namespace deltapipe {

#ifdef __linux__

namespace {

/// As many words as the kernel's mask has; empty: not remembered.
std::vector<cpu_set_t> remembered_cores;

}  // namespace

void remember_process_cores() {
  // The kernel refuses a mask that is shorter than its own (1024 processors a cpu_set_t).
  for (std::size_t sets = 1; sets <= 64; sets *= 2) {
    std::vector<cpu_set_t> cores(sets);
    if (sched_getaffinity(0, sets * sizeof(cpu_set_t), cores.data()) != 0) continue;
    remembered_cores = std::move(cores);
    return;
  }
}

void use_process_cores() noexcept {
  // A refusal (the cores were taken away meanwhile) costs speed only.
  if (!remembered_cores.empty())
    (void)sched_setaffinity(0, remembered_cores.size() * sizeof(cpu_set_t),
                            remembered_cores.data());
}

int process_core_count() {
  if (remembered_cores.empty())
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  return std::max(
      1, CPU_COUNT_S(remembered_cores.size() * sizeof(cpu_set_t), remembered_cores.data()));
}

std::vector<int> process_cores() {
  std::vector<int> cores;
  const std::size_t bytes = remembered_cores.size() * sizeof(cpu_set_t);
  for (int core = 0; core < static_cast<int>(8 * bytes); ++core)
    if (CPU_ISSET_S(core, bytes, remembered_cores.data())) cores.push_back(core);
  return cores;
}

#else

std::vector<int> process_cores() {
  return {};
}
void remember_process_cores() {}
void use_process_cores() noexcept {}
int process_core_count() {
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

#endif

double cpu_quota() {
  double quota = 0, period = 0;
  if (std::ifstream file("/sys/fs/cgroup/cpu.max"); file >> quota >> period) {
    return period > 0 ? quota / period : 0;  // "max" is no number
  }
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  std::ifstream period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  return quota_file >> quota && period_file >> period && quota > 0 && period > 0 ? quota / period
                                                                                 : 0;
}

std::thread start_helper_thread(const std::string& purpose, std::function<void()> run) {
  try {
    return std::thread([run = std::move(run)] {
      use_process_cores();
      run();
    });
  } catch (const std::system_error& error) {
    throw UserError({.what = "the system has no thread for " + purpose,
                     .value = error.code().message(),
                     .remedy = "raise the limits on processes and threads (ulimit -u, the "
                               "cgroup's pids.max) and on address space (ulimit -v), or set "
                               "OMP_NUM_THREADS to fewer"});
  }
}

}  // namespace deltapipe
