// SPDX-License-Identifier: BSD-3-Clause
// Threads that share a rank's kernels: of its own where Kokkos has one thread (Kokkos::Serial, as
// Debian builds it), those of OpenMP where Kokkos computes with these (Kokkos::OpenMP), which then
// are where OMP_PLACES and OMP_PROC_BIND place them, and no others compete with them. A kernel is
// divided into as many parts as there are threads. The thread that starts it does the first part
// and every other that no thread has taken by then: a part does not wait for a thread that sleeps,
// or whose core does something else. OpenMP's region ends when all of its threads have come to it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "core/base/parallel/floating_point.hpp"

namespace deltapipe {

class HostTeam {
 public:
  /// The process's, which kernels run on. Until resize() is called one thread, or as many as Kokkos
  /// has if it was started before.
  static HostTeam& instance();

  HostTeam() = default;
  ~HostTeam();
  HostTeam(const HostTeam&) = delete;
  HostTeam& operator=(const HostTeam&) = delete;

  /// From now on so many threads, the caller of run() among them; at least 1, at most kMostThreads.
  /// Not while run() is under way. Throws UserError when the system has no thread left; OpenMP ends
  /// the process then.
  void resize(int threads);
  int size() const { return size_; }

  /// body(part) for each part in [0, parts), at most kMostThreads; returns when all are done. What
  /// the body throws is thrown on, once. Parts compute in the caller's floating-point mode
  /// (core/base/parallel/floating_point.hpp). Runs all parts itself within a body, and while
  /// another thread's run() is under way.
  template <class Body>
  void run(int parts, const Body& body) {
    run_parts(
        {[](const void* context, int part) { (*static_cast<const Body*>(context))(part); }, &body},
        parts);
  }

  /// body(first, end) for contiguous shares of [0, count), each of at least `least` but for a
  /// single one.
  template <class Index, class Body>
  void share(Index count, Index least, const Body& body) {
    if (count <= 0) return;
    if (is_inside()) return body(Index(0), count);
    const Index most = count / (least > 1 ? least : 1);
    const int parts = most < 1 ? 1 : most < size() ? static_cast<int>(most) : size();
    run(parts, [&](int part) {
      body(static_cast<Index>(count / parts * part + count % parts * part / parts),
           static_cast<Index>(count / parts * (part + 1) + count % parts * (part + 1) / parts));
    });
  }

  /// True on a thread within a body that run() shares.
  static bool is_inside();
  /// Which of the parts the calling thread is at; 0 outside.
  static int part();

  static constexpr int kMostThreads = 1024;

 private:
  struct Job {
    void (*call)(const void* context, int part);
    const void* context;
  };

  void run_parts(const Job& job, int parts);
  /// Shares the run with the workers, until all parts of the run `generation` are done.
  void share_by_workers(std::uint32_t generation, int parts);
  void share_by_openmp(std::uint32_t generation);
  void run_part(int part);
  /// Does what parts of the run `generation` are left.
  void take_parts(std::uint32_t generation);
  void work(std::uint32_t seen);
  void stop_workers();

  int size_ = 1;
  std::vector<std::thread> workers_;  ///< none where OpenMP has the threads
  std::mutex running_;
  Job job_{};
  FloatingPointMode mode_{};
  std::exception_ptr problem_;
  std::mutex problem_mutex_;
  // The run: its number << 32 | parts << 16 | parts that were taken.
  alignas(64) std::atomic<std::uint64_t> tickets_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<std::uint32_t> wakes_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> ends_{false};
};

/// Number in OMP_NUM_THREADS (the first of its list) or, without it, OPENBLAS_NUM_THREADS; 0:
/// neither is set. UserError unless the former is a list of positive numbers.
int threads_of_environment();

/// Who uses memory of a thread: a kernel's body, or a product, which a kernel may make meanwhile.
enum class ThreadScratch { kernel, product };

/// Memory of the calling thread for that use, aligned to 64 bytes, at least `bytes` until its next
/// call for more.
std::byte* thread_scratch(std::size_t bytes, ThreadScratch use = ThreadScratch::kernel);

}  // namespace deltapipe
