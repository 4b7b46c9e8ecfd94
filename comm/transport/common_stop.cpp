// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/common_stop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "comm/transport/mpi_check.hpp"

namespace deltapipe {

namespace {

constexpr int kTag = 21;
/// Polling interval of a wait for the unit at which to stop: a failure of the run does not wake it.
constexpr std::chrono::milliseconds kLook{20};

enum Kind : std::uint64_t {
  asking,   ///< to rank 0, with the reason
  closing,  ///< from rank 0, with the reason: no rank begins further units on its own
  begun,    ///< to rank 0, with the number of units that the sender has begun
  stopping  ///< from rank 0, with the number of units after which all stop
};

using StopMessage = std::array<std::uint64_t, 2>;  ///< kind, value

}  // namespace

/// State that the operations share.
struct CommonStop::State {
  explicit State(ProgressThread& its_progress) : progress(its_progress) {}

  ProgressThread& progress;
  mutable std::mutex mutex;
  std::condition_variable known;
  std::uint64_t units = 0;           ///< units that this rank has begun
  std::uint64_t reason = 0;          ///< 0: no request
  std::optional<std::uint64_t> end;  ///< number of units after which all stop
  bool has_asked = false;
  int counts = 0;          ///< rank 0: ranks that have reported their counts
  std::uint64_t most = 0;  ///< rank 0: the largest of these counts
  StopMessage received{};

  void send(int peer, Kind kind, std::uint64_t value) {
    auto message = std::make_shared<StopMessage>(StopMessage{kind, value});
    const auto start = [message, peer, comm = progress.control()](RequestList& requests) {
      DELTAPIPE_MPI(
          MPI_Isend(message->data(), 2, MPI_UINT64_T, peer, kTag, comm, add_request(requests)));
    };
    progress.submit_regardless({.name = fmt::format("message about a stop to rank {}", peer),
                                .start = start,
                                .passive = true});
  }

  void send_all(Kind kind, std::uint64_t value) {
    for (int peer = 1; peer < progress.size(); ++peer) send(peer, kind, value);
  }

  void hear(const StopMessage& message) {
    const std::uint64_t value = message[1];
    switch (message[0]) {
      case asking:
        return close(value);
      case closing:
        return send(0, begun, set_reason(value));
      case begun:
        return count(value);
      case stopping:
        return set_end(value);
    }
  }

  /// Returns the units that this rank has begun; it begins no more for now.
  std::uint64_t set_reason(std::uint64_t value) {
    const std::lock_guard lock(mutex);
    reason = value;
    return units;
  }

  /// Closes the sequence of units; on rank 0.
  void close(std::uint64_t value) {
    {
      const std::lock_guard lock(mutex);
      if (reason != 0) return;
    }
    const std::uint64_t own = set_reason(value);
    send_all(closing, value);
    count(own);
  }

  /// Records a rank's count; on rank 0.
  void count(std::uint64_t value) {
    most = std::max(most, value);
    if (++counts < progress.size()) return;
    send_all(stopping, most);
    set_end(most);
  }

  void set_end(std::uint64_t value) {
    {
      const std::lock_guard lock(mutex);
      end = value;
    }
    known.notify_all();
  }
};

CommonStop::CommonStop(ProgressThread& progress)
    : progress_(progress), state_(std::make_shared<State>(progress)) {
  if (progress.size() == 1) return;
  progress.receive_always("message about a stop", state_->received.data(), 2, MPI_UINT64_T,
                          MPI_ANY_SOURCE, kTag,
                          [state = state_](int) { state->hear(state->received); });
}

CommonStop::~CommonStop() = default;

void CommonStop::ask(std::uint64_t reason) {
  if (std::exchange(state_->has_asked, true)) return;
  if (progress_.size() == 1) return state_->close(reason);
  // Rank 0 sends to itself, so that only its progress thread closes and counts.
  state_->send(0, asking, reason);
}

bool CommonStop::begin_next() {
  progress_.check();
  std::unique_lock lock(state_->mutex);
  if (state_->reason != 0 && !state_->end) {
    while (!state_->known.wait_for(lock, kLook, [&] { return state_->end.has_value(); })) {
      lock.unlock();
      progress_.check();
      lock.lock();
    }
  }
  if (state_->end && state_->units >= *state_->end) return false;
  ++state_->units;
  return true;
}

std::uint64_t CommonStop::reason() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reason;
}

}  // namespace deltapipe
