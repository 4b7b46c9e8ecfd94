// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/gradient_all_reduce.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"
#include "core/base/pieces.hpp"

namespace deltapipe {
namespace {

constexpr bool kHostMemory = Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemSpace>::accessible;

std::string name_of(const GradientAllReduce::Bucket& bucket) {
  return "all-reduce of gradient bucket " + std::to_string(bucket.id);
}

/// Books the ring that models the operation on the emulated wires when its last request is done.
/// Returns the time at which it has passed.
std::shared_ptr<TimePoint> book_when_done(OperationPlan& plan, const RankWire& wire, int ranks,
                                          std::size_t bytes) {
  auto passed = std::make_shared<TimePoint>();
  const auto outstanding = std::make_shared<std::size_t>(0);
  plan.start = [start = std::move(plan.start), outstanding](RequestList& requests) {
    start(requests);
    *outstanding = requests.size();
  };
  plan.completed = [passed, outstanding, wire, ranks, bytes](const MPI_Status&, RequestList&) {
    if (--*outstanding == 0 && wire) *passed = wire.book_ring(Clock::now(), ranks, bytes);
  };
  return passed;
}

}  // namespace

MemoryLedger gradient_all_reduce_memory(std::size_t elements, int replicas, PayloadMemory memory) {
  MemoryLedger ledger;
  if (replicas == 1) return ledger;
  if (memory == PayloadMemory::device)
    ledger.add<Vector<float>>(MemoryUse::replicas,
                              sizeof(float) * DeviceSum::received_elements(elements, replicas));
  else
    ledger.add_host(MemoryUse::replicas,
                    std::uint64_t{elements} * sizeof(float) * (kHostMemory ? 1 : 2));
  return ledger;
}

GradientAllReduce::GradientAllReduce(ProgressThread& progress, MPI_Comm stage_comm,
                                     std::vector<Bucket> buckets, PayloadMemory memory)
    : progress_(progress),
      comm_(stage_comm),
      memory_(memory),
      buckets_(std::move(buckets)),
      staging_(buckets_.size()) {
  for (const Bucket& bucket : buckets_)
    DELTAPIPE_ASSERT(bucket.gradients.extent(0) == 0 || bucket.gradients.use_count() > 0,
                     "bucket " + std::to_string(bucket.id) + " does not own its memory");
  int replica = 0;
  {
    const auto lock = progress_.lock_mpi();
    DELTAPIPE_MPI(MPI_Comm_size(comm_, &replicas_));
    DELTAPIPE_MPI(MPI_Comm_rank(comm_, &replica));
  }
  if (replicas_ == 1) return;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    const Vector<float>& gradients = buckets_[i].gradients;
    if (in_device_memory()) sums_.emplace_back(comm_, replica, replicas_, gradients);
    if (is_staged())
      staging_[i] = HostVector<float>(uninitialized("deltapipe::GradientAllReduce::staging"),
                                      gradients.extent(0));
  }
}

bool GradientAllReduce::is_staged() const {
  return !kHostMemory && !in_device_memory();
}

void GradientAllReduce::start_all(const ExecSpace& space) {
  for (const Bucket& bucket : buckets_) start(space, bucket.id);
}

void GradientAllReduce::start(const ExecSpace& space, int bucket) {
  DELTAPIPE_ASSERT(started_ < buckets_.size() && buckets_[started_].id == bucket,
                   "bucket " + std::to_string(bucket) + " is not number " +
                       std::to_string(started_) + " of the step");
  const std::size_t place = started_++;
  const Vector<float>& gradients = buckets_[place].gradients;
  if (replicas_ == 1 || gradients.extent(0) == 0) return;
  Running running{buckets_[place], {}, {}, {}, nullptr};
  if (is_staged()) {
    running.staged = staging_[place];
    Kokkos::deep_copy(space, running.staged, gradients);
  }
  space.fence();
  in_device_memory() ? start_exchange(running, place) : start_all_reduce(running, place);
  statistics_.bytes += gradients.extent(0) * sizeof(float);
  ++statistics_.messages;
  running_.push_back(std::move(running));
  hand_on_parts(space, false);
}

void GradientAllReduce::start_all_reduce(Running& running, std::size_t place) {
  const Vector<float>& gradients = buckets_[place].gradients;
  float* const values = is_staged() ? running.staged.data() : gradients.data();
  const std::size_t size = gradients.extent(0);
  for_pieces(0, size, kLargestPiece, [&](std::size_t first, std::size_t count) {
    OperationPlan plan;
    plan.name = name_of(running.bucket);
    plan.start = [owner = gradients, staged = running.staged, place = values + first,
                  count = static_cast<int>(count), comm = comm_](RequestList& requests) {
      requests.push_back(MPI_REQUEST_NULL);
      DELTAPIPE_MPI(
          MPI_Iallreduce(MPI_IN_PLACE, place, count, MPI_FLOAT, MPI_SUM, comm, &requests.back()));
    };
    running.passed.push_back(
        book_when_done(plan, progress_.wire(), replicas_, count * sizeof(float)));
    running.tickets.push_back(progress_.submit(std::move(plan)));
  });
}

void GradientAllReduce::start_exchange(Running& running, std::size_t place) {
  OperationPlan plan = sums_[place].exchange();
  plan.name = name_of(running.bucket);
  running.passed.push_back(std::make_shared<TimePoint>());
  running.tickets.push_back(progress_.submit(std::move(plan)));
  running.exchanged = &sums_[place];
}

void GradientAllReduce::hand_on_parts(const ExecSpace& space, bool waits) {
  for (Running& running : running_) {
    if (running.exchanged == nullptr) continue;
    if (!waits && !progress_.done(running.tickets.front())) return;
    progress_.wait(running.tickets.front());
    running.exchanged->add(space);
    space.fence();
    OperationPlan plan = running.exchanged->gather();
    plan.name = name_of(running.bucket);
    running.passed.push_back(book_when_done(plan, progress_.wire(), replicas_,
                                            running.bucket.gradients.extent(0) * sizeof(float)));
    running.tickets.push_back(progress_.submit(std::move(plan)));
    running.exchanged = nullptr;
  }
}

void GradientAllReduce::wait_all(const ExecSpace& space) {
  DELTAPIPE_ASSERT(std::exchange(started_, 0) == buckets_.size(),
                   "a bucket of gradients was not summed");
  if (replicas_ == 1) return;
  const ActivityScope waiting(progress_.account(), Activity::replicas);
  const TimePoint begin = Clock::now();
  hand_on_parts(space, true);
  for (const Running& running : running_) {
    for (std::size_t i = 0; i < running.tickets.size(); ++i) {
      progress_.wait(running.tickets[i]);
      std::this_thread::sleep_until(*running.passed[i]);
      OperationTimes times = progress_.times(running.tickets[i]);
      times.finished = std::max(times.finished, *running.passed[i]);
      transfers_.add(times.started, times.finished);
      progress_.account().transfer(times.started, times.finished);
      TraceRecorder::instance().record(TraceCategory::wire, "gradient all-reduce",
                                       "bucket " + std::to_string(running.bucket.id), times.started,
                                       times.finished);
    }
    if (is_staged()) Kokkos::deep_copy(space, running.bucket.gradients, running.staged);
  }
  if (running_.empty()) return;
  running_.clear();
  const TimePoint end = Clock::now();
  TraceRecorder::instance().record(TraceCategory::wait, "compute", "wait for gradient all-reduce",
                                   begin, end);
}

ChannelStatistics GradientAllReduce::take_statistics() {
  statistics_.wire_seconds = std::exchange(transfers_, {}).seconds();
  return std::exchange(statistics_, {});
}

}  // namespace deltapipe
