// SPDX-License-Identifier: BSD-3-Clause
// Matrices of fp32 values held in halves of 16 bits: what products in bf16 take, and what is left
// of each value (number_formats.hpp: Halves). Together they take the memory of the values alone.
#pragma once

#include "core/base/precision.hpp"
#include "core/base/views.hpp"

namespace deltapipe {

struct VectorHalves {
  VectorRef<Bf16> rounded;
  VectorRef<std::uint16_t> rest;
};

/// A table to take rows from: `values` or, where it has no elements, halves.
template <class Real>
struct RowTable {
  MatrixRef<const Real> values;
  MatrixRef<const Bf16> rounded;
  MatrixRef<const std::uint16_t> rest;

  RowTable() = default;
  template <class Values>
  RowTable(const Values& x) : values(x) {}  // NOLINT(google-explicit-constructor)
  RowTable(const MatrixRef<const Bf16>& x_rounded, const MatrixRef<const std::uint16_t>& x_rest)
      : rounded(x_rounded), rest(x_rest) {}
  bool in_halves() const { return rounded.size() > 0; }
};

}  // namespace deltapipe
