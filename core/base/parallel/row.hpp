// SPDX-License-Identifier: BSD-3-Clause
// Loops over one row of a matrix by one team. A device's threads share the row. On the host one
// thread runs it in fixed vector lanes: sums vectorise without reassociating floating point and
// have the same order with every instruction set. Members are template parameters, because some of
// their functions exist on one kind only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/kernel.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#define DELTAPIPE_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#else
#define DELTAPIPE_INDEPENDENT_ITERATIONS
#endif

/// Prefetches the cache line `ahead` elements after `from`, which need not exist. Does nothing on a
/// device.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void prefetch([[maybe_unused]] const T* from,
                                          [[maybe_unused]] std::size_t ahead) {
#if (defined(__GNUC__) || defined(__clang__)) && !defined(__CUDA_ARCH__) && \
    !defined(__HIP_DEVICE_COMPILE__)
  const std::uintptr_t place = reinterpret_cast<std::uintptr_t>(from) + ahead * sizeof(T);
  // An integer, because a pointer would have to point into the array.
  __builtin_prefetch(reinterpret_cast<const void*>(place));  // NOLINT(performance-no-int-to-ptr)
#endif
}

/// Prefetches the n elements after those of `row`: they arrive while the processor works on `row`.
template <class T>
KOKKOS_FORCEINLINE_FUNCTION void prefetch_next_row([[maybe_unused]] const T* row,
                                                   [[maybe_unused]] int n) {
  if constexpr (kHostExecution) {
    constexpr int kLine = 64 / sizeof(T);
    for (int i = 0; i < n; i += kLine) prefetch(row, static_cast<std::size_t>(n) + i);
  }
}

/// Calls body(i) for i in [0, n); iterations are independent. There is no barrier: other threads of
/// the team may not see the writes yet.
template <class Body, class Member>
KOKKOS_FORCEINLINE_FUNCTION void row_for(const Member& team, int n, const Body& body) {
  if constexpr (kHostExecution) {
    DELTAPIPE_INDEPENDENT_ITERATIONS
    for (int i = 0; i < n; ++i) body(i);
  } else {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), body);
  }
}

/// Like row_for(), followed by a barrier: the whole team sees the writes.
template <class Body, class Member>
KOKKOS_FORCEINLINE_FUNCTION void row_for_synced(const Member& team, int n, const Body& body) {
  row_for(team, n, body);
  if constexpr (!kHostExecution) team.team_barrier();
}

/// Calls body(n, c) for all rows and columns of a matrix; the calls are independent. A team's row
/// is a loop over its columns that vectorises. Asynchronous on exec.
template <class Body>
void for_elements(const char* label, const ExecSpace& exec, int rows, int columns,
                  const Body& body) {
  for_rows(
      label, row_policy(exec, rows), DELTAPIPE_LAMBDA(const RowMember& team) {
        const int n = team.league_rank();
        row_for(team, columns, [&](int c) { body(n, c); });
      });
}

inline constexpr int kRowLanes = 16;

/// Returns the sum of body(i) over [0, n), the same value in all threads of the team.
template <class Real, class Body, class Member>
KOKKOS_FORCEINLINE_FUNCTION Real row_sum(const Member& team, int n, const Body& body) {
  Real total = 0;
  if constexpr (kHostExecution) {
    Real lane[kRowLanes] = {};
    const int whole = n - n % kRowLanes;
    for (int i = 0; i < whole; i += kRowLanes) {
      DELTAPIPE_INDEPENDENT_ITERATIONS
      for (int l = 0; l < kRowLanes; ++l) lane[l] += body(i + l);
    }
    for (int i = whole; i < n; ++i) lane[i - whole] += body(i);
    for (int width = kRowLanes / 2; width > 0; width /= 2)
      for (int l = 0; l < width; ++l) lane[l] += lane[l + width];
    total = lane[0];
  } else {
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, n), [&](int i, Real& sum) { sum += body(i); }, total);
  }
  return total;
}

/// Returns the largest body(i) over [0, n), at least `least`, the same value in all threads of the
/// team. NaN values are ignored.
template <class Value, class Body, class Member>
KOKKOS_FORCEINLINE_FUNCTION Value row_max(const Member& team, int n, Value least,
                                          const Body& body) {
  Value largest = least;
  if constexpr (kHostExecution) {
    // Explicit lanes, because GCC 12 compiles the plain loop to branches.
    constexpr int kLanes = 128 / static_cast<int>(sizeof(Value));
    Value lane[kLanes];
    for (int l = 0; l < kLanes; ++l) lane[l] = least;
    const int whole = n - n % kLanes;
    for (int i = 0; i < whole; i += kLanes) {
      DELTAPIPE_INDEPENDENT_ITERATIONS
      for (int l = 0; l < kLanes; ++l) {
        const Value value = body(i + l);
        lane[l] = value > lane[l] ? value : lane[l];
      }
    }
    for (int i = whole; i < n; ++i) {
      const Value value = body(i);
      lane[i - whole] = value > lane[i - whole] ? value : lane[i - whole];
    }
    for (int l = 0; l < kLanes; ++l) largest = lane[l] > largest ? lane[l] : largest;
  } else {
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, n),
        [&](int i, Value& most) {
          const Value value = body(i);
          if (value > most) most = value;
        },
        Kokkos::Max<Value>(largest));
    if (!(largest > least)) largest = least;
  }
  return largest;
}

/// Calls use(i, sum of count(j) over j < i) for i in [0, n), on the host in ascending order. count
/// must not depend on what use changes. Afterwards the whole team sees the writes.
template <class Value, class Count, class Use, class Member>
KOKKOS_FORCEINLINE_FUNCTION void row_scan(const Member& team, int n, const Count& count,
                                          const Use& use) {
  if constexpr (kHostExecution) {
    Value before = 0;
    for (int i = 0; i < n; ++i) {
      const Value value = count(i);
      use(i, before);
      before += value;
    }
  } else {
    Kokkos::parallel_scan(Kokkos::TeamThreadRange(team, n), [&](int i, Value& sum, bool final) {
      const Value value = count(i);
      if (final) use(i, sum);
      sum += value;
    });
    team.team_barrier();
  }
}

/// Columns that one team sums, and on a device the rows that it sums in parallel.
inline constexpr int kColumnTile = 64;
inline constexpr int kColumnLanes = 16;

/// Returns the scratch memory of a team for column_sums_by_lanes() with sums of `sum_bytes` each.
constexpr std::size_t column_lanes_bytes(std::size_t sum_bytes) {
  return kColumnLanes * kColumnTile * sum_bytes;
}

/// Calls store(c, sum over n in [first_row, end_row) of body(n, c)) for the columns of a tile.
/// Every kColumnLanes-th row is added to one partial sum; then the partial sums are added in order.
/// This order does not depend on the team's size. Neighbouring threads read neighbouring columns.
template <class Sum, class Body, class Store, class Member>
KOKKOS_FORCEINLINE_FUNCTION void column_sums_by_lanes(const Member& team, int tile, int columns,
                                                      int first_row, int end_row, const Body& body,
                                                      const Store& store) {
  const int first = tile * kColumnTile;
  const int width = columns - first < kColumnTile ? columns - first : kColumnTile;
  Sum* const partial =
      static_cast<Sum*>(team.team_scratch(0).get_shmem(column_lanes_bytes(sizeof(Sum))));
  row_for_synced(team, kColumnLanes * kColumnTile, [&](int i) {
    const int lane = i / kColumnTile, column = i % kColumnTile;
    if (column >= width) return;
    Sum sum{};
    for (int n = first_row + lane; n < end_row; n += kColumnLanes) sum += body(n, first + column);
    partial[i] = sum;
  });
  row_for(team, width, [&](int column) {
    Sum sum{};
    for (int lane = 0; lane < kColumnLanes; ++lane) sum += partial[lane * kColumnTile + column];
    store(first + column, sum);
  });
}

}  // namespace deltapipe
