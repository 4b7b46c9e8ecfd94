// Loops over the channels of one row. On the host a row belongs to one thread and its loops run in
// vector lanes; on a device a team shares it.
#pragma once

#include <cstdint>

#include "core/codec/number_formats.hpp"
#include "core/kokkos_compat.hpp"

#if defined(__GNUC__) && !defined(__clang__) && !defined(__CUDACC__) && !defined(__HIPCC__)
#define DELTAPIPE_CODEC_INDEPENDENT _Pragma("GCC ivdep")
#else
#define DELTAPIPE_CODEC_INDEPENDENT
#endif

namespace deltapipe::codec {

using Policy = Kokkos::TeamPolicy<ExecSpace>;
using Team = Policy::member_type;

inline Policy row_policy(const ExecSpace& exec, int rows, std::size_t scratch_bytes = 0) {
  const int threads = kHostExecution ? 1 : 128;
  Policy policy(exec, rows, threads);
  policy.set_scratch_size(0, Kokkos::PerTeam(scratch_bytes));
  return policy;
}

/// f(i) for i in 0 ... n-1, independent of each other; what it wrote is seen by the whole team.
template <class F>
KOKKOS_INLINE_FUNCTION void row_for(const Team& team, int n, const F& f) {
  if constexpr (kHostExecution) {
    DELTAPIPE_CODEC_INDEPENDENT
    for (int i = 0; i < n; ++i) f(i);
  } else {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, n), f);
    team.team_barrier();
  }
}

/// Largest of f(i), an unsigned number; the whole team gets it.
template <class F>
KOKKOS_INLINE_FUNCTION std::uint32_t row_max(const Team& team, int n, const F& f) {
  std::uint32_t largest = 0;
  if constexpr (kHostExecution) {
    // Lanes by hand: GCC 12 makes branches of the plain loop.
    constexpr int kLanes = 32;
    std::uint32_t lanes[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) {
        const std::uint32_t value = f(i + lane);
        lanes[lane] = value > lanes[lane] ? value : lanes[lane];
      }
    for (int lane = 0; i + lane < n; ++lane) {
      const std::uint32_t value = f(i + lane);
      lanes[lane] = value > lanes[lane] ? value : lanes[lane];
    }
    for (int lane = 0; lane < kLanes; ++lane)
      largest = lanes[lane] > largest ? lanes[lane] : largest;
  } else {
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, n),
        [&](int i, std::uint32_t& partial) {
          const std::uint32_t value = f(i);
          partial = value > partial ? value : partial;
        },
        Kokkos::Max<std::uint32_t>(largest));
  }
  return largest;
}

/// Sum of f(i) of the unsigned or floating type R; the whole team gets it.
template <class R, class F>
KOKKOS_INLINE_FUNCTION R row_sum(const Team& team, int n, const F& f) {
  if constexpr (kHostExecution) {
    constexpr int kLanes = 16;
    R lanes[kLanes] = {};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += f(i + lane);
    for (int lane = 0; i + lane < n; ++lane) lanes[lane] += f(i + lane);
    for (int width = kLanes / 2; width > 0; width /= 2)
      for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
    return lanes[0];
  } else {
    R sum = 0;
    Kokkos::parallel_reduce(
        Kokkos::TeamThreadRange(team, n), [&](int i, R& partial) { partial += f(i); }, sum);
    return sum;
  }
}

}  // namespace deltapipe::codec
