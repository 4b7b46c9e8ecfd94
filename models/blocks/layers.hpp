// SPDX-License-Identifier: BSD-3-Clause
// Layers inside blocks: their parameters, with the kernels that use them.
#pragma once

#include <string>
#include <vector>

#include "core/base/numeric/random.hpp"
#include "core/kernels/layers/layer_norm.hpp"
#include "core/kernels/layers/linear.hpp"
#include "core/stage/parameters.hpp"
#include "models/blocks/narrow.hpp"
#include "models/blocks/workspace.hpp"

namespace deltapipe {

/// Returns a matrix as an operand, in the storage of the arena.
template <class Real>
Operand<Real> operand_of(const ParameterArena<Real>& parameters, int index) {
  if (parameters.in_halves(index)) return {{}, parameters.rounded_matrix(index)};
  return parameters.matrix(index);
}

enum class WeightLayout {
  inputs_outputs,  ///< as GPT-2's Conv1D
  outputs_inputs   ///< as torch.nn.Linear
};

enum class Bias { yes, no };

/// NAME.weight and NAME.bias of y = x W + b, or without a bias.
template <class Real>
class LinearLayer {
 public:
  LinearLayer(ParameterArena<Real>& parameters, const std::string& name, std::uint64_t inputs,
              std::uint64_t outputs, int bucket, WeightLayout layout = WeightLayout::inputs_outputs,
              Bias bias = Bias::yes)
      : parameters_(&parameters),
        op_(layout == WeightLayout::outputs_inputs ? Transpose::yes : Transpose::no),
        weight_(parameters.add(
            name + ".weight",
            op_ == Transpose::yes ? std::vector{outputs, inputs} : std::vector{inputs, outputs},
            true, bucket)),
        bias_(bias == Bias::no ? -1 : parameters.add(name + ".bias", {outputs}, false, bucket)) {
    parameters.set_operands({weight_});
  }
  /// A linear layer whose file has the weights of a convolution without overlap: `shape` is
  /// [outputs, channels, height, width], and inputs are in the order of the last three.
  LinearLayer(ParameterArena<Real>& parameters, const std::string& name,
              const std::vector<std::uint64_t>& shape, int bucket)
      : parameters_(&parameters),
        op_(Transpose::yes),
        weight_(parameters.add(name + ".weight", shape, true, bucket)),
        bias_(parameters.add(name + ".bias", {shape[0]}, false, bucket)) {
    parameters.set_operands({weight_});
  }

  /// Returns the layer of the first `count` outputs, of a weight in the layout outputs_inputs.
  LinearLayer first_outputs(int count) const {
    DELTAPIPE_ASSERT(op_ == Transpose::yes, "rows of a weight are not its outputs");
    LinearLayer layer = *this;
    layer.outputs_ = count;
    return layer;
  }

  Operand<Real> weight() const {
    const Operand<Real> whole = operand_of(*parameters_, weight_);
    return outputs_ > 0 ? whole.rows(0, outputs_) : whole;
  }
  /// Only where the matrix is not stored as halves.
  MatrixRef<Real> matrix() const { return parameters_->matrix(weight_); }
  /// Only with a bias.
  VectorRef<Real> bias() const { return first(parameters_->value(bias_)); }
  bool trained() const {
    return !parameters_->info()[weight_].frozen ||
           (bias_ >= 0 && !parameters_->info()[bias_].frozen);
  }
  /// y = x W + b
  void forward(const ExecSpace& exec, const Operand<Real>& x, const MatrixRef<Real>& y,
               const Workspace<Real>& w) const {
    if (bias_ < 0) return w.products(exec, Transpose::no, op_, x, weight(), Real(0), y);
    linear_forward<Real>(exec, x, weight(), bias(), y, w.products, op_);
  }
  /// out = residual + dropout(x W + b); only with a bias. `branch` is workspace of out's shape.
  void residual_forward(const ExecSpace& exec, const Operand<Real>& x,
                        const MatrixRef<const Real>& residual, const Dropout& dropout,
                        const MatrixRef<Real>& branch, const MatrixRef<Real>& out,
                        const Workspace<Real>& w) const {
    linear_residual_forward<Real>(exec, x, weight(), bias(), residual, dropout, branch, out,
                                  w.products, op_);
  }
  void parameter_gradient(const ExecSpace& exec, const Operand<Real>& x, const Operand<Real>& dy,
                          bool accumulate, const Workspace<Real>& w) const {
    const MatrixRef<Real> dw = parameters_->gradient_matrix(weight_);
    linear_parameter_gradient<Real>(
        exec, x, dy, accumulate,
        outputs_ > 0 && dw.size() > 0 ? rows_of<Real>(dw, 0, outputs_) : dw,
        bias_ < 0 ? VectorRef<Real>() : first(parameters_->gradient(bias_)), w.products,
        w.column_sums, op_);
  }
  /// dx = dy W^T, added to dx if `add` is set
  void input_gradient(const ExecSpace& exec, const Operand<Real>& dy, const MatrixRef<Real>& dx,
                      const Workspace<Real>& w, bool add = false) const {
    w.products(exec, Transpose::no, op_ == Transpose::yes ? Transpose::no : Transpose::yes, dy,
               weight(), Real(add ? 1 : 0), dx);
  }

 private:
  /// Returns the values of the outputs of this layer; empty values stay empty.
  VectorRef<Real> first(const VectorRef<Real>& values) const {
    return outputs_ > 0 && values.extent(0) > 0 ? VectorRef<Real>(values.data(), outputs_) : values;
  }

  ParameterArena<Real>* parameters_;
  Transpose op_;
  int weight_, bias_;
  int outputs_ = 0;  ///< 0: all
};

/// Mean and reciprocal deviation of each row, which a forward pass keeps for the backward pass.
template <class Real>
struct NormStatistics {
  VectorRef<Real> mean, rstd;

  /// `memory` has two elements for each row.
  template <class Memory>
  NormStatistics(const Memory& memory, int rows)
      : mean(memory.data(), rows), rstd(memory.data() + rows, rows) {}
};

/// NAME.weight and NAME.bias of a layer norm.
template <class Real>
class NormLayer {
 public:
  NormLayer(ParameterArena<Real>& parameters, const std::string& name, std::uint64_t channels,
            double epsilon, int bucket)
      : parameters_(&parameters),
        weight_(parameters.add(name + ".weight", {channels}, false, bucket)),
        bias_(parameters.add(name + ".bias", {channels}, false, bucket)),
        epsilon_(static_cast<Real>(epsilon)) {}

  bool trained() const {
    return !parameters_->info()[weight_].frozen || !parameters_->info()[bias_].frozen;
  }
  template <class Output>
  void forward(const ExecSpace& exec, const MatrixRef<Real>& x, const MatrixRef<Output>& y,
               const NormStatistics<Real>& statistics) const {
    layer_norm_forward<Real>(exec, x, parameters_->value(weight_), parameters_->value(bias_),
                             epsilon_, y, statistics.mean, statistics.rstd);
  }
  /// Returns the output in the form that the next layer takes, in the workspace.
  Operand<Real> normalized(const ExecSpace& exec, const MatrixRef<Real>& x,
                           const NormStatistics<Real>& statistics, const Workspace<Real>& w) const {
    return w.products.make_input(narrow(w.norm_NC, x.extent_int(0), x.extent_int(1)),
                                 [&](const auto& y) { forward(exec, x, y, statistics); });
  }
  void parameter_gradient(const ExecSpace& exec, const MatrixRef<Real>& dy,
                          const MatrixRef<Real>& x, const NormStatistics<Real>& statistics,
                          bool accumulate, const Workspace<Real>& w) const {
    layer_norm_parameter_gradient<Real>(exec, dy, x, statistics.mean, statistics.rstd, accumulate,
                                        parameters_->gradient(weight_),
                                        parameters_->gradient(bias_), w.column_sums);
  }
  /// Adds the gradient of x to dx, and makes the output again.
  template <class Output>
  void backward(const ExecSpace& exec, const MatrixRef<Real>& dy, const MatrixRef<Real>& x,
                const NormStatistics<Real>& statistics, const MatrixRef<Real>& dx,
                const MatrixRef<Output>& y) const {
    layer_norm_backward<Real>(exec, dy, x, parameters_->value(weight_), parameters_->value(bias_),
                              statistics.mean, statistics.rstd, dx, y);
  }
  /// Turns the gradient of the output into that of x, and makes the output again.
  template <class Output>
  void backward_in_place(const ExecSpace& exec, const MatrixRef<Real>& gradient,
                         const MatrixRef<Real>& x, const NormStatistics<Real>& statistics,
                         const MatrixRef<Output>& y) const {
    layer_norm_backward<Real, Output, false>(exec, gradient, x, parameters_->value(weight_),
                                             parameters_->value(bias_), statistics.mean,
                                             statistics.rstd, gradient, y);
  }

 private:
  ParameterArena<Real>* parameters_;
  int weight_, bias_;
  Real epsilon_;
};

/// Backward pass of y = linear(norm(x)): adds the gradient of x to dx and computes the gradients of
/// the norm and, with `trains_linear`, those of the linear layer. Overwrites the workspace's
/// norm_NC and branch_NC, which must not be the memory of dy.
template <class Real>
void backward_normalized_linear(const ExecSpace& exec, const NormLayer<Real>& norm,
                                const LinearLayer<Real>& linear, const MatrixRef<Real>& x,
                                const NormStatistics<Real>& statistics, const MatrixRef<Real>& dy,
                                const MatrixRef<Real>& dx, bool accumulate, bool trains_linear,
                                const Workspace<Real>& w) {
  const int rows = x.extent_int(0), channels = x.extent_int(1);
  const MatrixRef<Real> dnorm = narrow(w.branch_NC, rows, channels);
  const Operand<Real> dy_operand = w.products.gradient(exec, dy);
  linear.input_gradient(exec, dy_operand, dnorm, w);
  norm.parameter_gradient(exec, dnorm, x, statistics, accumulate, w);
  const Operand<Real> normal = w.products.make_input(
      narrow(w.norm_NC, rows, channels),
      [&](const auto& y) { norm.backward(exec, dnorm, x, statistics, dx, y); });
  if (trains_linear) linear.parameter_gradient(exec, normal, dy_operand, accumulate, w);
}

}  // namespace deltapipe
