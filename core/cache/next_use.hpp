// SPDX-License-Identifier: BSD-3-Clause
// Next use of each sample, as announced by the sampler, and choice of the record to evict.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace deltapipe {

/// Announced uses: a sequence of sample ids in the order of use. Every announced use has a
/// position, counted from the first announcement.
class AnnouncedUses {
 public:
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  explicit AnnouncedUses(std::uint64_t samples)
      : next_(samples, kUnknown), last_(samples, kUnknown) {}

  /// Appends one use of `sample`.
  void announce(std::uint64_t sample);
  /// Consumes the sample's next announced use; has no effect for a sample that was not announced.
  void consume(std::uint64_t sample);
  void clear();

  /// Returns the position of the next announced use; kUnknown: none is announced.
  std::uint64_t next_use(std::uint64_t sample) const { return next_[sample]; }

  /// Returns the number of future announced uses, including those between them that were consumed
  /// out of order.
  std::size_t size() const { return entries_.size(); }
  std::uint64_t sample_at(std::size_t i) const { return entries_[i].sample; }
  bool is_consumed(std::size_t i) const { return entries_[i].consumed; }

 private:
  struct Entry {
    std::uint64_t sample;
    std::uint64_t next;  ///< position of the same sample's following use
    bool consumed;
  };

  std::deque<Entry> entries_;
  std::uint64_t first_position_ = 0;  ///< position of entries_[0]
  std::vector<std::uint64_t> next_;   ///< per sample: first future use
  std::vector<std::uint64_t> last_;   ///< per sample: last announced use
};

/// Records that may be evicted, ordered by Belady's rule. First come those without an announced
/// use, most recently used first, then those whose announced use is farthest in the future.
///
/// In shuffled epochs a record just used is not needed before the next epoch; the others may be
/// needed in this one. All hits of an epoch are on records that were in memory at its beginning.
/// Therefore no rule has more than P/S hits (P records in memory, S samples). Eviction of the most
/// recently used record achieves (P - in flight)/S of them without knowledge of the order. The
/// least recently used rule would achieve about (P/S)^2 / 2.
class EvictionOrder {
 public:
  explicit EvictionOrder(std::uint64_t samples) : key_(samples, 0) {}

  /// Inserts a sample; `next_use` is from AnnouncedUses. Moves a sample that is already contained.
  void insert(std::uint64_t sample, std::uint64_t next_use);
  /// Removes a sample; has no effect if it is not contained.
  void erase(std::uint64_t sample);
  bool contains(std::uint64_t sample) const { return key_[sample] != 0; }
  bool empty() const { return order_.empty(); }
  /// Returns the record to evict; the order must not be empty.
  std::uint64_t victim() const { return order_.rbegin()->second; }

 private:
  std::set<std::pair<std::uint64_t, std::uint64_t>> order_;  ///< (key, sample)
  std::vector<std::uint64_t> key_;                           ///< per sample; 0: not contained
  std::uint64_t clock_ = 0;                                  ///< counts insertions
};

}  // namespace deltapipe
