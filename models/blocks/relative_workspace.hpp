// SPDX-License-Identifier: BSD-3-Clause
// Memory that the blocks of a stage with disentangled attention share within a pass.
#pragma once

#include "core/kernels/attention/disentangled_attention.hpp"

namespace deltapipe {

/// Sizes that disentangled attention requires. Blocks of a stage have the same.
struct RelativeWorkspaceSize {
  AttentionShape shape = {0, 0, 0, 0};  ///< heads 0: no such attention
  RelativeBuckets buckets = {};
  int columns = 0;  ///< of the projected relative positions
};

template <class Real>
struct RelativeWorkspace {
  RelativeDistances distances;
  RealGemm gemm;
  Matrix<Real> embedding_PC;                 ///< normalised, after dropout
  Matrix<Real> positions_PF, dpositions_PF;  ///< projected; dpositions_PF: in training only
  Vector<Real> mean_P, rstd_P;

  /// `gemm` computes in fp32 or TF32.
  void reserve(const RelativeWorkspaceSize& size, const RealGemm& products, bool training,
               bool as_on_device, const ViewAllocator& memory);
  /// Returns the memory of the attention's kernels.
  DisentangledWorkspace<Real> attention() const {
    return {scores_, dscores_, by_query_, by_key_, heads_, concurrent_};
  }

 private:
  int heads_ = 1, concurrent_ = 1;
  Vector<Real> scores_, dscores_, by_query_, by_key_;
};

}  // namespace deltapipe
