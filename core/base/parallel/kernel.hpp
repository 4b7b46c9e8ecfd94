// SPDX-License-Identifier: BSD-3-Clause
// Launches kernels over indices or over rows. On a host the threads of a HostTeam run them, as one
// kernel that Kokkos' tools see; elsewhere Kokkos does.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/base/parallel/host_team.hpp"
#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

/// Scratch memory of one row, with the interface of Kokkos' ScratchMemorySpace.
class HostScratch {
 public:
  HostScratch(std::byte* memory, std::size_t size) : next_(memory), end_(memory + size) {}
  /// Returns null if less than `bytes` remain.
  void* get_shmem(std::size_t bytes) const {
    constexpr std::size_t kAlignment = 64;
    const std::size_t taken = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (static_cast<std::size_t>(end_ - next_) < taken) return nullptr;
    std::byte* const given = next_;
    next_ += taken;
    return given;
  }

 private:
  mutable std::byte* next_;
  std::byte* end_;
};

/// Row of a kernel on a HostTeam: the part of Kokkos' team members that one thread needs.
class HostRow {
 public:
  HostRow(int row, const HostScratch& scratch) : row_(row), scratch_(scratch) {}
  int league_rank() const { return row_; }
  void team_barrier() const {}
  const HostScratch& team_scratch(int) const { return scratch_; }

 private:
  int row_;
  HostScratch scratch_;
};

/// Rows of a kernel on a HostTeam. The instance must outlive it: some versions of Kokkos count
/// references to instances, without atomics if Kokkos has one thread.
struct HostRows {
  const ExecSpace* exec;
  int rows;
  std::size_t scratch_bytes;
};

using RowPolicy = std::conditional_t<kTeamExecution, HostRows, Kokkos::TeamPolicy<ExecSpace>>;
using RowMember =
    std::conditional_t<kTeamExecution, HostRow, Kokkos::TeamPolicy<ExecSpace>::member_type>;

/// Policy with one team per row, each with its own scratch memory.
template <class Policy = RowPolicy>
Policy row_policy(const ExecSpace& exec, int rows, std::size_t scratch_bytes = 0) {
  if constexpr (kTeamExecution) {
    return {&exec, rows, scratch_bytes};
  } else {
    Policy policy = kHostExecution ? Policy(exec, rows, 1) : Policy(exec, rows, Kokkos::AUTO);
    if (scratch_bytes > 0) policy.set_scratch_size(0, Kokkos::PerTeam(scratch_bytes));
    return policy;
  }
}

/// Shares a body among a HostTeam as one kernel that tools see. Runs the body directly if it is
/// called inside another one, or without a team.
template <class Body>
void as_kernel([[maybe_unused]] const char* label, [[maybe_unused]] const ExecSpace& exec,
               const Body& body) {
  if constexpr (kTeamExecution) {
    if (!HostTeam::is_inside()) {
      as_one_kernel(label, exec, body);
      return;
    }
  }
  body();
}

/// Calls body(row's member) for every row. Asynchronous on the policy's instance.
template <class Policy, class Body>
void for_rows(const char* label, const Policy& policy, const Body& body) {
  if constexpr (kTeamExecution) {
    const auto rows_from = [&](int first, int end) {
      // Kokkos aligns each allocation to 8 bytes; a row makes a few of them.
      const std::size_t bytes = policy.scratch_bytes > 0 ? policy.scratch_bytes + 1024 : 0;
      std::byte* const memory = thread_scratch(bytes);
      for (int row = first; row < end; ++row) body(HostRow(row, HostScratch(memory, bytes)));
    };
    as_kernel(label, *policy.exec, [&] { HostTeam::instance().share(policy.rows, 1, rows_from); });
  } else {
    Kokkos::parallel_for(label, policy, body);
  }
}

/// Calls body(i) for i in [0, count). Threads share the indices in shares of at least `least`.
/// Asynchronous on exec.
template <class Index, class Body>
void for_range(const char* label, const ExecSpace& exec, Index count, const Body& body,
               Index least = 1) {
  if constexpr (kTeamExecution) {
    const auto range = [&](Index first, Index end) {
      for (Index i = first; i < end; ++i) body(i);
    };
    as_kernel(label, exec, [&] { HostTeam::instance().share(count, least, range); });
  } else {
    Kokkos::parallel_for(
        label, Kokkos::RangePolicy<ExecSpace, Kokkos::IndexType<Index>>(exec, 0, count), body);
  }
}

/// Calls body(first, end) for tiles of [0, count), so that the loop that a host vectorises contains
/// no index arithmetic; tiles on a device have one element. Asynchronous on exec.
template <class Body>
void for_tiles(const char* label, const ExecSpace& exec, std::int64_t count, const Body& body) {
  constexpr std::int64_t kTile = kHostExecution ? 4096 : 1;
  for_range(
      label, exec, (count + kTile - 1) / kTile, DELTAPIPE_LAMBDA(std::int64_t tile) {
        const std::int64_t first = tile * kTile;
        body(first, first + kTile < count ? first + kTile : count);
      });
}

/// Calls use() on one of the team's threads.
template <class Member, class Use>
KOKKOS_FORCEINLINE_FUNCTION void row_once(const Member& team, const Use& use) {
  if constexpr (kTeamExecution)
    use();
  else
    Kokkos::single(Kokkos::PerTeam(team), use);
}

// Kokkos' atomics are plain operations if Kokkos has one thread, even if a HostTeam has several.

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void atomic_add(T* place, T value) {
  if constexpr (kTeamExecution)
    std::atomic_ref<T>(*place).fetch_add(value, std::memory_order_relaxed);
  else
    Kokkos::atomic_add(place, value);
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void atomic_max(T* place, T value) {
  if constexpr (kTeamExecution) {
    const std::atomic_ref<T> at(*place);
    T found = at.load(std::memory_order_relaxed);
    while (found < value && !at.compare_exchange_weak(found, value, std::memory_order_relaxed)) {
    }
  } else {
    Kokkos::atomic_fetch_max(place, value);
  }
}

template <class T>
KOKKOS_FORCEINLINE_FUNCTION void atomic_set(T* place, T value) {
  if constexpr (kTeamExecution)
    std::atomic_ref<T>(*place).store(value, std::memory_order_relaxed);
  else
    Kokkos::atomic_exchange(place, value);
}

}  // namespace deltapipe
