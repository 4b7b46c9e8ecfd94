// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/gradient_all_reduce.hpp"

#include <algorithm>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

constexpr std::size_t kLargestPiece = std::size_t{1} << 28;  // elements; MPI counts in int
constexpr bool kHostMemory = Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemSpace>::accessible;

}  // namespace

std::uint64_t gradient_all_reduce_bytes(std::size_t elements, int replicas) {
  if (replicas == 1) return 0;
  return std::uint64_t{elements} * sizeof(float) * (kHostMemory ? 1 : 2);
}

GradientAllReduce::GradientAllReduce(ProgressThread& progress, MPI_Comm stage_comm,
                                     std::vector<Bucket> buckets)
    : progress_(progress),
      comm_(stage_comm),
      buckets_(std::move(buckets)),
      staging_(buckets_.size()) {
  for (const Bucket& bucket : buckets_)
    DELTAPIPE_ASSERT(bucket.gradients.extent(0) == 0 || bucket.gradients.use_count() > 0,
                     "bucket " + std::to_string(bucket.id) + " does not own its memory");
  {
    const auto lock = progress_.lock_mpi();
    DELTAPIPE_MPI(MPI_Comm_size(comm_, &replicas_));
  }
  if (kHostMemory || replicas_ == 1) return;
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    staging_[i] = HostVector<float>(uninitialized("deltapipe::GradientAllReduce::staging"),
                                    buckets_[i].gradients.extent(0));
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
  Running running{buckets_[place], {}, {}, {}};
  if constexpr (!kHostMemory) {
    running.staged = staging_[place];
    Kokkos::deep_copy(space, running.staged, gradients);
  }
  space.fence();
  float* const values = kHostMemory ? gradients.data() : running.staged.data();
  const std::size_t size = gradients.extent(0);
  for (std::size_t begin = 0; begin < size; begin += kLargestPiece) {
    OperationPlan plan;
    plan.name = "all-reduce of gradient bucket " + std::to_string(bucket);
    const int count = static_cast<int>(std::min(kLargestPiece, size - begin));
    plan.start = [owner = gradients, staged = running.staged, place = values + begin, count,
                  comm = comm_](RequestList& requests) {
      requests.push_back(MPI_REQUEST_NULL);
      DELTAPIPE_MPI(
          MPI_Iallreduce(MPI_IN_PLACE, place, count, MPI_FLOAT, MPI_SUM, comm, &requests.back()));
    };
    running.passed.push_back(std::make_shared<TimePoint>());
    plan.completed = [passed = running.passed.back(), wire = progress_.wire(), ranks = replicas_,
                      bytes = count * sizeof(float)](const MPI_Status&, RequestList&) {
      if (wire) *passed = wire.book_ring(Clock::now(), ranks, bytes);
    };
    running.tickets.push_back(progress_.submit(std::move(plan)));
  }
  statistics_.bytes += size * sizeof(float);
  ++statistics_.messages;
  running_.push_back(std::move(running));
}

void GradientAllReduce::wait_all(const ExecSpace& space) {
  DELTAPIPE_ASSERT(std::exchange(started_, 0) == buckets_.size(),
                   "a bucket of gradients was not summed");
  if (replicas_ == 1) return;
  const ActivityScope waiting(progress_.account(), Activity::replicas);
  const TimePoint begin = Clock::now();
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
    if constexpr (!kHostMemory) Kokkos::deep_copy(space, running.bucket.gradients, running.staged);
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
