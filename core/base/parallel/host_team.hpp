// SPDX-License-Identifier: BSD-3-Clause
// Threads that share a rank's kernels. With Kokkos::Serial, as in Debian, the team starts its own
// threads. With Kokkos::OpenMP it uses OpenMP's threads, at the places that OMP_PLACES and
// OMP_PROC_BIND give them, and no other threads compete with them. A kernel is divided into one
// part per thread. The thread that starts the kernel computes the first part and every part that no
// other thread has claimed by then. A part therefore never waits for a thread that sleeps or whose
// core is busy. OpenMP's region ends when all of its threads have reached it.
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
  /// Returns the team of the process, which runs its kernels. Until resize() is called, it has one
  /// thread or, if Kokkos was started before, as many as Kokkos.
  static HostTeam& instance();

  HostTeam() = default;
  ~HostTeam();
  HostTeam(const HostTeam&) = delete;
  HostTeam& operator=(const HostTeam&) = delete;

  /// Sets the number of threads, including the caller of run(); at least 1, at most kMostThreads.
  /// Must not be called during run(). Throws UserError if the system cannot start another thread;
  /// OpenMP ends the process instead.
  void resize(int threads);
  int size() const { return size_; }

  /// Calls body(part) for each part in [0, parts), at most kMostThreads, and returns when all are
  /// done. Rethrows one exception of the bodies. Parts compute in the caller's floating-point mode
  /// (core/base/parallel/floating_point.hpp). The calling thread runs all parts if it is inside a
  /// body, or while run() is active on another thread.
  template <class Body>
  void run(int parts, const Body& body) {
    run_parts(
        {[](const void* context, int part) { (*static_cast<const Body*>(context))(part); }, &body},
        parts);
  }

  /// Calls body(first, end) for contiguous shares of [0, count). Each share has at least `least`
  /// elements, unless there is only one share.
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

  /// Returns true on a thread inside a body of run().
  static bool is_inside();
  /// Returns the part that the calling thread works on; 0 outside of a body.
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
  /// Computes the remaining parts of the run `generation`.
  void take_parts(std::uint32_t generation);
  void work(std::uint32_t seen);
  void stop_workers();

  int size_ = 1;
  std::vector<std::thread> workers_;  ///< empty if the threads are OpenMP's
  std::mutex running_;
  Job job_{};
  FloatingPointMode mode_{};
  std::exception_ptr problem_;
  std::mutex problem_mutex_;
  // The run: its number << 32 | parts << 16 | claimed parts.
  alignas(64) std::atomic<std::uint64_t> tickets_{0};
  alignas(64) std::atomic<int> done_{0};
  alignas(64) std::atomic<std::uint32_t> wakes_{0};
  std::atomic<int> asleep_{0};
  std::atomic<bool> ends_{false};
};

/// Returns the number in OMP_NUM_THREADS (the first of its list) or, without it, in
/// OPENBLAS_NUM_THREADS; 0: neither is set. UserError unless the former is a list of positive
/// numbers.
int threads_of_environment();

/// User of a thread's memory: a kernel's body, or a product that a kernel computes meanwhile.
enum class ThreadScratch { kernel, product };

/// Returns memory of the calling thread for that use, aligned to 64 bytes. It has at least `bytes`
/// and is valid until the thread's next call for more.
std::byte* thread_scratch(std::size_t bytes, ThreadScratch use = ThreadScratch::kernel);

}  // namespace deltapipe
