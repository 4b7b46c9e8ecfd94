// SPDX-License-Identifier: BSD-3-Clause
// Matrices of fp32 values, stored as two halves of 16 bits: the nearest bf16, which products use,
// and the lower half of the value's bits (number_formats.hpp: Halves). Together they need no more
// memory than the values.
#pragma once

#include <type_traits>

#include "core/base/numeric/precision.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

struct VectorHalves {
  VectorRef<Bf16> rounded;
  VectorRef<std::uint16_t> lower;
};

/// A table of rows: `values` or, if that is empty, halves.
template <class Real>
struct RowTable {
  MatrixRef<const Real> values;
  MatrixRef<const Bf16> rounded;
  MatrixRef<const std::uint16_t> lower;

  RowTable() = default;
  template <class Values>
  requires std::is_convertible_v<const Values&, MatrixRef<const Real>> RowTable(const Values& x)
      : values(x) {}  // NOLINT(google-explicit-constructor)
  RowTable(const MatrixRef<const Bf16>& x_rounded, const MatrixRef<const std::uint16_t>& x_lower)
      : rounded(x_rounded), lower(x_lower) {}
  bool in_halves() const { return rounded.size() > 0; }
};

}  // namespace deltapipe
