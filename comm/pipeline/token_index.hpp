// SPDX-License-Identifier: BSD-3-Clause
// Index of the rows of the token embedding that a step needs, with the first use of each and the
// last one, after which its gradient is complete.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe {

/// Distinct tokens of a step's micro-batches of one replica, and the rows that contain each of
/// them. First and last stage build the same index from the same samples, so that tied embeddings
/// exchange rows without naming them.
class TokenIndex {
 public:
  /// Allocates memory for steps of at most `rows` tokens in `micro_batches`.
  TokenIndex(int vocabulary, int rows, int micro_batches);

  /// Returns the memory that an index of these sizes requires.
  static MemoryLedger memory(int vocabulary, int rows);

  /// Begins a new step.
  void clear();
  /// Adds the tokens of the next micro-batch; stores its row n as row first_row + n.
  void add(std::span<const std::int32_t> tokens_N, std::int32_t first_row);
  /// Sorts rows by token and tokens by last use, and copies everything to the device.
  void finish(const ExecSpace& exec);

  int size() const { return static_cast<int>(tokens_.size()); }  ///< U
  int micro_batches() const { return static_cast<int>(needed_before_.size()) - 1; }

  /// Tokens in the order of first use. Micro-batches before m need [0, needed_before(m)).
  std::span<const std::int32_t> tokens() const { return tokens_; }
  VectorRef<const std::int32_t> token_U() const { return used(token_U_); }
  std::int32_t row_of_token(std::int32_t token) const { return slot_of_token_[token]; }
  int needed_before(int micro_batch) const { return needed_before_[micro_batch]; }

  /// Tokens in the order of last use. No micro-batch from m on uses [0, final_before(m)). The rows
  /// of token u in this order are row_of()(first_of_U()(u) ... first_of_U()(u + 1)).
  std::span<const std::int32_t> tokens_by_last_use() const { return tokens_by_last_use_; }
  VectorRef<const std::int32_t> token_by_last_use_U() const { return used(token_by_last_use_U_); }
  int final_before(int micro_batch) const { return final_before_[micro_batch]; }
  VectorRef<const std::int32_t> first_of_U() const {
    return VectorRef<const std::int32_t>(first_of_U_.data(), tokens_.size() + 1);
  }
  VectorRef<const std::int32_t> row_of() const {
    return VectorRef<const std::int32_t>(row_of_.data(), slots_.size());
  }

 private:
  VectorRef<const std::int32_t> used(const Vector<std::int32_t>& all_U) const {
    return VectorRef<const std::int32_t>(all_U.data(), tokens_.size());
  }
  void sort_by_last_use();
  void sort_rows_by_token();

  std::vector<std::int32_t> slot_of_token_;  ///< [V], -1: not in this step
  std::vector<std::int32_t> tokens_, last_use_;
  std::vector<std::int32_t> slots_, rows_;  ///< slot and row of every added token
  std::vector<std::int32_t> tokens_by_last_use_, place_of_slot_;
  std::vector<int> needed_before_, final_before_;  ///< [M + 1]
  Vector<std::int32_t> token_U_, token_by_last_use_U_, first_of_U_, row_of_;
  MirrorVector<std::int32_t> token_host_, token_by_last_use_host_, first_host_, row_host_;
};

}  // namespace deltapipe
