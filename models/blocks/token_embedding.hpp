// SPDX-License-Identifier: BSD-3-Clause
// The first end of a language model, and the table of tokens that it may share with the last one.
#pragma once

#include <memory>
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

/// x = token + position, with dropout.
template <class Real>
class TokenPositionEmbedding final : public FirstEnd<Real> {
 public:
  /// The position table is a parameter [positions, C] of `parameters`.
  TokenPositionEmbedding(ParameterArena<Real>& parameters, int position_table,
                         std::shared_ptr<TokenTable<Real>> tokens, double dropout,
                         std::uint32_t dropout_site)
      : parameters_(parameters),
        positions_(position_table),
        tokens_(std::move(tokens)),
        dropout_(dropout),
        site_(dropout_site) {}

  void reserve(const StageCapacity& capacity, const ViewAllocator& memory) override;
  bool trained() const override { return !tokens_->wte_frozen() || trains_positions(); }
  int bucket() const override { return parameters_.info()[positions_].bucket; }
  void forward(const BlockPass<Real>& pass, const MatrixRef<Real>& x) const override;
  void backward(const BlockPass<Real>& pass, const MatrixRef<Real>& gradient,
                bool accumulate) const override;
  bool continues_text() const override { return true; }
  void continue_text(const BlockPass<Real>& pass, int kept,
                     const MatrixRef<Real>& x) const override;

 private:
  bool trains_positions() const { return !parameters_.info()[positions_].frozen; }

  ParameterArena<Real>& parameters_;
  int positions_;
  std::shared_ptr<TokenTable<Real>> tokens_;
  double dropout_;
  std::uint32_t site_;
};

}  // namespace deltapipe
