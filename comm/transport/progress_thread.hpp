// SPDX-License-Identifier: BSD-3-Clause
// A thread that owns MPI while a step runs (design section 6). Large messages move only inside MPI
// calls, so it keeps calling MPI while the compute thread runs kernels.
//
// Contract: after construction, other threads use MPI only through submit() and its shorthands, or
// while they hold pause() or lock_mpi(). MPI_THREAD_SERIALIZED is sufficient for this.
#pragma once

#include <mpi.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/transport/clock_sync.hpp"
#include "comm/transport/emulated_link.hpp"
#include "comm/transport/step_watch.hpp"
#include "core/base/observe/time_account.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

/// Thrown from waits when another rank asked all to stop; that rank knows the reason.
class StopRequested : public std::exception {
 public:
  explicit StopRequested(int rank, int signal = 0)
      : rank_(rank), signal_(signal), text_("rank " + std::to_string(rank) + " stopped the run") {}
  int rank() const { return rank_; }
  int signal() const { return signal_; }  ///< signal that interrupted that rank; 0: it failed
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int rank_;
  int signal_;
  std::string text_;
};

/// Thrown from waits when another rank has given no sign of life for too long.
class PeerLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Thrown when ranks that end did not agree in time.
class AgreementTimeout : public std::runtime_error {
 public:
  explicit AgreementTimeout(const std::string& what)
      : std::runtime_error("the other ranks did not answer: " + what) {}
};

/// Limits for silent ranks and long steps. Each rank's progress thread sends signs of life to the
/// next rank, also while the rank computes.
struct WatchSettings {
  double timeout_seconds = 0;  ///< 0: ranks are not watched; the same on all ranks
  /// Longest duration of a step. A rank ends the run if its compute thread exceeds it without
  /// waiting for another rank. A rank that waits ends the run a moment later. 0: no limit.
  double step_timeout_seconds = 0;
  /// A step is reported on stderr if it waits for another rank for longer than this, and for many
  /// times the duration of any earlier step: its link may lose messages.
  double stall_seconds = 20;
  /// Name for messages, such as "rank 3 (stage 1, replica 1)". Empty: "rank 3".
  std::function<std::string(int rank)> name_of_rank;
};

using RequestList = std::vector<MPI_Request>;
/// Appends a request for MPI to fill in.
inline MPI_Request* add_request(RequestList& requests) {
  return &requests.emplace_back(MPI_REQUEST_NULL);
}

/// An operation for the progress thread. The closures run on that thread. They own, by shared
/// pointers, every buffer that MPI uses. They hold no Views: without threads, Kokkos does not count
/// references atomically.
struct OperationPlan {
  std::string name;                         ///< for error messages: the operation and its ranks
  std::function<void(RequestList&)> start;  ///< starts requests and appends them
  /// Called for every finished request; may append further requests. May be empty.
  std::function<void(const MPI_Status&, RequestList&)> completed = nullptr;
  TimePoint not_before{};  ///< earliest start, for emulated links
  bool passive = false;    ///< a receive that was posted ahead: drain() does not wait for it
};

/// Handle of a submitted operation.
class Operation;
using Ticket = std::shared_ptr<Operation>;

struct OperationTimes {
  TimePoint started;
  TimePoint finished;
};

class RequestSet;
class RunWatch;

class ProgressThread {
 public:
  /// Collective over `world`, whose duplicate carries stop messages and agreements. `world` must
  /// return errors (MpiSession, ProcessGrid). If a rank cannot start its thread, all ranks throw
  /// (as agree() does).
  explicit ProgressThread(MPI_Comm world, WatchSettings watch = {});
  /// Collective like MPI_Comm_free. Gives started sends a moment to leave, cancels receives and
  /// drops queued operations. Never blocks for long, even while an exception unwinds.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Queues an operation. Operations without not_before start in the order of submission. Throws an
  /// earlier error of the progress thread, see check().
  Ticket submit(OperationPlan plan);
  /// Does the same after an error.
  Ticket submit_regardless(OperationPlan plan);

  /// Submit a send or a receive. `bytes` shares ownership of the memory, which MPI may use until
  /// the ticket is done, even after a wait for it was abandoned.
  Ticket isend(std::shared_ptr<const void> bytes, int count, int peer, int tag, MPI_Comm comm);
  Ticket irecv(std::shared_ptr<void> bytes, int count, int peer, int tag, MPI_Comm comm);
  /// Receives into the same memory again and again while the thread runs, over control(). `arrived`
  /// is called on the thread with the message's source. The memory belongs to it or outlives this
  /// object.
  void receive_always(const std::string& name, void* values, int count, MPI_Datatype type,
                      int source, int tag, const std::function<void(int source)>& arrived);

  /// Sleeps until the operation is done. Throws its error, or as check() does.
  void wait(const Ticket& ticket);
  /// Sleeps while `awaited` returns the name of an operation for which the caller waits, until it
  /// returns an empty one. It is called when an operation has ended, and at intervals for what time
  /// decides, such as arrivals over emulated links. Throws as check() does.
  void wait_while(const std::function<std::string()>& awaited);
  /// Throws if the run must end: an earlier error of the progress thread, StopRequested,
  /// Interrupted (a signal was noted) or PeerLost.
  void check() const;
  bool done(const Ticket& ticket) const;
  /// Returns the times so far; finished is set after done() returns true.
  OperationTimes times(const Ticket& ticket) const;
  /// Cancels the operation's started receives, or drops it if it has not started, and waits a
  /// moment for that. Does not throw.
  void cancel(const Ticket& ticket) noexcept;

  /// Waits until all operations except passive ones are done. Throws as wait() does.
  void drain();

  /// Calls drain(), then keeps the progress thread out of MPI until the lock goes out of scope.
  /// Collective over world(). Meanwhile the compute thread may use blocking collectives: no send
  /// still waits for this rank to post receives of further pieces.
  [[nodiscard]] std::unique_lock<std::mutex> pause();
  /// Keeps the progress thread out of MPI without draining, for short local calls that do not
  /// block.
  [[nodiscard]] std::unique_lock<std::mutex> lock_mpi() { return std::unique_lock(mpi_mutex_); }

  /// Tells all other ranks to stop: waits there and here throw StopRequested. `signal` is the
  /// signal that interrupted this rank. Does not throw.
  void stop_others(int signal = 0) noexcept;

  /// Ends all ranks' processes at once, as the last resort.
  void abort(int status);

  /// Completes a started collective even after an error or a stop, for the agreement on how to end.
  /// There is a time limit after an error or stop; then throws AgreementTimeout.
  void wait_regardless(const Ticket& ticket);

  /// Returns the account of the compute thread, which waits for submitted operations. Only that
  /// thread may use it.
  TimeAccount& account() { return account_; }
  /// Returns the watch that the compute thread informs.
  StepWatch& step_watch() { return step_watch_; }
  bool watches_steps() const { return watch_.step_timeout_seconds > 0; }
  /// Sets the wire for the receives of channels that are built from now on, and for sums. Only the
  /// thread that uses these may call it.
  void set_wire(RankWire wire) { wire_ = std::move(wire); }
  const RankWire& wire() const { return wire_; }

  /// True: nothing is lost when the process ends, so a signal ends it within a second, whatever the
  /// compute thread is doing. Must be the same on all ranks.
  void set_ends_at_once(bool ends);

  /// Counts bytes that collectives sent, for all of their ranks together. One rank of each
  /// collective calls it, on the thread that uses collectives.
  void count_collective_bytes(std::uint64_t bytes) { collective_bytes_ += bytes; }
  std::uint64_t take_collective_bytes() { return std::exchange(collective_bytes_, 0); }

  /// Returns, on rank 0, the ranks whose progress threads do not answer within `limit`; works also
  /// after errors and stops. The list is empty on other ranks.
  std::vector<int> silent_ranks(std::chrono::nanoseconds limit);
  /// Returns a name such as "rank 3 (stage 1, replica 1)".
  std::string name_of(int rank) const;

  MPI_Comm world() const { return world_; }      ///< the constructor's argument
  MPI_Comm control() const { return control_; }  ///< its duplicate
  int rank() const { return rank_; }             ///< in world()
  int size() const { return size_; }
  /// Returns the offset to add to this rank's Clock to get rank 0's; measured at construction and
  /// every two seconds.
  std::chrono::nanoseconds clock_offset() const { return clock_.offset(); }
  const ClockEstimate& clock() const { return clock_; }

 private:
  friend class RunWatch;
  struct Later {
    bool operator()(const Ticket& a, const Ticket& b) const;
  };

  void run();
  void serve();
  bool step();
  struct Awaited {
    std::string name;  ///< operation for which wait() waits; empty: none
    TimePoint since;
    bool failed = false;  ///< waits throw
  };
  Awaited awaited() const;
  Ticket send_empty(const std::string& name, int destination, int tag);
  void tell_others_to_stop(int signal) noexcept;
  void await_roll_call();
  void sleep();
  void shut_down();
  void drop_delayed_passive();
  void start_due(TimePoint now);
  void start(const Ticket& operation);
  bool test_requests();
  void complete(const Ticket& operation, const MPI_Status& status, int code);
  void finish(const Ticket& operation, std::exception_ptr error);
  void fail(std::exception_ptr error);
  void set_failure(std::exception_ptr error);  ///< requires the lock
  void leave();
  void do_cancels(const std::vector<Ticket>& cancels);
  void post_stop_receive();
  template <class Done>
  void wait_until(std::unique_lock<std::mutex>& lock, const Done& done);

  MPI_Comm world_;
  MPI_Comm control_ = MPI_COMM_NULL;
  /// Communicator for barriers before pauses. A rank that is stopped in such a barrier continues
  /// with agreements on control_.
  MPI_Comm pauses_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  ClockEstimate clock_;
  WatchSettings watch_;
  std::unique_ptr<RunWatch> run_watch_;  ///< used by the progress thread only, except for its flags
  int exceptions_ = std::uncaught_exceptions();
  TimeAccount account_;
  StepWatch step_watch_;
  RankWire wire_;
  std::uint64_t collective_bytes_ = 0;

  std::mutex mpi_mutex_;  ///< held around every MPI call

  mutable std::mutex mutex_;  ///< guards the following members
  std::condition_variable work_;
  std::condition_variable finished_;
  std::deque<Ticket> queue_;
  std::vector<Ticket> cancels_;
  std::size_t unfinished_ = 0;  ///< operations that are not passive, submitted and not finished
  std::uint64_t submitted_ = 0;
  int waiters_ = 0;
  std::string awaited_;  ///< operation for which wait() waits
  TimePoint awaited_since_{};
  bool started_ = false;
  bool stopping_ = false;
  bool unwinding_ = false;  ///< destroyed by an exception
  std::exception_ptr failure_;
  TimePoint give_up_{};  ///< time at which unfinished agreements end; set with failure_

  // Used by the progress thread only.
  std::priority_queue<Ticket, std::vector<Ticket>, Later> delayed_;
  std::unique_ptr<RequestSet> requests_;
  TimePoint last_event_{};
  struct StopMessage {
    int rank = 0;
    int signal = 0;
  };
  StopMessage stop_sent_;
  std::atomic<bool> told_others_{false};
  std::atomic<std::size_t> standing_requests_{0};  ///< receives that are always posted

  std::thread thread_;  ///< last member: starts when all others are ready
};

}  // namespace deltapipe
