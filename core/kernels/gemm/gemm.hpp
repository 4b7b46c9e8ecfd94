// SPDX-License-Identifier: BSD-3-Clause
// Dense matrix products through Kokkos Kernels, which calls the vendor's BLAS.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/parallel/views.hpp"
#include "core/kernels/gemm/transpose.hpp"

namespace deltapipe {

/// c = alpha * op(a) * op(b) + beta * c. With beta = 0 the content of c does not matter. Rows may
/// have gaps (subviews of wider matrices).
void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, float alpha,
          const MatrixRef<const float>& a, const MatrixRef<const float>& b, float beta,
          const MatrixRef<float>& c);
void gemm(const ExecSpace& exec, Transpose op_a, Transpose op_b, double alpha,
          const MatrixRef<const double>& a, const MatrixRef<const double>& b, double beta,
          const MatrixRef<double>& c);

/// outer x inner matrices of one shape: the first one, and the distances in elements to the next
/// outer and inner ones.
template <class T>
struct MatrixGrid {
  MatrixRef<T> first;
  std::size_t outer_stride = 0;
  std::size_t inner_stride = 0;
  /// Addresses of all matrices, inner index fastest, in device memory; null: not written.
  const std::uintptr_t* addresses = nullptr;

  /// Returns true if all matrices are the same distance apart in memory, stride() elements.
  bool is_evenly_spaced(int outer, int inner) const {
    return outer == 1 || inner == 1 || outer_stride == inner * inner_stride;
  }
  /// Returns the elements from one matrix to the next if they are evenly spaced.
  std::size_t stride(int inner) const { return inner > 1 ? inner_stride : outer_stride; }
  /// Returns a matrix; on a host it uses the addresses if they are written.
  MatrixRef<T> at(int outer, int inner, int inner_count) const {
    T* data = first.data() + outer * outer_stride + inner * inner_stride;
    if constexpr (kHostExecution)
      if (addresses != nullptr)
        data = reinterpret_cast<T*>(addresses[outer * inner_count + inner]);  // NOLINT
    return strided_matrix(data, first.extent_int(0), first.extent_int(1), first.stride(0));
  }
};

/// c = op(a) * op(b) + beta * c for each of outer x inner products of one shape.
void gemm_batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixGrid<const float>& a, const MatrixGrid<const float>& b, float beta,
                  const MatrixGrid<float>& c, int outer, int inner);
void gemm_batched(const ExecSpace& exec, Transpose op_a, Transpose op_b,
                  const MatrixGrid<const double>& a, const MatrixGrid<const double>& b, double beta,
                  const MatrixGrid<double>& c, int outer, int inner);

}  // namespace deltapipe
