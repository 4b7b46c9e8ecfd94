// SPDX-License-Identifier: BSD-3-Clause
// The token embedding of a model of texts.
#pragma once

#include <string>

#include "models/blocks/block.hpp"

namespace deltapipe {

/// A stage's part of the token embedding. On a first stage without the table it holds the rows of
/// a step.
template <class Real>
class TokenTable final : public TokenEmbedding<Real> {
 public:
  TokenTable(ParameterArena<Real>& parameters, std::string name, int vocabulary, int channels,
             bool shared)
      : parameters_(parameters),
        name_(std::move(name)),
        vocabulary_(vocabulary),
        channels_(channels),
        shared_(shared) {}

  /// Declares the table, or a frozen copy of it, on this stage.
  int declare(int bucket) { return index_ = parameters_.add(name_, shape(), true, bucket); }
  int declare_copy(int bucket) { return index_ = parameters_.add_copy(name_, shape(), bucket); }
  /// Allocates what the first stage needs beside the table.
  void reserve(const StageCapacity& capacity, const ViewAllocator& memory);

  /// Returns the table or, if it is on another stage, the rows of it that a step needs.
  RowTable<Real> rows() const;
  /// Returns the place of a micro-batch's gradients; only if the table is trained.
  MatrixRef<Real> stored_gradient(const MicroBatch& batch) const;

  bool shared() const override { return shared_; }
  int embedding_channels() const override { return channels_; }
  int wte() const override { return index_; }
  bool wte_frozen() const override { return parameters_.frozen().contains(name_); }
  MatrixRef<Real> embedding_rows(int rows) override { return narrow(rows_UC_, rows, channels_); }
  MatrixRef<Real> embedding_gradient(const ExecSpace& exec,
                                     const VectorRef<const std::int32_t>& first_of_U,
                                     const VectorRef<const std::int32_t>& row_of,
                                     int rows) override;

 private:
  std::vector<std::uint64_t> shape() const {
    return {static_cast<std::uint64_t>(vocabulary_), static_cast<std::uint64_t>(channels_)};
  }

  ParameterArena<Real>& parameters_;
  std::string name_;
  int vocabulary_, channels_;
  bool shared_;
  int index_ = -1;
  std::size_t batch_rows_ = 0;  ///< rows reserved for a micro-batch
  Matrix<Real> rows_UC_, gradient_UC_;
  Matrix<Real> gradient_NC_;  ///< gradients of all micro-batches of a step
};

}  // namespace deltapipe
