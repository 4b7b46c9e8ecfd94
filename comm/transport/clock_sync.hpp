// SPDX-License-Identifier: BSD-3-Clause
// The common clock of all ranks, which is that of rank 0, measured by exchanges of messages. Clocks
// of two machines drift apart by milliseconds per minute, so it is measured repeatedly.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>

#include "core/base/observe/trace.hpp"

namespace deltapipe {

class ProgressThread;

/// An exchange of two messages: rank r asks, rank 0 answers.
struct ClockExchange {
  std::int64_t asked_ns = 0;     ///< on the clock of rank r
  std::int64_t received_ns = 0;  ///< on the clock of rank 0
  std::int64_t sent_ns = 0;      ///< on the clock of rank 0
  std::int64_t answered_ns = 0;  ///< on the clock of rank r
};

/// Offset of rank 0's clock, from the exchange with the tightest bound. The bound is half the time
/// for which its messages were under way, plus the possible drift since then. Thread-safe.
class ClockEstimate {
 public:
  void add(const ClockExchange& exchange);
  std::uint64_t seen() const { return seen_; }  ///< number of exchanges
  /// Returns the offset to add to this rank's Clock.
  std::chrono::nanoseconds offset() const { return std::chrono::nanoseconds(offset_ns_.load()); }

 private:
  std::mutex mutex_;
  std::atomic<std::int64_t> offset_ns_{0};
  std::atomic<std::uint64_t> seen_{0};
  /// Bound of the offset's error at the time of the measurement.
  double error_ns_ = std::numeric_limits<double>::infinity();
  std::int64_t measured_ns_ = 0;
};

/// Makes the first estimate; collective. All ranks ask at once, and rank 0 answers them as they
/// come. The time therefore grows with the number of ranks only by the processor time of the
/// answers.
void align_clock(MPI_Comm comm, ClockEstimate& estimate);
/// Keeps an estimate up to date by exchanges on the progress thread over progress.control(), whose
/// rank 0 answers. `estimate` must outlive `progress`.
void keep_clock_aligned(ProgressThread& progress, ClockEstimate& estimate);

}  // namespace deltapipe
