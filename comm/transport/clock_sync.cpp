// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/clock_sync.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/transport/mpi_check.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {
namespace {

constexpr int kAskTag = 11;
constexpr int kAnswerTag = 12;
constexpr int kFirstTag = 2;
constexpr int kFirstRounds = 8;
constexpr double kDrift = 2e-5;  // drift between two crystals
constexpr std::chrono::seconds kInterval{2};

std::int64_t now_ns() {
  return nanoseconds_of(Clock::now());
}

struct Answer {
  std::int64_t received_ns = 0;
  std::int64_t sent_ns = 0;
};

void answer(ProgressThread& progress, int peer) {
  const auto message = std::make_shared<Answer>();
  message->received_ns = now_ns();
  const auto start = [message, peer, comm = progress.control()](RequestList& requests) {
    message->sent_ns = now_ns();
    DELTAPIPE_MPI(
        MPI_Isend(message.get(), 2, MPI_INT64_T, peer, kAnswerTag, comm, add_request(requests)));
  };
  progress.submit_regardless({.name = fmt::format("answer about the clock to rank {}", peer),
                              .start = start,
                              .passive = true});
}

/// Asks every kInterval on the other ranks.
struct Asker : std::enable_shared_from_this<Asker> {
  Asker(ProgressThread& its_progress, ClockEstimate& its_estimate)
      : progress(its_progress), estimate(its_estimate) {}
  ProgressThread& progress;
  ClockEstimate& estimate;
  std::int64_t asked_ns = 0;
  Answer message;
  int open = 0;

  void ask(TimePoint when) {
    const auto start = [self = shared_from_this()](RequestList& requests) { self->post(requests); };
    const auto completed = [self = shared_from_this()](const MPI_Status&, RequestList&) {
      if (--self->open == 0) self->finish();
    };
    progress.submit_regardless({.name = "question about the clock",
                                .start = start,
                                .completed = completed,
                                .not_before = when,
                                .passive = true});
  }

  void post(RequestList& requests) {
    open = 2;
    DELTAPIPE_MPI(MPI_Irecv(&message, 2, MPI_INT64_T, 0, kAnswerTag, progress.control(),
                            add_request(requests)));
    asked_ns = now_ns();
    DELTAPIPE_MPI(MPI_Isend(&asked_ns, 1, MPI_INT64_T, 0, kAskTag, progress.control(),
                            add_request(requests)));
  }

  void finish() {
    estimate.add({asked_ns, message.received_ns, message.sent_ns, now_ns()});
    ask(Clock::now() + kInterval);
  }
};

}  // namespace

void ClockEstimate::add(const ClockExchange& e) {
  const std::lock_guard lock(mutex_);
  ++seen_;
  const std::int64_t trip = (e.answered_ns - e.asked_ns) - (e.sent_ns - e.received_ns);
  const double error = static_cast<double>(trip) / 2;
  const double error_now = error_ns_ + kDrift * static_cast<double>(e.answered_ns - measured_ns_);
  if (trip < 0 || error > error_now) return;
  offset_ns_ = ((e.received_ns - e.asked_ns) + (e.sent_ns - e.answered_ns)) / 2;
  error_ns_ = error;
  measured_ns_ = e.answered_ns;
}

void align_clock(MPI_Comm comm, ClockEstimate& estimate) {
  int rank = 0, size = 1;
  DELTAPIPE_MPI(MPI_Comm_rank(comm, &rank));
  DELTAPIPE_MPI(MPI_Comm_size(comm, &size));
  std::int64_t theirs = 0;
  if (rank == 0) {
    for (int left = (size - 1) * kFirstRounds; left > 0; --left) {
      MPI_Status status;
      DELTAPIPE_MPI(MPI_Recv(&theirs, 1, MPI_INT64_T, MPI_ANY_SOURCE, kFirstTag, comm, &status));
      theirs = now_ns();
      DELTAPIPE_MPI(MPI_Send(&theirs, 1, MPI_INT64_T, status.MPI_SOURCE, kFirstTag, comm));
    }
    return;
  }
  for (int round = 0; round < kFirstRounds; ++round) {
    ClockExchange exchange;
    exchange.asked_ns = now_ns();
    DELTAPIPE_MPI(MPI_Send(&theirs, 1, MPI_INT64_T, 0, kFirstTag, comm));
    DELTAPIPE_MPI(MPI_Recv(&theirs, 1, MPI_INT64_T, 0, kFirstTag, comm, MPI_STATUS_IGNORE));
    exchange.answered_ns = now_ns();
    exchange.received_ns = exchange.sent_ns = theirs;
    estimate.add(exchange);
  }
}

void keep_clock_aligned(ProgressThread& progress, ClockEstimate& estimate) {
  if (progress.rank() > 0)
    return std::make_shared<Asker>(progress, estimate)->ask(Clock::now() + kInterval);
  if (progress.size() == 1) return;
  const auto question = std::make_shared<std::int64_t>(0);
  progress.receive_always("question about the clock", question.get(), 1, MPI_INT64_T,
                          MPI_ANY_SOURCE, kAskTag,
                          [question, &progress](int source) { answer(progress, source); });
}

}  // namespace deltapipe
