// SPDX-License-Identifier: BSD-3-Clause
// The common clock of all ranks: that of rank 0, as exchanges of messages show it. Clocks of two
// machines drift apart by milliseconds a minute, so that it is measured again and again.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>

#include "core/base/observe/trace.hpp"

namespace deltapipe {

class ProgressThread;

/// An exchange of two messages: rank r asks, rank 0 answers.
struct ClockExchange {
  std::int64_t asked_ns = 0;     ///< on the clock of rank r
  std::int64_t received_ns = 0;  ///< on that of rank 0
  std::int64_t sent_ns = 0;      ///< on that of rank 0
  std::int64_t answered_ns = 0;  ///< on the clock of rank r
};

/// The offset of rank 0's clock, from the exchange that bounds it best: half the time that its
/// messages were under way, and what clocks may have drifted apart since. Thread-safe.
class ClockEstimate {
 public:
  void add(const ClockExchange& exchange);
  std::uint64_t seen() const { return seen_; }    ///< exchanges
  std::uint64_t taken() const { return taken_; }  ///< that were good enough to count
  /// Add to this rank's Clock.
  std::chrono::nanoseconds offset() const { return std::chrono::nanoseconds(offset_ns_.load()); }
  /// The offset is off by this at most.
  std::chrono::nanoseconds error(TimePoint now) const;

 private:
  double error_at(std::int64_t now_ns) const;

  mutable std::mutex mutex_;
  std::atomic<std::int64_t> offset_ns_{0};
  std::atomic<std::uint64_t> seen_{0};
  std::atomic<std::uint64_t> taken_{0};
  double error_ns_ = 0;  ///< when it was measured
  std::int64_t measured_ns_ = 0;
};

/// Keeps an estimate up to date by exchanges on the progress thread; rank 0 answers.
class ClockSync {
 public:
  /// Collective: the first estimate. All ranks ask at once, and rank 0 answers whoever asks, so
  /// that the time does not grow with their number but for the answers' processor time.
  static void align(MPI_Comm comm, ClockEstimate& estimate);
  /// Starts the exchanges over `comm`, whose rank 0 is the common clock. `estimate` outlives
  /// `progress`.
  static void start(ProgressThread& progress, MPI_Comm comm, ClockEstimate& estimate);
};

}  // namespace deltapipe
