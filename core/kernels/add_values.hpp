// SPDX-License-Identifier: BSD-3-Clause
// Sums and means of vectors.
#pragma once

#include <cstdint>

#include "core/base/parallel/row.hpp"

namespace deltapipe {

/// y += x
template <class Real>
void add_values(const char* label, const ExecSpace& exec, const VectorRef<const Real>& x,
                const VectorRef<Real>& y) {
  const Real* const from = x.data();
  Real* const to = y.data();
  for_tiles(
      label, exec, static_cast<std::int64_t>(x.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) to[i] += from[i];
      });
}

/// y /= divisor
template <class Real>
void divide_values(const char* label, const ExecSpace& exec, Real divisor,
                   const VectorRef<Real>& y) {
  Real* const values = y.data();
  for_tiles(
      label, exec, static_cast<std::int64_t>(y.extent(0)),
      DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) values[i] /= divisor;
      });
}

}  // namespace deltapipe
