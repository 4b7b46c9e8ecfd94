// SPDX-License-Identifier: BSD-3-Clause
// Parts of a workspace that is larger than a pass needs.
#pragma once

#include "core/base/parallel/views.hpp"

namespace deltapipe {

template <class Real>
MatrixRef<Real> narrow(const Matrix<Real>& workspace, int rows, int columns) {
  return MatrixRef<Real>(workspace.data(), rows, columns);
}

template <class Real>
MatrixRef<Real> narrow(const Vector<Real>& workspace, int rows, int columns) {
  return MatrixRef<Real>(workspace.data(), rows, columns);
}

template <class Real>
VectorRef<Real> head_of(const Vector<Real>& vector, int count) {
  return VectorRef<Real>(vector.data(), count);
}

/// Returns all elements of a matrix as a vector.
template <class Real>
VectorRef<Real> elements_of(const Matrix<Real>& matrix) {
  return VectorRef<Real>(matrix.data(), matrix.size());
}
template <class Real>
VectorRef<Real> elements_of(const MatrixRef<Real>& matrix) {
  return VectorRef<Real>(matrix.data(), matrix.size());
}

}  // namespace deltapipe
