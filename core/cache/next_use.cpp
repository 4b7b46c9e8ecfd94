// SPDX-License-Identifier: BSD-3-Clause
#include "core/cache/next_use.hpp"

namespace deltapipe {

namespace {

constexpr std::uint64_t kNotAnnounced = std::uint64_t{1} << 63;

}  // namespace

void AnnouncedUses::announce(std::uint64_t sample) {
  const std::uint64_t position = first_position_ + entries_.size();
  if (next_[sample] == kUnknown)
    next_[sample] = position;
  else
    entries_[last_[sample] - first_position_].next = position;
  last_[sample] = position;
  entries_.push_back({sample, kUnknown, false});
}

void AnnouncedUses::consume(std::uint64_t sample) {
  const std::uint64_t position = next_[sample];
  if (position == kUnknown) return;
  Entry& entry = entries_[position - first_position_];
  entry.consumed = true;
  next_[sample] = entry.next;
  while (!entries_.empty() && entries_.front().consumed) {
    entries_.pop_front();
    ++first_position_;
  }
}

void AnnouncedUses::clear() {
  for (const Entry& entry : entries_) next_[entry.sample] = kUnknown;
  first_position_ += entries_.size();
  entries_.clear();
}

void EvictionOrder::insert(std::uint64_t sample, std::uint64_t next_use) {
  erase(sample);
  const bool known = next_use != AnnouncedUses::kUnknown;
  const std::uint64_t key = known ? next_use + 1 : kNotAnnounced + ++clock_;
  key_[sample] = key;
  order_.emplace(key, sample);
}

void EvictionOrder::erase(std::uint64_t sample) {
  if (key_[sample] == 0) return;
  order_.erase({key_[sample], sample});
  key_[sample] = 0;
}

}  // namespace deltapipe
