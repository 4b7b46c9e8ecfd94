// SPDX-License-Identifier: BSD-3-Clause
// A block of a residual network (arXiv 1512.03385).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/blocks/normed_convolution.hpp"
#include "models/blocks/residual_shape.hpp"

namespace deltapipe {

/// y = relu(norm(conv(...relu(norm(conv(x))))) + shortcut), where the shortcut is x or, if its
/// shape differs, norm(conv(x)). Parameters are PREFIXlayer.I and PREFIXshortcut.
template <class Real>
class ResidualBlock final : public Block<Real> {
 public:
  ResidualBlock(ParameterArena<Real>& parameters, const std::string& prefix,
                const ResidualShape& shape, const BatchNormOptions& norm, int bucket);

  BoundaryShape output_shape(const BoundaryShape&) const override;
  SavedTensors saved() const override;
  void require(const StageCapacity& capacity, WorkspaceSize& size) const override;
  void forward_saved(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void forward_output(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                      const MatrixRef<Real>& y) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& x,
                const MatrixRef<Real>& gradient, bool accumulate) const override;

 private:
  /// Rows before the last relu: those of the last convolution, and the shortcut's.
  struct Sum {
    MatrixRef<const Real> main;
    ColumnNorm<Real> main_norm;
    MatrixRef<const Real> shortcut;
    ColumnNorm<Real> shortcut_norm;
  };
  Sum sum(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const;
  const Matrix<Real>* saved_of(const BlockPass<Real>& pass, std::size_t convolution) const {
    return pass.saved + convolution * kNormedTensors;
  }
  /// Returns relu(norm(output)) of a convolution in `memory`.
  MatrixRef<Real> activation(const BlockPass<Real>& pass, std::size_t convolution,
                             const Vector<Real>& memory) const;

  std::vector<NormedConvolution<Real>> path_;
  std::optional<NormedConvolution<Real>> projection_;
};

}  // namespace deltapipe
