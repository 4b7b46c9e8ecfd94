// SPDX-License-Identifier: BSD-3-Clause
// Activation functions of the form y = x gate(x), and their gradients.
#pragma once

#include <cmath>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"
#include "core/kernels/layers/math.hpp"

namespace deltapipe {

enum class Activation { gelu_tanh, gelu_erf, relu };

/// The tanh approximation of GELU (arXiv 1606.08415, "gelu_new"), with the logistic function:
/// 0.5 (1 + tanh u) = logistic(2u), u = sqrt(2/pi) (x + 0.044715 x^3).
template <class Real>
struct Gelu {
  static constexpr const char* kForward = "deltapipe::Gelu::forward";
  static constexpr const char* kBackward = "deltapipe::Gelu::backward";
  static constexpr Real kScale = Real(1.5957691216057307118);  // 2 sqrt(2/pi)
  static constexpr Real kCubic = Real(0.044715);
  KOKKOS_FORCEINLINE_FUNCTION static Real gate(Real x) {
    return logistic(kScale * (x + kCubic * x * x * x));
  }
  KOKKOS_FORCEINLINE_FUNCTION static Real slope(Real x, Real gate) {
    return gate + x * gate * (1 - gate) * kScale * (1 + 3 * kCubic * x * x);
  }
};

/// GELU itself (arXiv 1606.08415): the gate is the normal distribution.
template <class Real>
struct ErfGelu {
  static constexpr const char* kForward = "deltapipe::ErfGelu::forward";
  static constexpr const char* kBackward = "deltapipe::ErfGelu::backward";
  static constexpr Real kDensity = Real(0.39894228040143267794);  // 1 / sqrt(2 pi)
  KOKKOS_FORCEINLINE_FUNCTION static Real gate(Real x) { return normal_distribution(x); }
  KOKKOS_FORCEINLINE_FUNCTION static Real slope(Real x, Real gate) {
    return gate + x * kDensity * vector_exp(Real(-0.5) * x * x);
  }
};

/// max(x, 0); NaN remains NaN. The slope at 0 is 0, as in PyTorch.
template <class Real>
struct Relu {
  static constexpr const char* kForward = "deltapipe::Relu::forward";
  static constexpr const char* kBackward = "deltapipe::Relu::backward";
  KOKKOS_FORCEINLINE_FUNCTION static Real gate(Real x) { return x > 0 ? Real(1) : Real(0); }
  KOKKOS_FORCEINLINE_FUNCTION static Real slope(Real, Real gate) { return gate; }
};

/// y_NF = f(h_NF) of Function, one of the above.
template <class Function, class Real, class Output>
void elementwise_forward(const ExecSpace& exec, const MatrixRef<const Real>& h_NF,
                         const MatrixRef<Output>& y_NF) {
  const char* const label = Function::kForward;
  for_elements(
      label, exec, h_NF.extent_int(0), h_NF.extent_int(1), DELTAPIPE_LAMBDA(int n, int c) {
        const Real h = h_NF(n, c);
        y_NF(n, c) = rounded_to<Output>(h * Function::gate(h));
      });
}

/// Replaces dL/dy in dh_NF by dL/dh. Computes y_NF = f(h_NF) again, for the weight gradient of the
/// next layer.
template <class Function, class Real, class Output>
void elementwise_backward(const ExecSpace& exec, const MatrixRef<const Real>& h_NF,
                          const MatrixRef<Real>& dh_NF, const MatrixRef<Output>& y_NF) {
  const char* const label = Function::kBackward;
  for_elements(
      label, exec, h_NF.extent_int(0), h_NF.extent_int(1), DELTAPIPE_LAMBDA(int n, int c) {
        const Real h = h_NF(n, c);
        const Real gate = Function::gate(h);
        y_NF(n, c) = rounded_to<Output>(h * gate);
        dh_NF(n, c) *= Function::slope(h, gate);
      });
}

/// The table of activations: calls f with an object of the activation's class.
template <class Real, class F>
void with_activation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::gelu_tanh:
      return f(Gelu<Real>());
    case Activation::gelu_erf:
      return f(ErfGelu<Real>());
    case Activation::relu:
      return f(Relu<Real>());
  }
}

template <class Real, class Output>
void activation_forward(const ExecSpace& exec, Activation activation,
                        const MatrixRef<const Real>& h_NF, const MatrixRef<Output>& y_NF) {
  with_activation<Real>(activation, [&]([[maybe_unused]] auto function) {
    elementwise_forward<decltype(function), Real, Output>(exec, h_NF, y_NF);
  });
}

template <class Real, class Output>
void activation_backward(const ExecSpace& exec, Activation activation,
                         const MatrixRef<const Real>& h_NF, const MatrixRef<Real>& dh_NF,
                         const MatrixRef<Output>& y_NF) {
  with_activation<Real>(activation, [&]([[maybe_unused]] auto function) {
    elementwise_backward<decltype(function), Real, Output>(exec, h_NF, dh_NF, y_NF);
  });
}

}  // namespace deltapipe
