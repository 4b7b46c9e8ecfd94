// SPDX-License-Identifier: BSD-3-Clause
// Sums over whole vectors in a fixed order.
#pragma once

#include "core/base/parallel/row.hpp"

namespace deltapipe {

inline constexpr int kSumTile = 4096;

/// Returns the elements of the workspace that sum_of_squares() needs for a vector of `count`.
inline std::size_t sum_of_squares_workspace(std::size_t count) {
  return (count + kSumTile - 1) / kSumTile;
}

/// Computes partial sums of squares on devices, one tile per team.
template <class Real>
void team_sums_of_squares(const ExecSpace& exec, const VectorRef<const Real>& x,
                          const VectorRef<double>& partial) {
  const std::int64_t count = static_cast<std::int64_t>(x.extent(0));
  const int tiles = static_cast<int>((count + kSumTile - 1) / kSumTile);
  const Real* const data = x.data();
  for_rows(
      "deltapipe::Reduce::sumOfSquares", row_policy(exec, tiles),
      DELTAPIPE_LAMBDA(const RowMember& team) {
        const std::int64_t first = static_cast<std::int64_t>(team.league_rank()) * kSumTile;
        const int elements = static_cast<int>(first + kSumTile < count ? kSumTile : count - first);
        const Real* const from = data + first;
        const double sum = row_sum<double>(team, elements, [&](int i) {
          const double value = static_cast<double>(from[i]);
          return value * value;
        });
        row_once(team, [&]() { partial(team.league_rank()) = sum; });
      });
}

/// The same on hosts.
template <class Real>
void lane_sums_of_squares(const ExecSpace& exec, const VectorRef<const Real>& x,
                          const VectorRef<double>& partial) {
  const std::int64_t count = static_cast<std::int64_t>(x.extent(0));
  const std::int64_t tiles = (count + kSumTile - 1) / kSumTile;
  const Real* const data = x.data();
  for_range(
      "deltapipe::Reduce::sumOfSquares", exec, tiles, DELTAPIPE_LAMBDA(std::int64_t tile) {
        const std::int64_t first = tile * kSumTile;
        const std::int64_t end = first + kSumTile < count ? first + kSumTile : count;
        constexpr int kLanes = 16;
        double lane[kLanes] = {};
        const auto add = [&](const Real* from) {
          DELTAPIPE_INDEPENDENT_ITERATIONS
          for (int l = 0; l < kLanes; ++l) {
            const double value = static_cast<double>(from[l]);
            lane[l] += value * value;
          }
        };
        std::int64_t i = first;
        if (end - first == kSumTile) {
          // One stream does not use the memory's full bandwidth; each of four is a page in fp32.
          constexpr int kStreams = 4, kPart = kSumTile / kStreams;
          for (; i < first + kPart; i += kLanes)
            for (int stream = 0; stream < kStreams; ++stream) {
              const Real* const from = data + i + stream * kPart;
              prefetch(from, kSumTile);
              add(from);
            }
          i = end;
        }
        for (; i + kLanes <= end; i += kLanes) add(data + i);
        for (; i < end; ++i) {
          const double value = static_cast<double>(data[i]);
          lane[0] += value * value;
        }
        double sum = 0;
        for (int l = 0; l < kLanes; ++l) sum += lane[l];
        partial(tile) = sum;
      });
}

/// Computes partial sums of squares in double, one per tile of kSumTile elements: partial(tile).
template <class Real>
void partial_sums_of_squares(const ExecSpace& exec, const VectorRef<const Real>& x,
                             const VectorRef<double>& partial) {
  if constexpr (kHostExecution)
    lane_sums_of_squares(exec, x, partial);
  else
    team_sums_of_squares(exec, x, partial);
}

}  // namespace deltapipe
