// Which rows of the token table a step needs, in the order in which its tokens first appear.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/views.hpp"

namespace deltapipe {

/// The distinct tokens of a step's micro-batches of one replica, and for each the rows it stands
/// in. First and last stage build the same index from the same samples, so that tied embeddings
/// exchange rows without naming them.
class TokenIndex {
 public:
  /// Memory for steps of at most `rows` tokens.
  TokenIndex(int vocabulary, int rows);

  /// Begins a new step.
  void clear();
  /// Adds the tokens of a micro-batch; its row n is stored as row first_row + n.
  void add(std::span<const std::int32_t> tokens_N, std::int32_t first_row);
  /// Sorts rows by token and copies all to the device.
  void finish(const ExecSpace& exec);

  int size() const { return static_cast<int>(tokens_.size()); }  ///< U
  std::int32_t row_of_token(std::int32_t token) const { return slot_of_token_[token]; }
  std::span<const std::int32_t> tokens() const { return tokens_; }
  VectorRef<const std::int32_t> token_U() const {
    return VectorRef<const std::int32_t>(token_U_.data(), tokens_.size());
  }
  VectorRef<const std::int32_t> first_of_U() const {
    return VectorRef<const std::int32_t>(first_of_U_.data(), tokens_.size() + 1);
  }
  VectorRef<const std::int32_t> row_of() const {
    return VectorRef<const std::int32_t>(row_of_.data(), slots_.size());
  }

 private:
  std::vector<std::int32_t> slot_of_token_;  ///< [V], -1: not in this step
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> slots_, rows_;  ///< of every token added
  Vector<std::int32_t> token_U_, first_of_U_, row_of_;
  Vector<std::int32_t>::HostMirror token_host_, first_host_, row_host_;
};

}  // namespace deltapipe
