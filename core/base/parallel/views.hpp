// SPDX-License-Identifier: BSD-3-Clause
// View aliases. Shape suffixes used in names throughout:
//   B samples in a micro-batch   T tokens in a sample   C model width (channels)
//   H attention heads            D head width (C/H)     V vocabulary   N = B*T rows
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

/// Layout of all device Views, row-major: the last extent is contiguous.
using Layout = Kokkos::LayoutRight;

template <class T>
using Vector = Kokkos::View<T*, Layout, MemSpace>;
template <class T>
using Matrix = Kokkos::View<T**, Layout, MemSpace>;

/// Arguments of kernels: Views without ownership. A call changes no reference count, and a part of
/// an arena may be used like an allocation.
template <class T>
using VectorRef = Kokkos::View<T*, Layout, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;
template <class T>
using MatrixRef = Kokkos::View<T**, Layout, MemSpace, Kokkos::MemoryTraits<Kokkos::Unmanaged>>;

/// Host memory of messages and files; pinned if that matters.
using HostBytes = Kokkos::View<std::uint8_t*, Layout, StagingSpace>;
using DeviceBytes = Kokkos::View<std::uint8_t*, Layout, MemSpace>;

/// Type of create_mirror_view() for a Vector.
template <class T>
using MirrorVector = decltype(Kokkos::create_mirror_view(std::declval<const Vector<T>&>()));

template <class T>
using HostVector = Kokkos::View<T*, Layout, StagingSpace>;

/// Returns rows [first, first + count) of a matrix without gaps between its rows. Uses the pointer,
/// because a host must not access elements of device Views, not even for their address.
template <class T>
MatrixRef<T> rows_of(const MatrixRef<T>& matrix, std::size_t first, std::size_t count) {
  return MatrixRef<T>(matrix.data() + first * matrix.extent(1), count, matrix.extent(1));
}

/// Returns a matrix whose rows are `row_stride` elements apart, as a part of a wider one.
template <class T>
MatrixRef<T> strided_matrix(T* data, int rows, int columns, std::size_t row_stride) {
  const MatrixRef<T> wide(data, rows, row_stride);
  return Kokkos::subview(wide, Kokkos::ALL, Kokkos::make_pair(0, columns));
}

/// Returns allocation properties without a fill kernel, for Views whose initial content is not
/// used.
inline auto uninitialized(const char* label) {
  return Kokkos::view_alloc(Kokkos::WithoutInitializing, std::string(label));
}

}  // namespace deltapipe
