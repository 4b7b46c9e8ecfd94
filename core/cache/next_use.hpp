// SPDX-License-Identifier: BSD-3-Clause
// When each sample is needed next, as far as the sampler has told, and which record is best given
// up.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace deltapipe {

/// The announced future: a sequence of sample ids in the order of their use. Every announced use
/// has a position, counted from the first announcement on.
class AnnouncedUses {
 public:
  static constexpr std::uint64_t kUnknown = ~std::uint64_t{0};

  explicit AnnouncedUses(std::uint64_t samples)
      : next_(samples, kUnknown), last_(samples, kUnknown) {}

  /// Appends one use of `sample`.
  void announce(std::uint64_t sample);
  /// The sample's next announced use is now; a sample that was not announced changes nothing.
  void consume(std::uint64_t sample);
  void clear();

  /// Position of the next announced use; kUnknown: none.
  std::uint64_t next_use(std::uint64_t sample) const { return next_[sample]; }

  /// Announced uses that are still to come, with those consumed out of order in between.
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
  std::uint64_t first_position_ = 0;  ///< of entries_[0]
  std::vector<std::uint64_t> next_;   ///< per sample: first use to come
  std::vector<std::uint64_t> last_;   ///< per sample: last use announced
};

/// The records that may be given up, ordered by Belady's rule: first those with no announced use,
/// the most recently used first, then the one whose announced use is farthest away.
///
/// In shuffled epochs a record just used comes again in the next epoch only; the others may come in
/// this one. What an epoch meets in memory was there at its beginning, so that no rule has more
/// than P/S hits (P records in memory, S samples); giving up the most recently used has
/// (P - in flight)/S of them without knowing the order. The least recently used rule would have
/// about (P/S)^2 / 2.
class EvictionOrder {
 public:
  explicit EvictionOrder(std::uint64_t samples) : key_(samples, 0) {}

  /// `next_use` as AnnouncedUses tells it. A sample already in is put where it belongs now.
  void insert(std::uint64_t sample, std::uint64_t next_use);
  /// Changes nothing when the sample is not in.
  void erase(std::uint64_t sample);
  bool contains(std::uint64_t sample) const { return key_[sample] != 0; }
  bool empty() const { return order_.empty(); }
  /// The record to give up; the order must not be empty.
  std::uint64_t victim() const { return order_.rbegin()->second; }

 private:
  std::set<std::pair<std::uint64_t, std::uint64_t>> order_;  ///< (key, sample)
  std::vector<std::uint64_t> key_;                           ///< per sample; 0: not in
  std::uint64_t clock_ = 0;                                  ///< counts insertions
};

}  // namespace deltapipe
