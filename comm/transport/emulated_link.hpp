// SPDX-License-Identifier: BSD-3-Clause
// Networks slower than the real one: when a message would have passed. What is emulated is the
// wire; the time that a processor spends on TCP is not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "comm/transport/link_settings.hpp"
#include "core/base/observe/time_account.hpp"

namespace deltapipe {

/// Part of the network that a byte of a message occupies.
enum class Framing {
  none,     ///< a byte
  ethernet  ///< TCP segments of 1448 bytes in Ethernet frames of 1514, as tc counts them
};

/// Passes one byte after the other: a message takes the first free time after it is there, in
/// pieces where others have booked in between, and arrives a latency after its last byte left.
/// Thread-safe.
class EmulatedLink {
 public:
  struct Passage {
    TimePoint start;      ///< first byte
    TimePoint end;        ///< last byte
    TimePoint arrival;    ///< end + latency
    double busy_seconds;  ///< size / bandwidth
  };

  explicit EmulatedLink(LinkSettings settings, Framing framing = Framing::none)
      : settings_(settings), framing_(framing) {}
  /// Books a message whose first byte is there at `from`, which may lie in the past.
  Passage book(TimePoint from, std::size_t bytes);
  /// How long a message takes when nothing else is under way.
  double seconds_of(std::size_t bytes) const;
  bool emulates() const { return settings_.bits_per_second > 0 || settings_.latency_seconds > 0; }
  Clock::duration latency() const;

 private:
  LinkSettings settings_;
  Framing framing_;
  std::mutex mutex_;
  IntervalSet bookings_;
};

/// The one wire that joins a rank to the network, which all that the rank sends and receives
/// passes; messages pass the wires of both ranks. Without links: the wire is not emulated.
struct RankWire {
  std::shared_ptr<EmulatedLink> out;
  std::shared_ptr<EmulatedLink> in;
  explicit operator bool() const { return out != nullptr; }

  /// Each of these books a collective that has just ended in MPI and returns when it would have
  /// ended over the wires. They are models that hold for any MPI library, not what the one at hand
  /// does; where ranks differ, this one stands for the one that ends last. Trees have
  /// ceil(log2(ranks)) levels.
  /// A sum in a ring: every rank sends and receives 2 (ranks - 1) parts.
  TimePoint book_ring(TimePoint now, int ranks, std::size_t bytes) const;
  /// A sum that goes up a tree to one rank and back, whole at every level.
  TimePoint book_tree(TimePoint now, int ranks, std::size_t bytes) const;
  /// Down a tree: the root sends at every level; another rank has it when the last level has.
  TimePoint book_broadcast(TimePoint now, int ranks, bool is_root, std::size_t bytes) const;
  /// Straight to the root, whose wire takes all. `bytes`: what passes this rank's wire.
  TimePoint book_gather(TimePoint now, bool is_root, std::size_t bytes) const;
  /// As many rounds as a tree has levels. In each, a rank sends and receives one byte.
  TimePoint book_barrier(TimePoint now, int ranks) const;
};

/// Bytes that an all-reduce of `bytes` bytes sends, all ranks together: in a ring, and in any tree
/// that goes up and back.
inline std::uint64_t all_reduce_bytes(int ranks, std::size_t bytes) {
  return 2 * static_cast<std::uint64_t>(ranks - 1) * bytes;
}

}  // namespace deltapipe
