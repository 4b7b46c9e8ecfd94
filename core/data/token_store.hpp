// SPDX-License-Identifier: BSD-3-Clause
// Token ids in memory, two bytes each if the vocabulary allows it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deltapipe {

class TokenStore {
 public:
  /// Ids are 0 ... vocabulary_size - 1.
  explicit TokenStore(int vocabulary_size) : narrow_(vocabulary_size <= 65536) {}

  std::uint64_t size() const { return narrow_ ? ids16_.size() : ids32_.size(); }

  void append(std::span<const std::int32_t> ids) {
    if (narrow_) {
      for (const std::int32_t id : ids) ids16_.push_back(static_cast<std::uint16_t>(id));
    } else {
      ids32_.insert(ids32_.end(), ids.begin(), ids.end());
    }
  }

  /// Copies the ids from `start` on; start + ids.size() <= size().
  void copy(std::uint64_t start, std::span<std::int32_t> ids) const {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = narrow_ ? std::int32_t{ids16_[start + i]} : ids32_[start + i];
    }
  }

 private:
  bool narrow_;
  std::vector<std::uint16_t> ids16_;
  std::vector<std::int32_t> ids32_;
};

}  // namespace deltapipe
