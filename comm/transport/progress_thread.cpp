// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/progress_thread.hpp"

#include <unistd.h>

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <utility>

#include "comm/transport/agree.hpp"
#include "comm/transport/mpi_check.hpp"
#include "comm/transport/tcp_waits.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/base/parallel/device_memory.hpp"
#include "core/base/parallel/helper_thread.hpp"

namespace deltapipe {

class Operation {
 public:
  explicit Operation(OperationPlan its_plan) : plan(std::move(its_plan)) {}

  OperationPlan plan;
  std::uint64_t number = 0;
  OperationTimes times;         // guarded by ProgressThread::mutex_
  std::exception_ptr error;     // guarded by ProgressThread::mutex_
  bool done = false;            // guarded by ProgressThread::mutex_
  bool cancelled = false;       // progress thread only
  std::size_t outstanding = 0;  // progress thread only
  Ticket self;                  // progress thread only; keeps an operation alive forever
};

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int kStopTag = 1;
constexpr int kSignTag = 3;
constexpr int kRollCallTag = 4;
constexpr int kPresentTag = 5;
constexpr int kSignsPerTimeout = 8;
constexpr std::chrono::seconds kLongestSignInterval{30};
// Naps between polls grow with the time since the last event. A poll is thus late by at most a
// fraction of the time already waited. Naps stay within limits. A poll over TCP uses a core for
// some microseconds, so polls are rare while no thread waits.
struct NapLimits {
  nanoseconds shortest;
  nanoseconds longest;
  int share;
};
constexpr NapLimits kAwaited{microseconds(20), microseconds(300), 4};
constexpr NapLimits kUnawaited{microseconds(250), milliseconds(2), 2};
constexpr nanoseconds kIdleNap = milliseconds(20);
constexpr nanoseconds kGrace = milliseconds(1000);
/// Grace of a step that takes too long: until its thread is given up, then the process.
constexpr nanoseconds kLateThread = std::chrono::seconds(2);
constexpr nanoseconds kLostThread = std::chrono::seconds(10);
/// A step is stalled if it lasts longer than this multiple of the longest earlier step.
constexpr double kStallFactor = 10;
constexpr nanoseconds kTcpBoundInterval = std::chrono::seconds(5);
/// Time that the compute thread has after a signal if nothing is lost without it. Later ranks wait
/// longer, so that the first rank reports, and its end terminates them before they report.
constexpr nanoseconds kPromptEnd = milliseconds(700);
constexpr nanoseconds kPromptTurn = milliseconds(200);
constexpr int kLatestRank = 10;
/// A rank that waits gives the awaited rank this much time to report first.
constexpr double kWaitingGraceSeconds = 5;
// Times for which a rank that ends tries to agree with the others. The first is for a rank that
// fails by itself. A rank that was told to stop tries longer, so that the rank that knows the
// reason reports first. A rank that lost its peer tries for a short time. A signal may come while
// ranks are in long passes; batch systems kill 30 s after it.
constexpr nanoseconds kAgreementLimit = std::chrono::seconds(10);
constexpr nanoseconds kToldAgreementLimit = std::chrono::seconds(15);
constexpr nanoseconds kInterruptedAgreementLimit = std::chrono::seconds(25);
constexpr nanoseconds kLostAgreementLimit = std::chrono::seconds(3);

void ask_for_precise_naps() {
#ifdef __linux__
  // Timers of ordinary threads may be 50 us late. A refusal only costs precision.
  (void)prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
#endif
}

}  // namespace

bool ProgressThread::Later::operator()(const Ticket& a, const Ticket& b) const {
  return std::pair(a->plan.not_before, a->number) > std::pair(b->plan.not_before, b->number);
}

ProgressThread::ProgressThread(MPI_Comm world, WatchSettings watch)
    : world_(world), watch_(std::move(watch)) {
  int provided = MPI_THREAD_SINGLE;
  DELTAPIPE_MPI(MPI_Query_thread(&provided));
  DELTAPIPE_ASSERT(provided >= MPI_THREAD_SERIALIZED, "MPI was started without threads");
  DELTAPIPE_MPI(MPI_Comm_rank(world, &rank_));
  DELTAPIPE_MPI(MPI_Comm_size(world, &size_));
  // Starts the thread first: a rank that cannot start it reports this while no rank waits for it.
  try {
    // MPI may receive addresses in the memory of the device of the constructing thread.
    const auto run_with_device = [this, device = device_of_thread()] {
      set_device_of_thread(device);
      run();
    };
    agree(world, [&] { thread_ = start_helper_thread("communication", run_with_device); });
    DELTAPIPE_MPI(MPI_Comm_dup(world, &control_));
    DELTAPIPE_MPI(MPI_Comm_dup(world, &pauses_));
    ClockSync::align(control_, clock_);
  } catch (...) {
    leave();
    throw;
  }
  ask_for_precise_naps();  // this thread waits for messages of emulated links
  post_stop_receive();
  if (watch_.timeout_seconds > 0 && size_ > 1) {
    sign_interval_ = std::min<nanoseconds>(
        kLongestSignInterval, std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(
                                  watch_.timeout_seconds / kSignsPerTimeout)));
    await_signs();
  }
  ClockSync::start(*this, control_, clock_);
  if (rank_ == 0 && size_ > 1) ++standing_requests_;
  if (rank_ > 0) await_roll_call();
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
  }
  work_.notify_all();
}

/// Ends a thread that has not been started.
void ProgressThread::leave() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_.notify_all();
  thread_.join();
}

ProgressThread::~ProgressThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    unwinding_ = std::uncaught_exceptions() > exceptions_;
  }
  work_.notify_all();
  thread_.join();
  // After a failure peers may be anywhere; MPI_Finalize frees the communicators.
  if (failure_ || unwinding_) return;
  MPI_Comm_free(&control_);
  MPI_Comm_free(&pauses_);
}

void ProgressThread::post_stop_receive() {
  OperationPlan plan;
  plan.name = "stop message to rank " + std::to_string(rank_);
  plan.passive = true;
  plan.start = [this](RequestList& requests) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Irecv(&stop_received_, 2, MPI_INT, MPI_ANY_SOURCE, kStopTag, control_,
                            &requests.back()));
  };
  plan.completed = [this](const MPI_Status&, RequestList&) {
    fail(std::make_exception_ptr(StopRequested(stop_received_.rank, stop_received_.signal)));
  };
  stop_receive_ = enqueue(std::move(plan), true);
}

void ProgressThread::receive_always(const std::string& name, int source, int tag,
                                    std::function<void()> arrived) {
  ++standing_requests_;
  OperationPlan plan;
  plan.name = name;
  plan.passive = true;
  const auto post = [this, source, tag](RequestList& requests) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Irecv(nullptr, 0, MPI_INT, source, tag, control_, &requests.back()));
  };
  plan.start = post;
  plan.completed = [post, arrived = std::move(arrived)](const MPI_Status&, RequestList& requests) {
    arrived();
    post(requests);
  };
  enqueue(std::move(plan), true);
}

Ticket ProgressThread::send_empty(const std::string& name, int destination, int tag) {
  OperationPlan plan;
  plan.name = name;
  plan.passive = true;
  plan.start = [this, destination, tag](RequestList& requests) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Isend(nullptr, 0, MPI_INT, destination, tag, control_, &requests.back()));
  };
  return enqueue(std::move(plan), true);
}

void ProgressThread::await_signs() {
  receive_always("sign of life to rank " + std::to_string(rank_), (rank_ + size_ - 1) % size_,
                 kSignTag, [this] { last_sign_ = Clock::now(); });
}

void ProgressThread::send_sign() {
  sign_sent_ =
      send_empty("sign of life from rank " + std::to_string(rank_), (rank_ + 1) % size_, kSignTag);
}

void ProgressThread::await_roll_call() {
  receive_always("roll call to rank " + std::to_string(rank_), 0, kRollCallTag,
                 [this] { send_empty("answer of rank " + std::to_string(rank_), 0, kPresentTag); });
}

std::vector<int> ProgressThread::silent_ranks(nanoseconds limit) {
  std::vector<int> silent;
  if (rank_ > 0) return silent;
  std::vector<Ticket> answers;
  for (int peer = 1; peer < size_; ++peer) {
    OperationPlan plan;
    plan.name = "roll call of rank " + std::to_string(peer);
    plan.passive = true;
    plan.start = [this, peer](RequestList& requests) {
      requests.push_back(MPI_REQUEST_NULL);
      DELTAPIPE_MPI(MPI_Irecv(nullptr, 0, MPI_INT, peer, kPresentTag, control_, &requests.back()));
      requests.push_back(MPI_REQUEST_NULL);
      DELTAPIPE_MPI(MPI_Isend(nullptr, 0, MPI_INT, peer, kRollCallTag, control_, &requests.back()));
    };
    answers.push_back(enqueue(std::move(plan), true));
  }
  std::unique_lock lock(mutex_);
  ++waiters_;
  work_.notify_one();
  finished_.wait_until(lock, Clock::now() + limit, [&] {
    return std::all_of(answers.begin(), answers.end(),
                       [](const Ticket& answer) { return answer->done; });
  });
  --waiters_;
  for (std::size_t i = 0; i < answers.size(); ++i)
    if (!answers[i]->done || answers[i]->error) silent.push_back(static_cast<int>(i) + 1);
  return silent;
}

std::string ProgressThread::name_of(int rank) const {
  return watch_.name_of_rank ? watch_.name_of_rank(rank) : "rank " + std::to_string(rank);
}

/// Sends and awaits signs of life, and checks for signals.
void ProgressThread::watch(TimePoint now) {
  if (const int signal = noted_signal(); signal != 0 && !interrupted_) {
    interrupted_ = true;
    interrupted_at_ = now;
    fail(std::make_exception_ptr(Interrupted(signal)));
  }
  watch_interruption(now);
  watch_step(now);
  watch_stall(now);
  if (sign_interval_ == nanoseconds(0)) return;
  // A rank that was itself stopped or delayed cannot tell how long others were silent.
  if (now - last_watch_ > sign_interval_) last_sign_ = now;
  last_watch_ = now;
  if (now >= next_sign_ && (!sign_sent_ || done(sign_sent_))) {
    send_sign();
    next_sign_ = now + sign_interval_;
  }
  const double silent = seconds_between(last_sign_, now);
  if (silent < watch_.timeout_seconds) return;
  const int peer = (rank_ + size_ - 1) % size_;
  const std::string awaited = this->awaited();
  fail(std::make_exception_ptr(PeerLost(
      "no sign of life from " + name_of(peer) + " for " + std::to_string(std::lround(silent)) +
      " s" +
      (awaited.empty() ? "" : ", while rank " + std::to_string(rank_) + " waited for " + awaited) +
      "; its process was stopped, or its machine or network is gone (pipeline.timeout says how "
      "long to wait)")));
  last_sign_ = now;
}

std::string ProgressThread::awaited() const {
  const std::lock_guard lock(mutex_);
  return awaited_;
}

/// Ends this process; the launcher then ends the other ranks.
void ProgressThread::end_at_once(int signal) {
  std::fprintf(stderr, "\ndeltapipe: error: %s\n", Interrupted(signal).what());
  ::_exit(kSignalStatus + signal);
}

/// Ends the process if the compute thread does not react to a signal. While it waits for a disk
/// that hangs, it checks for no signals or cannot close its files.
void ProgressThread::watch_interruption(TimePoint now) {
  if (!interrupted_ || agrees_.load()) return;
  const int signal = noted_signal();
  const nanoseconds waited = now - interrupted_at_;
  if (ends_at_once_.load() && waited > kPromptEnd + std::min(rank_, kLatestRank) * kPromptTurn)
    end_at_once(signal);
  if (waited < kInterruptedAgreementLimit) return;
  std::fprintf(stderr,
               "\ndeltapipe: error: interrupted by %s, and %s does not come to an end: its disk or "
               "device hangs\n",
               name_of_signal(signal).c_str(), name_of(rank_).c_str());
  MPI_Abort(control_, kSignalStatus + signal);
}

/// Reports a stall. A link that lost messages for seconds delays a run for longer, although all
/// ranks are alive and nothing is wrong.
void ProgressThread::watch_stall(TimePoint now) {
  // Repeated, since MPI opens connections when it first sends.
  if (now >= next_tcp_bound_ && size_ > 1) {
    tcp_wait_ = bound_tcp_waits();
    next_tcp_bound_ = now + kTcpBoundInterval;
  }
  if (interrupted_) return;
  if (stall_) {
    const std::optional<StepWatch::State> state = step_watch_.state();
    if (state && state->step == stall_->step) return;
    if (step_watch_.completed() >= stall_->step)
      std::fprintf(stderr,
                   "\ndeltapipe: %s: step %llu is complete, %.0f s after that wait began; the run "
                   "continues\n",
                   name_of(rank_).c_str(), static_cast<unsigned long long>(stall_->step),
                   seconds_between(stall_->since, now));
    stall_.reset();
    return;
  }
  std::string awaited;
  double seconds = 0;
  {
    const std::lock_guard lock(mutex_);
    seconds = seconds_between(awaited_since_, now);
    if (failure_ || awaited_.empty() || seconds < watch_.stall_seconds) return;
    awaited = awaited_;
  }
  const std::optional<StepWatch::State> state = step_watch_.state();
  if (!state || state->longest_seconds == 0 || seconds < kStallFactor * state->longest_seconds)
    return;
  stall_ = Stall{state->step, now - std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(seconds))};
  step_watch_.stalls();
  std::fprintf(
      stderr,
      "\ndeltapipe: warning: %s has been waiting for %.0f s in step %llu (%s); the longest step so "
      "far took %.2g s. Another rank is slow or was stopped, or a link has lost messages, which "
      "TCP sends again after waits of up to %lld s: the run continues when they work again\n",
      name_of(rank_).c_str(), seconds, static_cast<unsigned long long>(state->step),
      awaited.c_str(), state->longest_seconds, static_cast<long long>(tcp_wait_.count()));
}

/// Watches a step that takes too long. A thread that does not return from a kernel cannot be
/// stopped. After a grace period this thread reports why the run ends, and ends the process after
/// the other ranks have ended in order.
void ProgressThread::watch_step(TimePoint now) {
  if (watch_.step_timeout_seconds <= 0) return;
  const std::optional<StepWatch::State> state = step_watch_.state();
  if (overdue_) {
    if (!state || state->step != overdue_->step) return;  // it came
    if (!overdue_->told && now - overdue_->since > kLateThread) {
      std::fprintf(stderr, "\ndeltapipe: error: %s\n", overdue_->message.c_str());
      overdue_->told = true;
    }
    if (now - overdue_->since > kLostThread) MPI_Abort(control_, EXIT_FAILURE);
    return;
  }
  if (!state) return;
  const double seconds = seconds_between(state->since, now);
  const std::string awaited = this->awaited();
  const double grace = awaited.empty() ? 0 : kWaitingGraceSeconds;
  if (seconds < watch_.step_timeout_seconds + grace) return;
  const UserError error(
      {.what = name_of(rank_) + " is in step " + std::to_string(state->step) + " for " +
               std::to_string(std::lround(seconds)) + " s" +
               (state->doing.empty() ? "" : ", at '" + state->doing + "'") +
               (awaited.empty() ? ", and waits for nobody" : ", and waits for " + awaited),
       .remedy = "look for what stops it (its machine, its device, its disk) and start the run "
                 "again; pipeline.step_timeout says how long a step may last"});
  overdue_ = Overdue{state->step, now, error.what(), !awaited.empty()};
  fail(std::make_exception_ptr(error));
  if (awaited.empty()) tell_others_to_stop(0);
}

void ProgressThread::stop_others(int signal) noexcept {
  try {
    fail(std::make_exception_ptr(StopRequested(rank_, signal)));
    tell_others_to_stop(signal);
  } catch (...) {
    // No memory for a message: the others notice at the next agreement or when it times out.
  }
}

void ProgressThread::tell_others_to_stop(int signal) noexcept {
  try {
    if (told_others_.exchange(true)) return;
    stop_sent_ = {rank_, signal};
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      OperationPlan plan;
      plan.name = "stop message from rank " + std::to_string(rank_);
      plan.start = [this, peer](RequestList& requests) {
        requests.push_back(MPI_REQUEST_NULL);
        DELTAPIPE_MPI(
            MPI_Isend(&stop_sent_, 2, MPI_INT, peer, kStopTag, control_, &requests.back()));
      };
      enqueue(std::move(plan), true);
    }
  } catch (...) {
    // No memory for a message: the others notice at the next agreement or when it times out.
  }
}

Ticket ProgressThread::enqueue(OperationPlan plan, bool regardless) {
  auto operation = std::make_shared<Operation>(std::move(plan));
  {
    const std::lock_guard lock(mutex_);
    if (failure_ && !regardless) std::rethrow_exception(failure_);
    operation->times.queued = Clock::now();
    operation->number = submitted_++;
    if (!operation->plan.passive) ++unfinished_;
    queue_.push_back(operation);
  }
  work_.notify_one();
  return operation;
}

Ticket ProgressThread::submit(OperationPlan plan) {
  return enqueue(std::move(plan), false);
}
Ticket ProgressThread::submit_regardless(OperationPlan plan) {
  return enqueue(std::move(plan), true);
}

Ticket ProgressThread::isend(std::shared_ptr<const void> bytes, int count, int peer, int tag,
                             MPI_Comm comm) {
  OperationPlan plan;
  plan.name = "send to rank " + std::to_string(peer);
  plan.start = [=](RequestList& requests) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Isend(bytes.get(), count, MPI_BYTE, peer, tag, comm, &requests.back()));
  };
  return submit(std::move(plan));
}

Ticket ProgressThread::irecv(std::shared_ptr<void> bytes, int count, int peer, int tag,
                             MPI_Comm comm) {
  OperationPlan plan;
  plan.name = "receive from rank " + std::to_string(peer);
  plan.start = [=](RequestList& requests) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Irecv(bytes.get(), count, MPI_BYTE, peer, tag, comm, &requests.back()));
  };
  return submit(std::move(plan));
}

Ticket ProgressThread::iallreduce(void* values, int count, MPI_Datatype type, MPI_Op op,
                                  MPI_Comm comm) {
  OperationPlan plan;
  plan.name = "all-reduce";
  plan.start = [=](RequestList& requests) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Iallreduce(MPI_IN_PLACE, values, count, type, op, comm, &requests.back()));
  };
  return submit(std::move(plan));
}

/// Waits and counts itself as a waiter, for which the progress thread polls more often.
template <class Done>
void ProgressThread::wait_until(std::unique_lock<std::mutex>& lock, const Done& done) {
  if (done()) return;
  ++waiters_;
  work_.notify_one();
  finished_.wait(lock, done);
  --waiters_;
}

void ProgressThread::wait(const Ticket& ticket) {
  std::unique_lock lock(mutex_);
  awaited_ = ticket->plan.name;
  awaited_since_ = Clock::now();
  wait_until(lock, [&] { return ticket->done || failure_; });
  awaited_.clear();
  if (failure_) std::rethrow_exception(failure_);
  if (ticket->error) std::rethrow_exception(ticket->error);
}

void ProgressThread::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void ProgressThread::abort(int status) {
  const auto lock = lock_mpi();
  MPI_Abort(control_, status);
}

void ProgressThread::wait_regardless(const Ticket& ticket) {
  agrees_.store(true);
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return ticket->done || failure_; });
  if (!ticket->done) {
    ++waiters_;
    // After a long pass this rank finds the others waiting, and they answer at once.
    const TimePoint limit = std::max(give_up_, Clock::now() + kGrace);
    finished_.wait_until(lock, limit, [&] { return ticket->done; });
    --waiters_;
  }
  if (!ticket->done) throw AgreementTimeout(ticket->plan.name);
  if (ticket->error) std::rethrow_exception(ticket->error);
}

bool ProgressThread::done(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  return ticket->done;
}

OperationTimes ProgressThread::times(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  return ticket->times;
}

void ProgressThread::cancel(const Ticket& ticket) noexcept {
  try {
    std::unique_lock lock(mutex_);
    if (ticket->done) return;
    cancels_.push_back(ticket);
    work_.notify_one();
    finished_.wait_for(lock, kGrace, [&] { return ticket->done; });
  } catch (...) {
    // Without memory for the request the receive stays posted; its closure keeps the buffer alive.
  }
}

void ProgressThread::drain() {
  std::unique_lock lock(mutex_);
  wait_until(lock, [&] { return unfinished_ == 0 || failure_; });
  if (failure_) std::rethrow_exception(failure_);
}

std::unique_lock<std::mutex> ProgressThread::pause() {
  drain();
  if (size_ == 1) return lock_mpi();
  OperationPlan plan;
  plan.name = "barrier before a pause";
  plan.start = [this](RequestList& requests) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Ibarrier(pauses_, &requests.back()));
  };
  wait(submit(std::move(plan)));
  return lock_mpi();
}

void ProgressThread::fail(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    set_failure(std::move(error));
  }
  finished_.notify_all();
}

void ProgressThread::set_failure(std::exception_ptr error) {
  if (failure_) return;
  failure_ = std::move(error);
  nanoseconds limit = kAgreementLimit;
  try {
    std::rethrow_exception(failure_);
  } catch (const StopRequested& stop) {
    if (stop.signal() != 0)
      limit = kInterruptedAgreementLimit;
    else if (stop.rank() != rank_)
      limit = kToldAgreementLimit;
  } catch (const Interrupted&) {
    limit = kInterruptedAgreementLimit;
  } catch (const PeerLost&) {
    limit = kLostAgreementLimit;
  } catch (...) {
  }
  give_up_ = Clock::now() + limit;
}

void ProgressThread::finish(const Ticket& operation, std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (operation->done) return;
    operation->done = true;
    operation->times.finished = Clock::now();
    operation->error = error;
    if (error) set_failure(error);
    if (!operation->plan.passive) --unfinished_;
  }
  finished_.notify_all();
}

void ProgressThread::adopt(const Ticket& operation, RequestList& requests) {
  try {
    requests_.reserve(requests_.size() + requests.size());
    owners_.reserve(owners_.size() + requests.size());
  } catch (...) {  // MPI has its buffers already
    operation->self = operation;
    throw;
  }
  for (const MPI_Request request : requests) {
    if (request == MPI_REQUEST_NULL) continue;
    requests_.push_back(request);
    owners_.push_back(operation);
    ++operation->outstanding;
  }
  requests.clear();
}

void ProgressThread::start(const Ticket& operation) {
  if (operation->cancelled) return;
  RequestList requests;
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    operation->times.started = Clock::now();
  }
  try {
    operation->plan.start(requests);
  } catch (...) {
    error = std::current_exception();
    // The request whose start failed was appended before the call and is not valid.
    if (!requests.empty()) requests.pop_back();
  }
  adopt(operation, requests);
  if (error || operation->outstanding == 0) finish(operation, error);
}

void ProgressThread::start_due(TimePoint now) {
  while (!delayed_.empty() && delayed_.top()->plan.not_before <= now) {
    const Ticket operation = delayed_.top();
    delayed_.pop();
    start(operation);
  }
}

void ProgressThread::complete(const Ticket& operation, const MPI_Status& status, int code) {
  --operation->outstanding;
  std::exception_ptr error;
  RequestList more;
  int cancelled = 0;
  try {
    if (code != MPI_SUCCESS) {
      throw UserError(Mistake{.what = operation->plan.name + ": " + mpi_error_text(code),
                              .remedy = "check that all ranks are alive and run the same deck"});
    }
    DELTAPIPE_MPI(MPI_Test_cancelled(&status, &cancelled));
    if (cancelled) operation->cancelled = true;
    if (!operation->cancelled && operation->plan.completed) {
      operation->plan.completed(status, more);
    }
  } catch (...) {
    error = std::current_exception();
  }
  adopt(operation, more);
  if (error || operation->outstanding == 0) finish(operation, error);
}

bool ProgressThread::test_requests() {
  if (requests_.empty()) return false;
  const int count = static_cast<int>(requests_.size());
  tested_indices_.resize(requests_.size());
  tested_statuses_.resize(requests_.size());
  int finished = 0;
  const int code = MPI_Testsome(count, requests_.data(), &finished, tested_indices_.data(),
                                tested_statuses_.data());
  int error_class = MPI_SUCCESS;
  if (code != MPI_SUCCESS) MPI_Error_class(code, &error_class);
  if (code != MPI_SUCCESS && error_class != MPI_ERR_IN_STATUS) {
    // MPI itself is broken: operations in flight may never end.
    fail(std::make_exception_ptr(UserError(
        Mistake{.what = "MPI failed while messages were in flight: " + mpi_error_text(code),
                .remedy = "check the network and that all ranks are still alive"})));
    for (const Ticket& owner : owners_) finish(owner, nullptr);
    abandon();
    return false;
  }
  if (finished == MPI_UNDEFINED || finished == 0) return false;
  // complete() may append requests: take the finished ones out first.
  std::vector<std::pair<Ticket, int>> owners;
  owners.reserve(static_cast<std::size_t>(finished));  // nothing may throw half-way
  for (int i = 0; i < finished; ++i) {
    const auto index = static_cast<std::size_t>(tested_indices_[static_cast<std::size_t>(i)]);
    owners.emplace_back(std::move(owners_[index]), i);
    requests_[index] = MPI_REQUEST_NULL;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    if (!owners_[i]) continue;
    requests_[kept] = requests_[i];
    if (kept != i) owners_[kept] = std::move(owners_[i]);
    ++kept;
  }
  requests_.resize(kept);
  owners_.resize(kept);
  for (const auto& [owner, i] : owners) {
    const MPI_Status& status = tested_statuses_[static_cast<std::size_t>(i)];
    complete(owner, status, code == MPI_SUCCESS ? MPI_SUCCESS : status.MPI_ERROR);
  }
  return true;
}

void ProgressThread::do_cancels(const std::vector<Ticket>& cancels) {
  for (const Ticket& operation : cancels) {
    operation->cancelled = true;
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      if (owners_[i] == operation) MPI_Cancel(&requests_[i]);
    }
    if (operation->outstanding == 0) finish(operation, nullptr);
  }
}

void ProgressThread::abandon() noexcept {
  // Buffers of requests that cannot be ended must outlive MPI. There may be no memory left.
  for (const Ticket& owner : owners_)
    if (owner) owner->self = owner;
  owners_.clear();
  requests_.clear();
}

bool ProgressThread::step() {
  std::deque<Ticket> queue;
  std::vector<Ticket> cancels;
  {
    const std::lock_guard lock(mutex_);
    queue.swap(queue_);
    cancels.swap(cancels_);
  }
  const std::lock_guard mpi_lock(mpi_mutex_);
  for (Ticket& operation : queue) {
    if (operation->plan.not_before == TimePoint{}) {
      start(operation);
    } else {
      delayed_.push(std::move(operation));
    }
  }
  start_due(Clock::now());
  do_cancels(cancels);
  watch(Clock::now());
  return test_requests() || !queue.empty();
}

void ProgressThread::sleep() {
  const TimePoint now = Clock::now();
  // Receives that are always posted are not urgent.
  const bool idle = requests_.size() <= standing_requests_;
  std::unique_lock lock(mutex_);
  const bool awaited = waiters_ > 0;
  const NapLimits& limits = awaited ? kAwaited : kUnawaited;
  TimePoint until = now + (idle ? kIdleNap
                                : std::clamp((now - last_event_) / limits.share, limits.shortest,
                                             limits.longest));
  if (!delayed_.empty()) until = std::min(until, delayed_.top()->plan.not_before);
  work_.wait_until(lock, until, [&] {
    return !queue_.empty() || !cancels_.empty() || stopping_ || (!awaited && waiters_ > 0);
  });
}

void ProgressThread::run() {
  {
    std::unique_lock lock(mutex_);
    work_.wait(lock, [&] { return started_ || stopping_; });
    if (!started_) return;
  }
  try {
    serve();
  } catch (...) {  // no memory: operations in flight may never end
    fail(std::current_exception());
    abandon();
  }
}

void ProgressThread::serve() {
  ask_for_precise_naps();
  last_event_ = last_sign_ = last_watch_ = Clock::now();
  while (true) {
    if (step()) {
      last_event_ = Clock::now();
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      if (stopping_ && queue_.empty()) break;
    }
    sleep();
  }
  shut_down();
}

/// Drops delayed passive operations, which must not keep the thread alive.
void ProgressThread::drop_delayed_passive() {
  decltype(delayed_) kept;
  for (; !delayed_.empty(); delayed_.pop())
    if (!delayed_.top()->plan.passive) kept.push(delayed_.top());
  delayed_.swap(kept);
}

void ProgressThread::shut_down() {
  const auto state = [&] {
    const std::lock_guard lock(mutex_);
    return std::pair(unfinished_ > 0, static_cast<bool>(failure_));
  };
  const TimePoint begin = Clock::now();
  TimePoint deadline = begin + kGrace;
  while (true) {
    const auto [busy, failed] = state();
    if (!busy) break;
    if (failed || unwinding_) delayed_ = {};
    drop_delayed_passive();
    // Emulated links get the time that they need.
    if (!delayed_.empty()) deadline = std::max(deadline, Clock::now() + kGrace);
    if (Clock::now() > deadline) break;
    if (!step()) std::this_thread::sleep_for(kAwaited.shortest);
  }
  std::vector<Ticket> passive;
  for (const Ticket& owner : owners_) {
    if (owner->plan.passive) passive.push_back(owner);
  }
  const std::lock_guard mpi_lock(mpi_mutex_);
  do_cancels(passive);
  const TimePoint last = Clock::now() + kGrace;
  while (!requests_.empty() && Clock::now() < last) {
    const bool only_sends = std::none_of(owners_.begin(), owners_.end(),
                                         [](const Ticket& owner) { return owner->plan.passive; });
    if (only_sends) break;
    if (!test_requests()) std::this_thread::sleep_for(kAwaited.shortest);
  }
  abandon();
}

}  // namespace deltapipe
