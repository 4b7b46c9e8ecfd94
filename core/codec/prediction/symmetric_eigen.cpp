// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/prediction/symmetric_eigen.hpp"

#include <cmath>

// LAPACK stores columns: for a symmetric matrix that makes no difference, and eigenvectors come out
// as rows.
extern "C" void ssyevd_(const char* job, const char* half, const int* n, float* matrix,
                        const int* lda, float* values, float* work, const int* work_size,
                        int* integers, const int* integers_size, int* info);

namespace deltapipe {

SymmetricEigen::SymmetricEigen(int n)
    : n_(n),
      matrix_(uninitialized("deltapipe::SymmetricEigen::matrix"), static_cast<std::size_t>(n) * n),
      values_(uninitialized("deltapipe::SymmetricEigen::values"), n),
      // As LAPACK's manual wants it for eigenvectors.
      work_(uninitialized("deltapipe::SymmetricEigen::work"),
            n > 0 ? 1 + 6 * static_cast<std::size_t>(n) + 2 * static_cast<std::size_t>(n) * n : 0),
      integers_(uninitialized("deltapipe::SymmetricEigen::integers"), n > 0 ? 3 + 5 * n : 0) {}

bool SymmetricEigen::solve() {
  for (std::size_t i = 0; i < matrix_.extent(0); ++i)
    if (!std::isfinite(matrix_(i))) return false;
  const auto work_size = static_cast<int>(work_.extent(0));
  const auto integers_size = static_cast<int>(integers_.extent(0));
  int info = 0;
  ssyevd_("V", "L", &n_, matrix_.data(), &n_, values_.data(), work_.data(), &work_size,
          integers_.data(), &integers_size, &info);
  return info == 0;
}

}  // namespace deltapipe
