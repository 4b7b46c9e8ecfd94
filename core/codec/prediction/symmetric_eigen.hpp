// SPDX-License-Identifier: BSD-3-Clause
// Eigenvectors of a symmetric matrix, by LAPACK on the host.
#pragma once

#include <cstdint>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// With memory of its own for matrices of one size.
class SymmetricEigen {
 public:
  /// n x n; 0: for nothing.
  explicit SymmetricEigen(int n);

  /// n * n, row after row; solve() overwrites it with the eigenvectors, one a row, those of the
  /// least eigenvalues first.
  HostVector<float> matrix() const { return matrix_; }
  /// Only half of the matrix is read. False: it has values that are not finite, or LAPACK came to
  /// no end; the matrix is of no use then.
  bool solve();

  std::uint64_t memory_bytes() const {
    return bytes_of_view(matrix_) + bytes_of_view(values_) + bytes_of_view(work_) +
           bytes_of_view(integers_);
  }

 private:
  int n_;
  HostVector<float> matrix_, values_, work_;
  HostVector<int> integers_;
};

}  // namespace deltapipe
