// SPDX-License-Identifier: BSD-3-Clause
// Products of a stage's matrices in the precision that the run asks for.
#pragma once

#include <type_traits>

#include "core/base/error.hpp"
#include "core/base/numeric/precision.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "core/kernels/gemm/real_gemm.hpp"

namespace deltapipe {

/// A matrix in a product and, if products are in bf16, its rounded values.
template <class Real>
struct Operand {
  MatrixRef<const Real> values;   ///< empty if only the rounded values exist
  MatrixRef<const Bf16> rounded;  ///< empty if the values are not rounded

  Operand() = default;
  template <class Values>
  Operand(const Values& x) : values(x) {}  // NOLINT(google-explicit-constructor)
  Operand(const MatrixRef<const Real>& x, const MatrixRef<const Bf16>& x_rounded)
      : values(x), rounded(x_rounded) {}

  /// Returns rows [first, first + count).
  Operand rows(int first, int count) const {
    return {part_of(values, first, count), part_of(rounded, first, count)};
  }

 private:
  template <class T>
  static MatrixRef<T> part_of(const MatrixRef<T>& x, int first, int count) {
    return x.size() > 0 ? rows_of<T>(x, first, count) : x;
  }
};

template <class Real>
class Products {
 public:
  /// Products of Real.
  Products() = default;
  explicit Products(const RealGemm& gemm) : gemm_(gemm) {}
  /// Products of bf16 if Real is float, with memory for inputs of `input_elements` and output
  /// gradients of `gradient_elements`.
  Products(const ViewAllocator& memory, std::size_t input_elements, std::size_t gradient_elements)
      : gemm_bf16_(memory) {
    const auto rounded = [&](const char* label, std::size_t elements) {
      return memory.uninitialized<Vector<Bf16>>(MemoryUse::workspace, label, elements);
    };
    input_ = rounded("deltapipe::Products::input", input_elements);
    gradient_ = rounded("deltapipe::Products::gradient", gradient_elements);
  }

  /// Returns the operand of a layer; valid until the next call.
  Operand<Real> input(const ExecSpace& exec, const MatrixRef<const Real>& x_NI) const {
    return operand(exec, x_NI, input_);
  }
  /// Returns the operand for the gradient of a layer's output; valid until the next call.
  Operand<Real> gradient(const ExecSpace& exec, const MatrixRef<const Real>& dy_NO) const {
    return operand(exec, dy_NO, gradient_);
  }

  /// The same for a matrix that does not exist yet. write(y) writes it to `values` or, if products
  /// need it rounded, directly as bf16; `values` is then unchanged.
  template <class Write>
  Operand<Real> make_input(const MatrixRef<Real>& values, const Write& write) const {
    return make(values, input_, write);
  }
  template <class Write>
  Operand<Real> make_gradient(const MatrixRef<Real>& values, const Write& write) const {
    return make(values, gradient_, write);
  }

  /// c = op(a) * op(b) + beta * c; beta is 0 or 1.
  void operator()(const ExecSpace& exec, Transpose op_a, Transpose op_b, const Operand<Real>& a,
                  const Operand<Real>& b, Real beta, const MatrixRef<Real>& c) const {
    if constexpr (std::is_same_v<Real, float>) {
      DELTAPIPE_ASSERT((a.rounded.size() > 0) == (b.rounded.size() > 0), "one operand is rounded");
      if (a.rounded.size() > 0) {
        gemm_bf16_(exec, op_a, op_b, a.rounded, b.rounded, beta, c);
        return;
      }
    }
    gemm_(exec, op_a, op_b, a.values, b.values, beta, c);
  }

 private:
  /// Returns a matrix of x's shape with `stride` elements from row to row.
  static MatrixRef<Bf16> place_of(const MatrixRef<const Real>& x, std::size_t stride,
                                  const Vector<Bf16>& memory) {
    DELTAPIPE_ASSERT(x.extent(0) * stride <= memory.extent(0), "larger than reserved");
    return strided_matrix(memory.data(), x.extent_int(0), x.extent_int(1), stride);
  }
  static Operand<Real> operand(const ExecSpace& exec, const MatrixRef<const Real>& x,
                               const Vector<Bf16>& memory) {
    if constexpr (std::is_same_v<Real, float>) {
      if (memory.extent(0) > 0) {
        const MatrixRef<Bf16> rounded = place_of(x, x.extent(1), memory);
        round_to_bf16(exec, x, rounded);
        return {x, rounded};
      }
    }
    return x;
  }

  template <class Write>
  static Operand<Real> make(const MatrixRef<Real>& values, const Vector<Bf16>& memory,
                            const Write& write) {
    if constexpr (std::is_same_v<Real, float>) {
      if (memory.extent(0) > 0) {
        const MatrixRef<Bf16> rounded = place_of(values, values.stride(0), memory);
        write(rounded);
        return {{}, rounded};
      }
    }
    write(values);
    return values;
  }

  RealGemm gemm_;
  Bf16Gemm gemm_bf16_;
  Vector<Bf16> input_, gradient_;
};

}  // namespace deltapipe
