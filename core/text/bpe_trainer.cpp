// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/bpe_trainer.hpp"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "core/base/error.hpp"
#include "core/text/byte_level.hpp"
#include "core/text/piece_memory.hpp"
#include "core/text/pretokenizer.hpp"

namespace deltapipe {
namespace {

constexpr std::int64_t kLeastCount = 2;

/// A distinct piece of the text, as ids, and its number of occurrences.
struct Word {
  std::vector<std::int32_t> ids;
  std::int64_t count = 0;
};

/// Distinct pieces in order of first occurrence.
class WordCounter {
 public:
  void add(std::string_view text) {
    PieceReader reader(text);
    std::string_view piece;
    while (reader.next(piece)) {
      auto found = index_.find(piece);
      if (found == index_.end()) {
        found = index_.emplace(std::string(piece), words_.size()).first;
        words_.push_back({ids_of(piece), 0});
      }
      ++words_[found->second].count;
    }
  }
  std::vector<Word> take() { return std::move(words_); }

 private:
  static std::vector<std::int32_t> ids_of(std::string_view piece) {
    static const std::array<std::int32_t, 256> id_of = [] {
      std::array<std::int32_t, 256> ids{};
      for (std::size_t i = 0; i < 256; ++i) ids[byte_order()[i]] = static_cast<std::int32_t>(i);
      return ids;
    }();
    std::vector<std::int32_t> ids;
    for (const char c : piece) ids.push_back(id_of[static_cast<unsigned char>(c)]);
    return ids;
  }

  StringMap<std::size_t> index_;
  std::vector<Word> words_;
};

struct PairState {
  std::int64_t count = 0;            // occurrences in all words, times the words' counts
  std::vector<std::uint32_t> words;  // words that have contained the pair; some may no longer do so
};

struct Candidate {
  std::int64_t count;
  std::uint64_t pair;
  bool operator<(const Candidate& other) const {  // the queue's top is its largest
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

/// Counts of pairs, updated by every merge.
class PairTable {
 public:
  explicit PairTable(std::vector<Word> words) : words_(std::move(words)) {
    for (std::uint32_t w = 0; w < words_.size(); ++w) {
      const Word& word = words_[w];
      for (std::size_t i = 0; i + 1 < word.ids.size(); ++i) {
        change(word.ids[i], word.ids[i + 1], w, word.count);
      }
    }
    for (const auto& [pair, state] : pairs_) queue_.push({state.count, pair});
    grown_.clear();
  }

  /// Finds the most frequent pair; returns false if no pair is frequent enough.
  bool best(std::uint64_t& pair) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      const auto found = pairs_.find(top.pair);
      if (found == pairs_.end()) continue;
      if (found->second.count != top.count) {
        queue_.push({found->second.count, top.pair});
        continue;
      }
      if (top.count < kLeastCount) return false;
      pair = top.pair;
      return true;
    }
    return false;
  }

  /// Replaces `pair` by `id` in all words.
  void merge(std::uint64_t pair, std::int32_t id) {
    const auto left = static_cast<std::int32_t>(pair >> 32);
    const auto right = static_cast<std::int32_t>(pair & 0xFFFFFFFFu);
    std::vector<std::uint32_t> words = std::move(pairs_.at(pair).words);
    std::sort(words.begin(), words.end());
    words.erase(std::unique(words.begin(), words.end()), words.end());
    for (const std::uint32_t w : words) merge_in_word(w, left, right, id);
    pairs_.erase(pair);
    for (const std::uint64_t grown : grown_) {
      const auto found = pairs_.find(grown);
      if (found != pairs_.end()) queue_.push({found->second.count, grown});
    }
    grown_.clear();
  }

 private:
  void change(std::int32_t left, std::int32_t right, std::uint32_t word, std::int64_t by) {
    const std::uint64_t pair = pair_key(left, right);
    PairState& state = pairs_[pair];
    state.count += by;
    if (by <= 0) return;
    if (state.words.empty()) grown_.push_back(pair);
    if (state.words.empty() || state.words.back() != word) state.words.push_back(word);
  }

  void merge_in_word(std::uint32_t w, std::int32_t left, std::int32_t right, std::int32_t id) {
    Word& word = words_[w];
    std::vector<std::int32_t>& ids = word.ids;
    const std::int64_t count = word.count;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < ids.size();) {
      if (i + 1 == ids.size() || ids[i] != left || ids[i + 1] != right) {
        ids[kept++] = ids[i++];
        continue;
      }
      if (kept > 0) {
        change(ids[kept - 1], left, w, -count);
        change(ids[kept - 1], id, w, count);
      }
      if (i + 2 < ids.size()) {
        change(right, ids[i + 2], w, -count);
        change(id, ids[i + 2], w, count);
      }
      ids[kept++] = id;
      i += 2;
    }
    ids.resize(kept);
  }

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, PairState, PairHash> pairs_;
  std::priority_queue<Candidate> queue_;
  std::vector<std::uint64_t> grown_;
};

void count_documents(const std::vector<std::string_view>& documents, WordCounter& counter) {
  for (std::string_view text : documents) {
    while (!text.empty()) {
      const std::size_t separator = text.find(kEndOfText);
      counter.add(text.substr(0, separator));
      if (separator == std::string_view::npos) break;
      text.remove_prefix(separator + std::string_view(kEndOfText).size());
    }
  }
}

}  // namespace

TokenizerDefinition train_bpe(const std::vector<std::string_view>& documents, int vocabulary_size) {
  TokenizerDefinition definition;
  std::unordered_map<std::string, std::int32_t> id_of;
  for (const unsigned char byte : byte_order()) {
    const char c = static_cast<char>(byte);
    id_of.emplace(byte_level_name({&c, 1}), static_cast<std::int32_t>(definition.names.size()));
    definition.names.push_back(byte_level_name({&c, 1}));
  }
  WordCounter counter;
  count_documents(documents, counter);
  PairTable table(counter.take());
  const auto wanted = static_cast<std::size_t>(vocabulary_size) - 1;  // without the end of text
  std::uint64_t pair = 0;
  while (definition.names.size() < wanted && table.best(pair)) {
    const auto left = static_cast<std::int32_t>(pair >> 32);
    const auto right = static_cast<std::int32_t>(pair & 0xFFFFFFFFu);
    const std::string name = definition.names[static_cast<std::size_t>(left)] +
                             definition.names[static_cast<std::size_t>(right)];
    // Two pairs may spell the same token: "ab" + "c" and "a" + "bc".
    const auto [found, added] =
        id_of.emplace(name, static_cast<std::int32_t>(definition.names.size()));
    if (added) definition.names.push_back(name);
    definition.merges.emplace_back(left, right);
    table.merge(pair, found->second);
  }
  definition.end_of_text = static_cast<std::int32_t>(definition.names.size());
  definition.names.emplace_back(kEndOfText);
  definition.added.push_back({std::string(kEndOfText), definition.end_of_text, true});
  return definition;
}

}  // namespace deltapipe
