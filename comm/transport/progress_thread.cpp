// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/progress_thread.hpp"

#ifdef __linux__
#include <sys/prctl.h>
#endif

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/transport/agree.hpp"
#include "comm/transport/mpi_check.hpp"
#include "comm/transport/operation.hpp"
#include "comm/transport/request_set.hpp"
#include "comm/transport/run_watch.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/base/parallel/device_memory.hpp"
#include "core/base/parallel/helper_thread.hpp"

namespace deltapipe {

namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

constexpr int kStopTag = 1;
constexpr int kRollCallTag = 4;
constexpr int kPresentTag = 5;
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
// Times for which a rank that ends tries to agree with the others. The first is for a rank that
// fails by itself. A rank that was told to stop tries longer, so that the rank that knows the
// reason reports first. A rank that lost its peer tries for a short time. After a signal it is
// kInterruptedAgreementLimit.
constexpr nanoseconds kAgreementLimit = std::chrono::seconds(10);
constexpr nanoseconds kToldAgreementLimit = std::chrono::seconds(15);
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
    : world_(world),
      watch_(std::move(watch)),
      run_watch_(std::make_unique<RunWatch>(*this, watch_)),
      requests_(std::make_unique<RequestSet>()) {
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
    align_clock(control_, clock_);
  } catch (...) {
    leave();
    throw;
  }
  ask_for_precise_naps();  // this thread waits for messages of emulated links
  post_stop_receive();
  run_watch_->await_signs();
  keep_clock_aligned(*this, clock_);
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
  const auto message = std::make_shared<StopMessage>();
  const auto stop = [this, message](int) {
    fail(std::make_exception_ptr(StopRequested(message->rank, message->signal)));
  };
  receive_always(fmt::format("stop message to rank {}", rank_), message.get(), 2, MPI_INT,
                 MPI_ANY_SOURCE, kStopTag, stop);
}

void ProgressThread::receive_always(const std::string& name, void* values, int count,
                                    MPI_Datatype type, int source, int tag,
                                    const std::function<void(int source)>& arrived) {
  ++standing_requests_;
  const auto post = [=, this](RequestList& requests) {
    DELTAPIPE_MPI(MPI_Irecv(values, count, type, source, tag, control_, add_request(requests)));
  };
  const auto completed = [=](const MPI_Status& status, RequestList& requests) {
    arrived(status.MPI_SOURCE);
    post(requests);
  };
  submit_regardless({.name = name, .start = post, .completed = completed, .passive = true});
}

Ticket ProgressThread::send_empty(const std::string& name, int destination, int tag) {
  const auto start = [=, this](RequestList& requests) {
    DELTAPIPE_MPI(
        MPI_Isend(nullptr, 0, MPI_INT, destination, tag, control_, add_request(requests)));
  };
  return submit_regardless({.name = name, .start = start, .passive = true});
}

void ProgressThread::await_roll_call() {
  const auto answer = [this](int) {
    send_empty(fmt::format("answer of rank {}", rank_), 0, kPresentTag);
  };
  receive_always(fmt::format("roll call to rank {}", rank_), nullptr, 0, MPI_INT, 0, kRollCallTag,
                 answer);
}

std::vector<int> ProgressThread::silent_ranks(nanoseconds limit) {
  std::vector<int> silent;
  if (rank_ > 0) return silent;
  std::vector<Ticket> answers;
  for (int peer = 1; peer < size_; ++peer) {
    const auto start = [this, peer](RequestList& requests) {
      DELTAPIPE_MPI(
          MPI_Irecv(nullptr, 0, MPI_INT, peer, kPresentTag, control_, add_request(requests)));
      DELTAPIPE_MPI(
          MPI_Isend(nullptr, 0, MPI_INT, peer, kRollCallTag, control_, add_request(requests)));
    };
    answers.push_back(submit_regardless(
        {.name = fmt::format("roll call of rank {}", peer), .start = start, .passive = true}));
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

void ProgressThread::set_ends_at_once(bool ends) {
  run_watch_->set_ends_at_once(ends);
}

std::string ProgressThread::name_of(int rank) const {
  return watch_.name_of_rank ? watch_.name_of_rank(rank) : fmt::format("rank {}", rank);
}

ProgressThread::Awaited ProgressThread::awaited() const {
  const std::lock_guard lock(mutex_);
  return {awaited_, awaited_since_, static_cast<bool>(failure_)};
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
      const auto start = [this, peer](RequestList& requests) {
        DELTAPIPE_MPI(
            MPI_Isend(&stop_sent_, 2, MPI_INT, peer, kStopTag, control_, add_request(requests)));
      };
      submit_regardless({.name = fmt::format("stop message from rank {}", rank_), .start = start});
    }
  } catch (...) {
    // No memory for a message: the others notice at the next agreement or when it times out.
  }
}

Ticket ProgressThread::submit(OperationPlan plan) {
  check();
  return submit_regardless(std::move(plan));
}

Ticket ProgressThread::submit_regardless(OperationPlan plan) {
  auto operation = std::make_shared<Operation>(std::move(plan));
  {
    const std::lock_guard lock(mutex_);
    operation->number = submitted_++;
    if (!operation->plan.passive) ++unfinished_;
    queue_.push_back(operation);
  }
  work_.notify_one();
  return operation;
}

Ticket ProgressThread::isend(std::shared_ptr<const void> bytes, int count, int peer, int tag,
                             MPI_Comm comm) {
  const auto start = [=](RequestList& requests) {
    DELTAPIPE_MPI(MPI_Isend(bytes.get(), count, MPI_BYTE, peer, tag, comm, add_request(requests)));
  };
  return submit({.name = fmt::format("send to rank {}", peer), .start = start});
}

Ticket ProgressThread::irecv(std::shared_ptr<void> bytes, int count, int peer, int tag,
                             MPI_Comm comm) {
  const auto start = [=](RequestList& requests) {
    DELTAPIPE_MPI(MPI_Irecv(bytes.get(), count, MPI_BYTE, peer, tag, comm, add_request(requests)));
  };
  return submit({.name = fmt::format("receive from rank {}", peer), .start = start});
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

void ProgressThread::wait_while(const std::function<std::string()>& awaited) {
  constexpr std::chrono::microseconds kInterval{100};
  std::string name = awaited();
  std::unique_lock lock(mutex_);
  ++waiters_;
  work_.notify_one();
  const auto end = [&] {
    --waiters_;
    awaited_.clear();
  };
  while (!name.empty() && !failure_) {
    if (name != awaited_) {
      awaited_ = std::move(name);
      awaited_since_ = Clock::now();
    }
    finished_.wait_for(lock, kInterval);
    lock.unlock();
    try {
      name = awaited();
    } catch (...) {
      lock.lock();
      end();
      throw;
    }
    lock.lock();
  }
  end();
  if (failure_) std::rethrow_exception(failure_);
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
  run_watch_->compute_thread_agrees();
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
  const auto start = [this](RequestList& requests) {
    DELTAPIPE_MPI(MPI_Ibarrier(pauses_, add_request(requests)));
  };
  wait(submit({.name = "barrier before a pause", .start = start}));
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
  requests_->adopt(operation, requests);
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
  requests_->adopt(operation, more);
  if (error || operation->outstanding == 0) finish(operation, error);
}

bool ProgressThread::test_requests() {
  std::vector<RequestSet::Finished> finished;
  try {
    finished = requests_->take_finished();
  } catch (const UserError& error) {
    fail(std::make_exception_ptr(error));
    for (const Ticket& owner : requests_->owners()) finish(owner, nullptr);
    requests_->abandon();
    return false;
  }
  for (const auto& [operation, status, code] : finished) complete(operation, status, code);
  return !finished.empty();
}

void ProgressThread::do_cancels(const std::vector<Ticket>& cancels) {
  for (const Ticket& operation : cancels) {
    operation->cancelled = true;
    requests_->cancel(operation);
    if (operation->outstanding == 0) finish(operation, nullptr);
  }
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
  run_watch_->look(Clock::now());
  return test_requests() || !queue.empty();
}

void ProgressThread::sleep() {
  const TimePoint now = Clock::now();
  // Receives that are always posted are not urgent.
  const bool idle = requests_->size() <= standing_requests_;
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
    requests_->abandon();
  }
}

void ProgressThread::serve() {
  ask_for_precise_naps();
  last_event_ = Clock::now();
  run_watch_->begin(last_event_);
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
  for (const Ticket& owner : requests_->owners()) {
    if (owner->plan.passive) passive.push_back(owner);
  }
  const std::lock_guard mpi_lock(mpi_mutex_);
  do_cancels(passive);
  const TimePoint last = Clock::now() + kGrace;
  while (!requests_->empty() && Clock::now() < last) {
    const bool only_sends = std::ranges::none_of(
        requests_->owners(), [](const Ticket& owner) { return owner->plan.passive; });
    if (only_sends) break;
    if (!test_requests()) std::this_thread::sleep_for(kAwaited.shortest);
  }
  requests_->abandon();
}

}  // namespace deltapipe
