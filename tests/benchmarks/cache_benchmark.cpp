// SPDX-License-Identifier: BSD-3-Clause
// What a cache that spills costs a training loop: epochs over shuffled samples, each micro-batch a
// stand-in for compute (a sleep, as on a device) between acquire and release, with a budget of a
// quarter of the records and, for comparison, with everything in memory.
//
//   cache_benchmark [samples] [record KiB] [compute ms] [epochs] [directory] [cold]
//
// "cold": the file is dropped from the system's page cache in every micro-batch, so that reads come
// from the disk.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/cache/activation_cache.hpp"
#include "core/cache/io_thread.hpp"

using namespace deltapipe;

namespace {

using Clock = std::chrono::steady_clock;

struct Workload {
  std::uint64_t samples = 256;
  std::size_t record_bytes = 256 * 1024;
  double compute_seconds = 0.010;
  int epochs = 3;
  std::string directory = ".";
  bool cold = false;
};

void drop_from_page_cache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ::fdatasync(fd);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  ::close(fd);
}

/// Seconds of all epochs but the first, in which every visit is a first one.
double run(const Workload& workload, std::uint64_t budget_bytes, const char* name) {
  const CacheShape shape{.samples = workload.samples,
                         .record_bytes = workload.record_bytes,
                         .max_samples_in_flight = 1,
                         .prefetch_samples = 8};
  const CacheIdentity identity{.storage = "fp16"};
  const std::string path = workload.directory + "/cache_benchmark.h5";
  CacheIoThread io;
  ActivationCache cache(ExecSpace(), &io, shape, identity, budget_bytes, path);
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> order;
  for (int epoch = 0; epoch < workload.epochs; ++epoch) {
    std::vector<std::uint64_t> ids(workload.samples);
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    order.insert(order.end(), ids.begin(), ids.end());
  }
  const std::size_t ahead = static_cast<std::size_t>(shape.prefetch_samples);
  const ExecSpace exec;
  MemoryRecords records;
  std::vector<std::uint32_t> visits;
  cache.prefetch({order.data(), std::min(ahead, order.size())});
  Clock::time_point begin;
  double outside_seconds = 0;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == workload.samples) {
      begin = Clock::now();
      outside_seconds = 0;
      cache.take_statistics();
    }
    if (i + ahead < order.size()) cache.prefetch({order.data() + i + ahead, 1});
    cache.acquire({order.data() + i, 1}, records, visits);
    std::this_thread::sleep_for(std::chrono::duration<double>(workload.compute_seconds));
    cache.release(exec, {order.data() + i, 1});
    if (workload.cold && budget_bytes != 0) {
      const Clock::time_point drop = Clock::now();
      drop_from_page_cache(path);
      outside_seconds += std::chrono::duration<double>(Clock::now() - drop).count();
    }
  }
  const double seconds =
      std::chrono::duration<double>(Clock::now() - begin).count() - outside_seconds;
  const CacheStatistics s = cache.take_statistics();
  std::printf(
      "%-10s %8.3f s  in acquire %6.2f %%  stalled %6.2f %%  hits %llu  misses %llu "
      "(late %llu)  read %.1f MB  written %.1f MB\n",
      name, seconds, 100 * s.acquire_seconds / seconds, 100 * s.stall_seconds / seconds,
      static_cast<unsigned long long>(s.hits), static_cast<unsigned long long>(s.misses),
      static_cast<unsigned long long>(s.late_misses), 1e-6 * static_cast<double>(s.bytes_read),
      1e-6 * static_cast<double>(s.bytes_written));
  std::error_code ignored;
  std::filesystem::remove(path, ignored);
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  Kokkos::ScopeGuard kokkos(argc, argv);
  Workload workload;
  if (argc > 1) workload.samples = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) workload.record_bytes = 1024 * std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) workload.compute_seconds = 1e-3 * std::strtod(argv[3], nullptr);
  if (argc > 4) workload.epochs = std::atoi(argv[4]);
  if (argc > 5) workload.directory = argv[5];
  if (argc > 6) workload.cold = std::string(argv[6]) == "cold";
  const double memory = run(workload, 0, "in memory");
  const double spill = run(workload, workload.samples * workload.record_bytes / 4, "budget 1/4");
  std::printf("cost of the budget: %.2f %% of the time with everything in memory\n",
              100 * (spill / memory - 1));
  return 0;
}
