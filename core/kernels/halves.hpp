// SPDX-License-Identifier: BSD-3-Clause
// Values in halves: made, joined, changed in place.
#pragma once

#include "core/base/halves.hpp"
#include "core/base/number_formats.hpp"
#include "core/base/row.hpp"

namespace deltapipe {

/// A row of values, as the pointer to one in fp32 is.
struct RowHalves {
  const Bf16* rounded;
  const std::uint16_t* rest;
  KOKKOS_FORCEINLINE_FUNCTION float operator[](std::size_t c) const {
    return joined({rounded[c], rest[c]});
  }
};

/// Elements to be changed in place, in one memory or in halves.
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
  std::uint16_t* rest;
  KOKKOS_FORCEINLINE_FUNCTION float get(std::int64_t i) const {
    return joined({rounded[i], rest[i]});
  }
  KOKKOS_FORCEINLINE_FUNCTION void set(std::int64_t i, float x) const {
    const Halves halves = halves_of(x);
    rounded[i] = halves.rounded;
    rest[i] = halves.rest;
  }
  KOKKOS_FORCEINLINE_FUNCTION void prefetch_after(std::int64_t i, std::size_t ahead) const {
    prefetch(rounded + i, ahead);
    prefetch(rest + i, ahead);
  }
};

/// to = the values of `from`.
inline void join_halves(const ExecSpace& exec, const VectorHalves& from,
                        const VectorRef<float>& to) {
  const Bf16* const rounded = from.rounded.data();
  const std::uint16_t* const rest = from.rest.data();
  float* const x = to.data();
  for_tiles(
      "deltapipe::Halves::join", exec, static_cast<std::int64_t>(to.extent(0)),
      KOKKOS_LAMBDA(std::int64_t first, std::int64_t end) {
        DELTAPIPE_INDEPENDENT_ITERATIONS
        for (std::int64_t i = first; i < end; ++i) x[i] = joined({rounded[i], rest[i]});
      });
}

/// to = the halves of `from`.
inline void split_into_halves(const ExecSpace& exec, const VectorRef<const float>& from,
                              const VectorHalves& to) {
  const MutableHalves halves{to.rounded.data(), to.rest.data()};
  const float* const x = from.data();
  for_tiles(
      "deltapipe::Halves::split", exec, static_cast<std::int64_t>(from.extent(0)),
      KOKKOS_LAMBDA(std::int64_t first, std::int64_t end) {
        DELTAPIPE_INDEPENDENT_ITERATIONS
        for (std::int64_t i = first; i < end; ++i) halves.set(i, x[i]);
      });
}

}  // namespace deltapipe
