// SPDX-License-Identifier: BSD-3-Clause
// One thread owns MPI while a step runs (design section 6): large messages move only inside MPI
// calls, so it keeps calling MPI while the compute thread runs kernels.
//
// Contract: from construction on, other threads reach MPI only through submit() and its shorthands,
// or while they hold pause() or lock_mpi(). MPI_THREAD_SERIALIZED is enough for that.
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

/// Thrown out of waits when another rank asked all to stop; that rank knows why.
class StopRequested : public std::exception {
 public:
  explicit StopRequested(int rank, int signal = 0)
      : rank_(rank), signal_(signal), text_("rank " + std::to_string(rank) + " stopped the run") {}
  int rank() const { return rank_; }
  int signal() const { return signal_; }  ///< that interrupted that rank; 0: it failed
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int rank_;
  int signal_;
  std::string text_;
};

/// Thrown out of waits when another rank has given no sign of life for too long.
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

/// How long a rank may be silent. Each rank's progress thread tells the next rank that it lives,
/// also while the rank computes.
struct WatchSettings {
  double timeout_seconds = 0;  ///< 0: nobody watches; the same on all ranks
  /// How long a step may last. A rank whose thread that computes is in one for longer, and waits
  /// for nobody, ends the run; so does one that waits, a moment later. 0: no limit.
  double step_timeout_seconds = 0;
  /// A step that waits for another rank for longer than this, and for many times as long as any
  /// step before it lasted, is a line on stderr: its link may lose what is sent.
  double stall_seconds = 20;
  /// For messages: "rank 3 (stage 1, replica 1)". Empty: "rank 3".
  std::function<std::string(int rank)> name_of_rank;
};

using RequestList = std::vector<MPI_Request>;

/// Work of the progress thread. The closures run on the progress thread and own (by copies of
/// Views or shared pointers) every buffer that MPI touches.
struct OperationPlan {
  std::string name;                         ///< for error messages: what it is, between whom
  std::function<void(RequestList&)> start;  ///< starts requests and appends them
  /// Called for every finished request; may append further requests. May be empty.
  std::function<void(const MPI_Status&, RequestList&)> completed;
  TimePoint not_before{};  ///< earliest start, for emulated links
  bool passive =
      false;  ///< waits for others (a receive posted ahead): drain() does not wait for it
};

/// Handle of a submitted operation.
class Operation;
using Ticket = std::shared_ptr<Operation>;

struct OperationTimes {
  TimePoint queued;
  TimePoint started;
  TimePoint finished;
};

class ProgressThread {
 public:
  /// Collective over `world`, whose duplicate carries stop messages and agreements. `world` must
  /// return errors (MpiSession, ProcessGrid).
  /// When a rank cannot start its thread, all ranks throw (as agree() does).
  explicit ProgressThread(MPI_Comm world, WatchSettings watch = {});
  /// Collective in the sense of MPI_Comm_free. Gives started sends a moment to leave, cancels
  /// receives, drops what is queued; never blocks for long, also while an exception unwinds.
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  /// Queues an operation; operations without not_before start in the order of submission.
  /// Throws what went wrong earlier on the progress thread, see check().
  Ticket submit(OperationPlan plan);

  /// Shorthands; `bytes` shares ownership of the memory, which MPI may use until the ticket is
  /// done, also when the wait for it was given up.
  Ticket isend(std::shared_ptr<const void> bytes, int count, int peer, int tag, MPI_Comm comm);
  Ticket irecv(std::shared_ptr<void> bytes, int count, int peer, int tag, MPI_Comm comm);
  /// In place; the memory must stay valid until the ticket is done.
  Ticket iallreduce(void* values, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm);

  /// Sleeps until the operation is done. Throws its error, or as check() does.
  void wait(const Ticket& ticket);
  /// Throws when the run is to end: an earlier error of the progress thread, StopRequested,
  /// Interrupted (a signal was noted), PeerLost.
  void check() const;
  bool done(const Ticket& ticket) const;
  /// Times so far; finished is set once done().
  OperationTimes times(const Ticket& ticket) const;
  /// Cancels started receives of the operation, drops it if it did not start, and waits a moment
  /// for that. Does not throw.
  void cancel(const Ticket& ticket) noexcept;

  /// Waits until all operations but passive ones are done. Throws as wait() does.
  void drain();

  /// Collective over world(): drain(), then keeps the progress thread out of MPI until the lock
  /// goes out of scope. Blocking collectives on the compute thread are allowed meanwhile: nobody's
  /// send waits any more for this rank to post the receives of its further pieces.
  [[nodiscard]] std::unique_lock<std::mutex> pause();
  /// Only keeps the progress thread out of MPI: for short local calls, nothing that blocks.
  [[nodiscard]] std::unique_lock<std::mutex> lock_mpi() { return std::unique_lock(mpi_mutex_); }

  /// Tells all other ranks to stop: waits there and here throw StopRequested. `signal`: what
  /// interrupted this rank. Does not throw.
  void stop_others(int signal = 0) noexcept;

  /// Ends all ranks' processes at once, where nothing else can.
  void abort(int status);

  /// Runs a started collective to its end even after an error or a stop, for agreeing how to end.
  /// From an error or stop on there is a time limit; throws AgreementTimeout after it.
  void wait_regardless(const Ticket& ticket);
  Ticket submit_regardless(OperationPlan plan);

  /// Account of the thread that computes and waits for work submitted here; only that thread uses
  /// it.
  TimeAccount& account() { return account_; }
  /// Told of by the same thread.
  StepWatch& step_watch() { return step_watch_; }
  bool watches_steps() const { return watch_.step_timeout_seconds > 0; }
  /// Link that channels built from now on receive over, and that sums pass; set by the thread
  /// that uses them.
  void set_wire(RankWire wire) { wire_ = std::move(wire); }
  const RankWire& wire() const { return wire_; }

  /// A receive that is submitted now stays posted: nobody hurries for it.
  void add_standing_request() { ++standing_requests_; }
  /// True: nothing is lost when the process ends, so a signal ends it within a second, whatever the
  /// thread that computes is doing. The same on all ranks.
  void set_ends_at_once(bool ends) { ends_at_once_.store(ends); }

  /// Bytes that collectives sent, all of their ranks together; told to one rank of each. For the
  /// thread that uses them.
  void count_collective_bytes(std::uint64_t bytes) { collective_bytes_ += bytes; }
  std::uint64_t take_collective_bytes() { return std::exchange(collective_bytes_, 0); }

  /// On rank 0, also after errors and stops: the ranks whose progress threads do not answer within
  /// `limit`, though they compute. Elsewhere none.
  std::vector<int> silent_ranks(std::chrono::nanoseconds limit);
  /// "rank 3 (stage 1, replica 1)".
  std::string name_of(int rank) const;

  MPI_Comm world() const { return world_; }      ///< as given
  MPI_Comm control() const { return control_; }  ///< the duplicate
  int rank() const { return rank_; }             ///< in world()
  int size() const { return size_; }
  /// Add to this rank's Clock to get rank 0's; measured at construction and every two seconds.
  std::chrono::nanoseconds clock_offset() const { return clock_.offset(); }
  const ClockEstimate& clock() const { return clock_; }

 private:
  struct Later {
    bool operator()(const Ticket& a, const Ticket& b) const;
  };

  void run();
  void serve();
  bool step();
  void watch(TimePoint now);
  void watch_stall(TimePoint now);
  void watch_step(TimePoint now);
  void watch_interruption(TimePoint now);
  void end_at_once(int signal);
  std::string awaited() const;
  /// Empty messages from `source`, for as long as the thread runs.
  void receive_always(const std::string& name, int source, int tag, std::function<void()> arrived);
  Ticket send_empty(const std::string& name, int destination, int tag);
  void tell_others_to_stop(int signal) noexcept;
  void await_signs();
  void await_roll_call();
  void send_sign();
  void sleep();
  void shut_down();
  void drop_delayed_passive();
  void start_due(TimePoint now);
  void start(const Ticket& operation);
  bool test_requests();
  void complete(const Ticket& operation, const MPI_Status& status, int code);
  void adopt(const Ticket& operation, RequestList& requests);
  void finish(const Ticket& operation, std::exception_ptr error);
  void fail(std::exception_ptr error);
  void set_failure(std::exception_ptr error);  ///< with the lock
  void leave();
  void do_cancels(const std::vector<Ticket>& cancels);
  void abandon() noexcept;
  Ticket enqueue(OperationPlan plan, bool regardless);
  void post_stop_receive();
  template <class Done>
  void wait_until(std::unique_lock<std::mutex>& lock, const Done& done);

  MPI_Comm world_;
  MPI_Comm control_ = MPI_COMM_NULL;
  /// For barriers before pauses: a rank that is stopped in one goes on to agreements on control_.
  MPI_Comm pauses_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  ClockEstimate clock_;
  WatchSettings watch_;
  int exceptions_ = std::uncaught_exceptions();
  TimeAccount account_;
  StepWatch step_watch_;
  RankWire wire_;
  std::uint64_t collective_bytes_ = 0;

  std::mutex mpi_mutex_;  ///< held around every MPI call

  mutable std::mutex mutex_;  ///< guards what follows
  std::condition_variable work_;
  std::condition_variable finished_;
  std::deque<Ticket> queue_;
  std::vector<Ticket> cancels_;
  std::size_t unfinished_ = 0;  ///< not passive, submitted and not finished
  std::uint64_t submitted_ = 0;
  int waiters_ = 0;
  std::string awaited_;  ///< what wait() waits for
  TimePoint awaited_since_{};
  bool started_ = false;
  bool stopping_ = false;
  bool unwinding_ = false;  ///< destroyed by an exception
  std::exception_ptr failure_;
  TimePoint give_up_{};  ///< when agreements end that did not come about; set with failure_

  // Touched by the progress thread only.
  std::priority_queue<Ticket, std::vector<Ticket>, Later> delayed_;
  std::vector<MPI_Request> requests_;
  std::vector<Ticket> owners_;  ///< of requests_
  std::vector<int> tested_indices_;
  std::vector<MPI_Status> tested_statuses_;
  TimePoint last_event_{};
  Ticket stop_receive_;
  struct StopMessage {
    int rank = 0;
    int signal = 0;
  };
  StopMessage stop_received_, stop_sent_;
  std::atomic<bool> told_others_{false};
  std::atomic<std::size_t> standing_requests_{1};  ///< receives that are always posted
  Ticket sign_sent_;
  std::chrono::nanoseconds sign_interval_{0};
  TimePoint next_sign_{}, last_sign_{}, last_watch_{};
  TimePoint interrupted_at_;
  std::atomic<bool> agrees_{false};  ///< the thread that computes has come to the end of its work
  std::atomic<bool> ends_at_once_{false};
  bool interrupted_ = false;
  /// The step took too long, and whether that was told.
  struct Overdue {
    std::uint64_t step = 0;
    TimePoint since;
    std::string message;
    bool told = false;
  };
  std::optional<Overdue> overdue_;
  /// The step that the user was told of.
  struct Stall {
    std::uint64_t step = 0;
    TimePoint since;
  };
  std::optional<Stall> stall_;
  TimePoint next_tcp_bound_{};
  std::chrono::seconds tcp_wait_{};  ///< bound of the waits of TCP; 0: not looked at yet

  std::thread thread_;  ///< last: starts when all else is ready
};

}  // namespace deltapipe
