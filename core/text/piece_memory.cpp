// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/piece_memory.hpp"

#include <xxhash.h>

#include <utility>

namespace deltapipe {
namespace {

constexpr std::size_t kRememberedPieces = 1u << 17;  // then all of them are discarded

}  // namespace

std::size_t StringHash::operator()(std::string_view text) const {
  return static_cast<std::size_t>(XXH3_64bits(text.data(), text.size()));
}

bool PieceMemory::recall(std::string_view piece, std::vector<std::int32_t>& ids) const {
  const auto found = places_.find(piece);
  if (found == places_.end()) return false;
  const auto* first = ids_.data() + found->second.first;
  ids.insert(ids.end(), first, first + found->second.count);
  return true;
}

void PieceMemory::remember(std::string_view piece, std::span<const std::int32_t> ids) {
  if (places_.size() >= kRememberedPieces) {
    places_.clear();
    ids_.clear();
  }
  places_.emplace(std::string(piece), Place{static_cast<std::uint32_t>(ids_.size()),
                                            static_cast<std::uint32_t>(ids.size())});
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

std::unique_ptr<PieceMemory> PieceMemories::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (free_.empty()) return std::make_unique<PieceMemory>();
  std::unique_ptr<PieceMemory> memory = std::move(free_.back());
  free_.pop_back();
  return memory;
}

void PieceMemories::put_back(std::unique_ptr<PieceMemory> memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(std::move(memory));
}

}  // namespace deltapipe
