// SPDX-License-Identifier: BSD-3-Clause
// Memory that the convolutional blocks of a stage share within a pass.
#pragma once

#include <algorithm>
#include <cstddef>

#include "core/kernels/convolution/convolution.hpp"
#include "core/kernels/layers/column_sums.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

/// Sizes that convolutional blocks require.
struct ImageWorkspaceSize {
  std::size_t elements = 0;     ///< largest output of a convolution
  std::size_t column_sums = 0;  ///< elements of a tree of column sums
  int channels = 0;             ///< most channels of an output; 0: no convolutions
  ConvolutionCapacity convolution = {};

  void raise(const ConvolutionShape& shape, int images);
};

template <class Real>
struct ImageWorkspace {
  ConvolutionWorkspace<Real> convolution;
  Vector<Real> a, b;           ///< outputs of convolutions; b: in training only
  Vector<Real> column_pairs;   ///< two values for each channel
  Vector<double> column_sums;  ///< sums of parts of the rows; empty on hosts

  /// `gemm` computes convolutions in fp32 or TF32. Null: they are computed in bf16.
  void reserve(const ImageWorkspaceSize& size, const RealGemm* gemm, bool training,
               bool as_on_device, const ViewAllocator& memory);
};

}  // namespace deltapipe
