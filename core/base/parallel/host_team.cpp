// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/host_team.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "core/base/error.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

namespace {

/// Number of times that a thread polls before it sleeps (about 50 us) or yields its core.
constexpr int kLooks = 1000;

thread_local bool inside = false;
thread_local int own_part = 0;

/// Marks the calling thread as working on a part of a run.
class Inside {
 public:
  Inside() : before_(inside) { inside = true; }
  ~Inside() { inside = before_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  bool before_;
};

void pause_a_moment() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

constexpr std::uint64_t ticket(std::uint32_t generation, int parts, int taken) {
  return std::uint64_t{generation} << 32 | static_cast<std::uint64_t>(parts) << 16 |
         static_cast<std::uint64_t>(taken);
}
constexpr std::uint32_t generation_of(std::uint64_t tickets) {
  return static_cast<std::uint32_t>(tickets >> 32);
}
constexpr int parts_of(std::uint64_t tickets) {
  return static_cast<int>(tickets >> 16 & 0xffff);
}
constexpr int taken_of(std::uint64_t tickets) {
  return static_cast<int>(tickets & 0xffff);
}

}  // namespace

HostTeam& HostTeam::instance() {
  // Never destroyed: a process whose kernel never returns must end without waiting for its threads.
  static HostTeam& team = *[] {
    auto* const made = new HostTeam;
    if (kOpenMpExecution && Kokkos::is_initialized()) made->resize(ExecSpace().concurrency());
    return made;
  }();
  return team;
}

HostTeam::~HostTeam() {
  stop_workers();
}

bool HostTeam::is_inside() {
  return inside;
}

int HostTeam::part() {
  return own_part;
}

void HostTeam::resize(int threads) {
  DELTAPIPE_ASSERT(threads >= 1 && threads <= kMostThreads, std::to_string(threads));
  if (threads == size_) return;
  if (kOpenMpExecution) {
    size_ = threads;
    return;
  }
  stop_workers();
  // A worker that starts late still joins the first run.
  const std::uint32_t seen = generation_of(tickets_.load(std::memory_order_relaxed));
  try {
    for (int i = 1; i < threads; ++i)
      workers_.push_back(start_helper_thread("kernels", [this, seen] { work(seen); }));
  } catch (...) {
    stop_workers();
    throw;
  }
  size_ = threads;
}

void HostTeam::stop_workers() {
  ends_ = true;
  ++wakes_;
  wakes_.notify_all();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  size_ = 1;
  ends_ = false;
}

void HostTeam::run_parts(const Job& job, int parts) {
  DELTAPIPE_ASSERT(parts <= kMostThreads, std::to_string(parts));
  std::unique_lock lock(running_, std::defer_lock);
  if (inside || size_ < 2 || parts < 2 || !lock.try_lock()) {
    const Inside guard;
    for (int part = 0; part < parts; ++part) job.call(job.context, part);
    return;
  }
  job_ = job;
  mode_ = floating_point_mode();
  problem_ = nullptr;
  done_.store(0, std::memory_order_relaxed);
  const std::uint32_t generation = generation_of(tickets_.load(std::memory_order_relaxed)) + 1;
  // Ordered with a worker's last poll before it sleeps: either the worker sees the tickets, or this
  // thread sees the worker asleep.
  tickets_.store(ticket(generation, parts, 1), std::memory_order_seq_cst);
  if constexpr (kOpenMpExecution)
    share_by_openmp(generation);
  else
    share_by_workers(generation, parts);
  if (problem_ != nullptr) std::rethrow_exception(problem_);
}

void HostTeam::share_by_workers(std::uint32_t generation, int parts) {
  const int woken = std::min(parts - 1, asleep_.load(std::memory_order_seq_cst));
  if (woken > 0) ++wakes_;
  for (int i = 0; i < woken; ++i) wakes_.notify_one();
  {
    const Inside guard;
    run_part(0);
    take_parts(generation);
  }
  for (int looks = 0; done_.load(std::memory_order_acquire) < parts; ++looks)
    looks < kLooks ? pause_a_moment() : std::this_thread::yield();
}

void HostTeam::share_by_openmp([[maybe_unused]] std::uint32_t generation) {
#if defined(KOKKOS_ENABLE_OPENMP)
  // Always uses all threads, because libgomp ends threads that a region does not need.
#pragma omp parallel num_threads(size_)
  {
    const Inside guard;
    if (omp_get_thread_num() == 0) run_part(0);
    take_parts(generation);
  }
#endif
}

void HostTeam::run_part(int part) {
  own_part = part;
  const FloatingPointScope mode(mode_);
  try {
    job_.call(job_.context, part);
  } catch (...) {
    const std::lock_guard lock(problem_mutex_);
    if (problem_ == nullptr) problem_ = std::current_exception();
  }
  own_part = 0;
  done_.fetch_add(1, std::memory_order_release);
}

void HostTeam::take_parts(std::uint32_t generation) {
  std::uint64_t tickets = tickets_.load(std::memory_order_acquire);
  while (generation_of(tickets) == generation && taken_of(tickets) < parts_of(tickets)) {
    // While a claimed part is not done, the run continues and its job remains valid.
    if (tickets_.compare_exchange_weak(tickets, tickets + 1, std::memory_order_acq_rel)) {
      run_part(taken_of(tickets));
      tickets = tickets_.load(std::memory_order_acquire);
    }
  }
}

void HostTeam::work(std::uint32_t seen) {
  const Inside guard;
  const auto is_new = [&] {
    const std::uint64_t tickets = tickets_.load(std::memory_order_seq_cst);
    return generation_of(tickets) != seen && taken_of(tickets) < parts_of(tickets);
  };
  while (!ends_.load(std::memory_order_acquire)) {
    bool found = false;
    for (int looks = 0; looks < kLooks && !found; ++looks) {
      found = is_new();
      if (!found) pause_a_moment();
    }
    if (!found) {
      const std::uint32_t before = wakes_.load(std::memory_order_acquire);
      asleep_.fetch_add(1, std::memory_order_seq_cst);
      if (!is_new() && !ends_.load(std::memory_order_seq_cst)) wakes_.wait(before);
      asleep_.fetch_sub(1, std::memory_order_seq_cst);
      continue;
    }
    seen = generation_of(tickets_.load(std::memory_order_acquire));
    take_parts(seen);
  }
}

namespace {

/// Returns the number at the start of `text` and moves `text` past it; 0 if there is no number.
long take_number(const char*& text) {
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  text = end + std::strspn(end, " \t\n\v\f\r");
  return number;
}

/// Returns true for OpenMP's format: a number for each level of nesting.
bool is_list_of_threads(const char* text) {
  for (;; ++text) {
    if (take_number(text) < 1) return false;
    if (*text != ',') return *text == '\0';
  }
}

}  // namespace

int threads_of_environment() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  const bool has_text = text != nullptr && *text != '\0';
  if (has_text && !is_list_of_threads(text))
    throw UserError({.what = "the variable OMP_NUM_THREADS is not a number of threads",
                     .value = text,
                     .remedy = "set it to 1 or more, or unset it"});
  if (!has_text) text = std::getenv("OPENBLAS_NUM_THREADS");
  const long threads = text != nullptr ? take_number(text) : 0;
  return static_cast<int>(std::clamp<long>(threads, 0, HostTeam::kMostThreads));
}

std::byte* thread_scratch(std::size_t bytes, ThreadScratch use) {
  constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* memory) const {
      ::operator delete[](memory, std::align_val_t{kAlignment});
    }
  };
  struct Memory {
    std::unique_ptr<std::byte[], Free> data;
    std::size_t size = 0;
  };
  static thread_local Memory memories[2];
  Memory& memory = memories[use == ThreadScratch::product];
  if (bytes > memory.size) {
    memory.data.reset();
    memory.size = 0;
    memory.data.reset(
        static_cast<std::byte*>(::operator new[](bytes, std::align_val_t{kAlignment})));
    memory.size = bytes;
  }
  return memory.data.get();
}

}  // namespace deltapipe
