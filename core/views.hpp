// View aliases. Shape suffixes used in names throughout:
//   B samples in a micro-batch   T tokens in a sample   C model width (channels)
//   H attention heads            D head width (C/H)     V vocabulary   N = B*T rows
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/kokkos_compat.hpp"

namespace deltapipe {

/// All device Views are row-major: the last extent is contiguous.
using Layout = Kokkos::LayoutRight;

template <class T>
using Vector = Kokkos::View<T*, Layout, MemSpace>;
template <class T>
using Matrix = Kokkos::View<T**, Layout, MemSpace>;

template <class T>
using ConstVector = Kokkos::View<const T*, Layout, MemSpace>;
template <class T>
using ConstMatrix = Kokkos::View<const T**, Layout, MemSpace>;

/// Host memory that messages and files are read from and written to; pinned where that matters.
using HostBytes = Kokkos::View<std::uint8_t*, Layout, StagingSpace>;
using DeviceBytes = Kokkos::View<std::uint8_t*, Layout, MemSpace>;

template <class T>
using HostVector = Kokkos::View<T*, Layout, StagingSpace>;

/// A View's memory whose first content does not matter (no fill kernel at allocation).
inline auto uninitialized(const char* label) {
  return Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(label));
}

}  // namespace deltapipe
