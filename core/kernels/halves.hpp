// SPDX-License-Identifier: BSD-3-Clause
// Operations on values in halves: splitting, joining, changes in place, copies to the host and
// back.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>

#include "core/base/numeric/halves.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"

namespace deltapipe {

/// A row of values in halves, used like a pointer to a row in fp32.
struct RowHalves {
  const Bf16* rounded;
  const std::uint16_t* lower;
  KOKKOS_FORCEINLINE_FUNCTION float operator[](std::size_t c) const {
    return joined({rounded[c], lower[c]});
  }
};

/// Elements that are changed in place, as values or in halves.
template <class Real>
struct MutableValues {
  Real* values;
  KOKKOS_FORCEINLINE_FUNCTION Real get(std::int64_t i) const { return values[i]; }
  KOKKOS_FORCEINLINE_FUNCTION void set(std::int64_t i, Real x) const { values[i] = x; }
  KOKKOS_FORCEINLINE_FUNCTION void prefetch_after(std::int64_t i, std::size_t ahead) const {
    prefetch(values + i, ahead);
  }
};
struct MutableHalves {
  Bf16* rounded;
  std::uint16_t* lower;
  KOKKOS_FORCEINLINE_FUNCTION float get(std::int64_t i) const {
    return joined({rounded[i], lower[i]});
  }
  KOKKOS_FORCEINLINE_FUNCTION void set(std::int64_t i, float x) const {
    const Halves halves = halves_of(x);
    rounded[i] = halves.rounded;
    lower[i] = halves.lower;
  }
  KOKKOS_FORCEINLINE_FUNCTION void prefetch_after(std::int64_t i, std::size_t ahead) const {
    prefetch(rounded + i, ahead);
    prefetch(lower + i, ahead);
  }
};

inline MutableHalves mutable_halves(const VectorHalves& halves) {
  return {halves.rounded.data(), halves.lower.data()};
}

/// to = the values of `from`.
inline void join_halves(const ExecSpace& exec, const VectorHalves& from,
                        const VectorRef<float>& to) {
  const Bf16* const rounded = from.rounded.data();
  const std::uint16_t* const lower = from.lower.data();
  float* const x = to.data();
  for_tiles(
      "deltapipe::Halves::join", exec, static_cast<std::int64_t>(to.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        DELTAPIPE_INDEPENDENT_ITERATIONS
        for (std::int64_t i = first; i < end; ++i) x[i] = joined({rounded[i], lower[i]});
      });
}

/// to = the halves of `from`.
inline void split_into_halves(const ExecSpace& exec, const VectorRef<const float>& from,
                              const VectorHalves& to) {
  const MutableHalves halves = mutable_halves(to);
  const float* const x = from.data();
  for_tiles(
      "deltapipe::Halves::split", exec, static_cast<std::int64_t>(from.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        DELTAPIPE_INDEPENDENT_ITERATIONS
        for (std::int64_t i = first; i < end; ++i) halves.set(i, x[i]);
      });
}

namespace halves_transfer {

inline constexpr bool kOnHost = std::is_same_v<MemSpace, Kokkos::HostSpace>;
inline constexpr std::size_t kPiece = std::size_t{1} << 20;  // elements

template <class T>
using HostRef =
    Kokkos::View<T*, Layout, Kokkos::HostSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Returns device memory through which `count` values pass; empty if kernels can access host
/// memory.
inline Vector<float> staging_for(std::size_t count) {
  return Vector<float>(uninitialized("deltapipe::Halves::staging"),
                       kOnHost ? 0 : std::min(kPiece, count));
}

inline VectorHalves part_of(const VectorHalves& halves, std::size_t first, std::size_t count) {
  return {VectorRef<Bf16>(halves.rounded.data() + first, count),
          VectorRef<std::uint16_t>(halves.lower.data() + first, count)};
}

}  // namespace halves_transfer

/// `to`, in host memory, = the values of `from`, through `staging` if kStaged. Complete on return.
template <bool kStaged = !halves_transfer::kOnHost>
void copy_out_of_halves(const ExecSpace& exec, const VectorHalves& from, const std::span<float> to,
                        const Vector<float>& staging) {
  using namespace halves_transfer;
  if constexpr (!kStaged) {
    join_halves(exec, from, VectorRef<float>(to.data(), to.size()));
  } else {
    for (std::size_t first = 0; first < to.size(); first += staging.extent(0)) {
      const std::size_t count = std::min(staging.extent(0), to.size() - first);
      const VectorRef<float> piece(staging.data(), count);
      join_halves(exec, part_of(from, first, count), piece);
      Kokkos::deep_copy(exec, HostRef<float>(to.data() + first, count), piece);
    }
  }
  exec.fence();
}

/// The reverse: halves from host memory.
template <bool kStaged = !halves_transfer::kOnHost>
void copy_into_halves(const ExecSpace& exec, const std::span<const float> from,
                      const VectorHalves& to, const Vector<float>& staging) {
  using namespace halves_transfer;
  if constexpr (!kStaged) {
    split_into_halves(exec, VectorRef<const float>(from.data(), from.size()), to);
  } else {
    for (std::size_t first = 0; first < from.size(); first += staging.extent(0)) {
      const std::size_t count = std::min(staging.extent(0), from.size() - first);
      const VectorRef<float> piece(staging.data(), count);
      Kokkos::deep_copy(exec, piece, HostRef<const float>(from.data() + first, count));
      split_into_halves(exec, piece, part_of(to, first, count));
    }
  }
  exec.fence();
}

}  // namespace deltapipe
