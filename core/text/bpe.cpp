// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/bpe.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "core/base/error.hpp"
#include "core/text/byte_level.hpp"

namespace deltapipe {
namespace {

constexpr std::size_t kShortPiece = 48;  // bytes; longer pieces are merged by a heap

}  // namespace

std::vector<std::string> token_bytes(const TokenizerDefinition& definition) {
  std::vector<std::string> bytes;
  bytes.reserve(definition.names.size());
  for (const std::string& name : definition.names) {
    bytes.push_back(byte_level_bytes(name).value_or(name));
  }
  for (const AddedToken& token : definition.added) {
    if (token.id >= 0) bytes[static_cast<std::size_t>(token.id)] = token.content;
  }
  return bytes;
}

BpeEncoder::BpeEncoder(const TokenizerDefinition& definition) {
  StringMap<std::int32_t> id_of;
  id_of.reserve(definition.names.size());
  for (std::size_t id = 0; id < definition.names.size(); ++id) {
    if (!definition.names[id].empty()) {
      id_of.emplace(definition.names[id], static_cast<std::int32_t>(id));
    }
  }
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto found = id_of.find(byte_level_name({&c, 1}));
    byte_ids_[byte] = found == id_of.end() ? -1 : found->second;
  }
  merges_.reserve(definition.merges.size());
  for (std::size_t rank = 0; rank < definition.merges.size(); ++rank) {
    const auto [left, right] = definition.merges[rank];
    const auto found = id_of.find(definition.names[static_cast<std::size_t>(left)] +
                                  definition.names[static_cast<std::size_t>(right)]);
    DELTAPIPE_ASSERT(found != id_of.end(), fmt::format("merge {} has no token", rank));
    merges_[pair_key(left, right)] = {static_cast<std::int32_t>(rank), found->second};
  }
  if (definition.ignore_merges) {
    for (const auto& [name, id] : id_of) {
      if (const auto bytes = byte_level_bytes(name)) whole_pieces_.emplace(*bytes, id);
    }
  }
}

const BpeEncoder::Merge* BpeEncoder::find(std::int32_t left, std::int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

void BpeEncoder::encode(std::string_view piece, PieceMemory& memory,
                        std::vector<std::int32_t>& ids) const {
  if (!whole_pieces_.empty()) {
    if (const auto found = whole_pieces_.find(piece); found != whole_pieces_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  if (piece.size() > kShortPiece) return merge_long(piece, ids);
  if (memory.recall(piece, ids)) return;
  const std::size_t before = ids.size();
  merge_short(piece, ids);
  memory.remember(piece, std::span<const std::int32_t>(ids).subspan(before));
}

std::int32_t BpeEncoder::byte_id(char c) const {
  const auto byte = static_cast<unsigned char>(c);
  if (byte_ids_[byte] < 0)
    throw UserError({.what = "the text has a byte for which the tokenizer has no token",
                     .value = fmt::format("byte {}", byte),
                     .remedy = "remove it from the text, or use a tokenizer with tokens for all "
                               "bytes"});
  return byte_ids_[byte];
}

void BpeEncoder::merge_short(std::string_view piece, std::vector<std::int32_t>& ids) const {
  constexpr Merge kNone{INT32_MAX, 0};
  std::array<std::int32_t, kShortPiece> part;
  std::array<Merge, kShortPiece> merge;  // merge of part[i] and part[i + 1]
  std::size_t count = piece.size();
  const auto merge_at = [&](std::size_t i) {
    const Merge* found = i + 1 < count ? find(part[i], part[i + 1]) : nullptr;
    return found != nullptr ? *found : kNone;
  };
  for (std::size_t i = 0; i < count; ++i) part[i] = byte_id(piece[i]);
  for (std::size_t i = 0; i < count; ++i) merge[i] = merge_at(i);
  while (true) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < count; ++i) {
      if (merge[i].rank < merge[best].rank) best = i;
    }
    if (merge[best].rank == kNone.rank) break;
    part[best] = merge[best].id;
    --count;
    for (std::size_t i = best + 1; i < count; ++i) {
      part[i] = part[i + 1];
      merge[i] = merge[i + 1];
    }
    merge[best] = merge_at(best);
    if (best > 0) merge[best - 1] = merge_at(best - 1);
  }
  ids.insert(ids.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(count));
}

void BpeEncoder::merge_long(std::string_view piece, std::vector<std::int32_t>& ids) const {
  constexpr std::size_t kEnd = SIZE_MAX;
  struct Part {
    std::int32_t id;  // -1: merged into the part before it
    std::size_t previous, next;
  };
  struct Candidate {
    std::int32_t rank, id;
    std::size_t position;
    std::int32_t left, right;
    bool operator<(const Candidate& other) const {  // the queue's top is its largest
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Part> parts(piece.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    parts[i] = {byte_id(piece[i]), i == 0 ? kEnd : i - 1, i + 1 == parts.size() ? kEnd : i + 1};
  }
  std::vector<Candidate> candidates;
  candidates.reserve(parts.size());
  const auto candidate_at = [&](std::size_t i, auto&& take) {
    if (i == kEnd || parts[i].next == kEnd) return;
    const std::int32_t right = parts[parts[i].next].id;
    if (const Merge* merge = find(parts[i].id, right)) {
      take(Candidate{merge->rank, merge->id, i, parts[i].id, right});
    }
  };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    candidate_at(i, [&](const Candidate& c) { candidates.push_back(c); });
  }
  std::priority_queue<Candidate> queue(std::less<Candidate>{}, std::move(candidates));
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Part& left = parts[best.position];
    if (left.id != best.left || left.next == kEnd || parts[left.next].id != best.right) continue;
    Part& right = parts[left.next];
    left.id = best.id;
    left.next = right.next;
    right.id = -1;
    if (left.next != kEnd) parts[left.next].previous = best.position;
    candidate_at(left.previous, [&](const Candidate& c) { queue.push(c); });
    candidate_at(best.position, [&](const Candidate& c) { queue.push(c); });
  }
  for (std::size_t i = 0; i != kEnd; i = parts[i].next) ids.push_back(parts[i].id);
}

}  // namespace deltapipe
