// SPDX-License-Identifier: BSD-3-Clause
// The relative embeddings of DeBERTa-v2 and -v3 (arXiv 2006.03654), which all blocks share.
#pragma once

#include <string>

#include "core/base/numeric/random.hpp"
#include "core/kernels/attention/relative_distances.hpp"
#include "core/stage/stage.hpp"
#include "models/blocks/relative_workspace.hpp"

namespace deltapipe {

/// Names of the parameters, without ".weight" and ".bias".
struct RelativeEmbeddingNames {
  std::string table;
  std::string norm;  ///< empty: rows are not normalised
};

/// A table of relative positions [2 * span, C]. The first stage owns it, and the others have
/// copies. It is frozen, as in AQ-SGD's experiments, if parameters.frozen() has all its names, and
/// trained otherwise.
template <class Real>
class RelativeEmbedding final : public CommonParameters<Real> {
 public:
  /// The arena must outlive this object.
  RelativeEmbedding(ParameterArena<Real>& parameters, const RelativeEmbeddingNames& names,
                    const RelativeBuckets& buckets, int channels, double epsilon, bool is_owner,
                    int bucket);

  const RelativeBuckets& buckets() const { return buckets_; }
  bool trained() const { return trained_; }
  /// Adds a block of this stage that uses the table and returns its index.
  int add_block() { return blocks_++; }
  /// Writes the rows that samples of `tokens` tokens reach, after the norm and dropout.
  void forward(const ExecSpace& exec, const RelativeRows& rows, const Dropout& dropout,
               const RelativeWorkspace<Real>& workspace, const MatrixRef<Real>& y_PC) const;
  /// Adds a micro-batch's gradient of these rows, after the norm and before dropout, to that of a
  /// block; with `accumulate` false it replaces earlier values.
  void add_gradient(const ExecSpace& exec, int block, const RelativeRows& rows,
                    const MatrixRef<Real>& d_PC, bool accumulate) const;

  BoundaryShape gradient_shape(int tokens) const override;
  BoundaryShape value_shape() const override;
  int bucket() const override { return bucket_; }
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  MatrixRef<Real> gradient_sum() const override { return sum_PC_; }
  void add_gradients(const ExecSpace& exec, bool begin) const override;
  void finish_gradients(const ExecSpace& exec) const override;
  MatrixRef<Real> values() const override { return values_; }
  void pack_values(const ExecSpace& exec) const override;
  void unpack_values(const ExecSpace& exec) const override;

 private:
  MatrixRef<Real> block_gradient(int block) const;
  /// Calls f(rows of values(), parameter's values) for each parameter.
  template <class F>
  void for_values(const F& f) const;

  ParameterArena<Real>& parameters_;
  RelativeBuckets buckets_;
  Real epsilon_;
  int channels_, bucket_;
  bool trained_ = false;
  int table_, norm_weight_ = -1, norm_bias_ = -1;
  int blocks_ = 0;
  RelativeRows reached_;             ///< rows that samples of the capacity reach
  Matrix<Real> gradients_, sum_PC_;  ///< gradients_: one after the other for each block
  Matrix<Real> values_;              ///< rows of the table, then the norm's weight and bias
  Vector<Real> mean_P_, rstd_P_;
};

}  // namespace deltapipe
