// SPDX-License-Identifier: BSD-3-Clause
// Values between std::vector and device memory, for tests.
#pragma once

#include <vector>

#include "core/base/parallel/views.hpp"

namespace deltapipe::test {

template <class T>
void copy_to_device(const std::vector<T>& values, const VectorRef<T>& target) {
  const Kokkos::View<T*, Layout, Kokkos::HostSpace> host("test::host", values.size());
  for (std::size_t i = 0; i < values.size(); ++i) host(i) = values[i];
  Kokkos::deep_copy(target, host);
}

template <class T>
Vector<T> to_device(const std::vector<T>& values) {
  Vector<T> vector("test::values", values.size());
  copy_to_device<T>(values, vector);
  return vector;
}

template <class T>
Matrix<T> to_device(const std::vector<T>& values, int columns) {
  Matrix<T> matrix("test::values", columns > 0 ? values.size() / columns : 0, columns);
  copy_to_device<T>(values, VectorRef<T>(matrix.data(), values.size()));
  return matrix;
}

/// All elements of a contiguous View, row by row.
template <class T, class... Rest>
std::vector<std::remove_const_t<T>> to_host(const Kokkos::View<T*, Rest...>& view) {
  const Kokkos::View<std::remove_const_t<T>*, Layout, Kokkos::HostSpace> host("test::host",
                                                                              view.size());
  Kokkos::deep_copy(host, view);
  return {host.data(), host.data() + host.size()};
}

template <class T, class... Rest>
std::vector<std::remove_const_t<T>> to_host(const Kokkos::View<T**, Rest...>& view) {
  return to_host(VectorRef<const T>(view.data(), view.size()));
}

}  // namespace deltapipe::test
