// SPDX-License-Identifier: BSD-3-Clause
// Emulation of networks that are slower than the real one: computes when a message would have
// passed. It emulates the wire, not the processor time for TCP.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>

#include "comm/transport/link_settings.hpp"
#include "core/base/observe/time_account.hpp"

namespace deltapipe {

/// Bytes of the network that a message uses.
enum class Framing {
  none,     ///< only its own bytes
  ethernet  ///< TCP segments of 1448 bytes in Ethernet frames of 1514, as tc counts them
};

/// A link that passes one byte after the other. A message uses the first free time after it is
/// available, in pieces if others have booked time in between. It arrives one latency after its
/// last byte has left. Thread-safe.
class EmulatedLink {
 public:
  struct Passage {
    TimePoint start;    ///< first byte
    TimePoint end;      ///< last byte
    TimePoint arrival;  ///< end + latency
  };

  explicit EmulatedLink(LinkSettings settings, Framing framing = Framing::none)
      : settings_(settings), framing_(framing) {}
  /// Books a message whose first byte is available at `from`, which may be in the past.
  Passage book(TimePoint from, std::size_t bytes);
  /// Returns how long a message takes when no other message is under way.
  double seconds_of(std::size_t bytes) const;
  bool emulates() const { return settings_.bits_per_second > 0 || settings_.latency_seconds > 0; }
  Clock::duration latency() const;

 private:
  LinkSettings settings_;
  Framing framing_;
  std::mutex mutex_;
  IntervalSet bookings_;
};

/// The only wire between a rank and the network; everything that the rank sends and receives passes
/// it. Messages pass the wires of both ranks. Without links the wire is not emulated.
struct RankWire {
  std::shared_ptr<EmulatedLink> out;
  std::shared_ptr<EmulatedLink> in;
  explicit operator bool() const { return out != nullptr; }

  /// The following functions book a collective that has just ended in MPI, and return when it would
  /// have ended over the wires. They are models for any MPI library, not the algorithm of the
  /// library in use. If ranks differ, they model the rank that ends last. Trees have
  /// ceil(log2(ranks)) levels.
  /// Books a sum that goes up a tree to one rank and back, with all values at every level.
  TimePoint book_tree(TimePoint now, int ranks, std::size_t bytes) const;
  /// Books a broadcast down a tree. The root sends at every level; other ranks receive at the last
  /// level.
  TimePoint book_broadcast(TimePoint now, int ranks, bool is_root, std::size_t bytes) const;
  /// Books messages straight to the root, whose wire carries all of them. `bytes` pass this rank's
  /// wire.
  TimePoint book_gather(TimePoint now, bool is_root, std::size_t bytes) const;
  /// Books one round for each level of a tree. In each round a rank sends and receives one byte.
  TimePoint book_barrier(TimePoint now, int ranks) const;
};

/// Returns the bytes that all ranks together send in an all-reduce of `bytes` bytes. It holds for a
/// ring and for any tree that goes up and back.
inline std::uint64_t all_reduce_bytes(int ranks, std::size_t bytes) {
  return 2 * static_cast<std::uint64_t>(ranks - 1) * bytes;
}

}  // namespace deltapipe
