// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/collectives.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "comm/transport/mpi_check.hpp"
#include "core/base/error.hpp"

namespace deltapipe {
namespace {

template <class T>
MPI_Datatype datatype_of();
template <>
MPI_Datatype datatype_of<double>() {
  return MPI_DOUBLE;
}
template <>
MPI_Datatype datatype_of<std::uint64_t>() {
  return MPI_UINT64_T;
}
template <>
MPI_Datatype datatype_of<char>() {
  return MPI_CHAR;
}

MPI_Op operation_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::sum:
      return MPI_SUM;
    case Reduction::min:
      return MPI_MIN;
    case Reduction::max:
      return MPI_MAX;
  }
  return MPI_SUM;
}

int count_of(std::size_t size) {
  DELTAPIPE_ASSERT(size <= static_cast<std::size_t>(std::numeric_limits<int>::max()),
                   fmt::format("{} elements in a collective", size));
  return static_cast<int>(size);
}

/// This rank within a communicator.
struct Place {
  int rank = 0;
  int size = 1;
  bool alone() const { return size == 1; }
};

Place place_in(MPI_Comm comm) {
  Place place;
  DELTAPIPE_MPI(MPI_Comm_rank(comm, &place.rank));
  DELTAPIPE_MPI(MPI_Comm_size(comm, &place.size));
  return place;
}

Place place_in(ProgressThread& progress, MPI_Comm comm) {
  const auto lock = progress.lock_mpi();
  return place_in(comm);
}

/// Starts one nonblocking collective and completes it. The closure owns the memory that MPI uses: a
/// stop unwinds the caller while the collective may still be in flight.
using StartCollective = std::function<void(MPI_Request*)>;
using Runner = std::function<void(const char* name, const StartCollective&)>;

void run_blocking(const char*, const StartCollective& start) {
  MPI_Request request = MPI_REQUEST_NULL;
  start(&request);
  DELTAPIPE_MPI(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

/// Like run_blocking, but throws AgreementTimeout after the deadline. MPI then keeps the
/// collective's memory forever.
Runner run_until(TimePoint deadline) {
  return [deadline](const char* name, const StartCollective& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    start(&request);
    for (int done = 0;;) {
      DELTAPIPE_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
      if (done) return;
      if (Clock::now() >= deadline) {
        new StartCollective(start);
        throw AgreementTimeout(name);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  };
}

OperationPlan plan_of(const char* name, const StartCollective& start) {
  return {.name = name, .start = [start](RequestList& requests) { start(add_request(requests)); }};
}

Runner runner(ProgressThread& progress) {
  return [&progress](const char* name, const StartCollective& start) {
    progress.wait(progress.submit(plan_of(name, start)));
  };
}

/// Sleeps until the emulated wire has carried what MPI has just transferred; `book` returns that
/// time.
template <class Book>
void pass_wire(ProgressThread& progress, Book book) {
  if (progress.wire()) std::this_thread::sleep_until(book(progress.wire(), Clock::now()));
}

Runner regardless(ProgressThread& progress) {
  return [&progress](const char* name, const StartCollective& start) {
    progress.wait_regardless(progress.submit_regardless(plan_of(name, start)));
  };
}

template <class T>
void reduce_with(const Runner& run, MPI_Comm comm, std::span<T> values, Reduction reduction) {
  auto buffer = std::make_shared<std::vector<T>>(values.begin(), values.end());
  const int count = count_of(values.size());
  run("all-reduce", [=](MPI_Request* request) {
    DELTAPIPE_MPI(MPI_Iallreduce(MPI_IN_PLACE, buffer->data(), count, datatype_of<T>(),
                                 operation_of(reduction), comm, request));
  });
  std::copy(buffer->begin(), buffer->end(), values.begin());
}

/// Reduces values; over one rank it only checks the run's state.
template <class T>
void reduce_over(ProgressThread& progress, MPI_Comm comm, std::span<T> values,
                 Reduction reduction) {
  const Place place = place_in(progress, comm);
  if (place.alone()) return progress.check();
  reduce_with(runner(progress), comm, values, reduction);
  const std::size_t bytes = values.size_bytes();
  if (place.rank == 0) progress.count_collective_bytes(all_reduce_bytes(place.size, bytes));
  pass_wire(progress, [&](const RankWire& wire, TimePoint now) {
    return wire.book_tree(now, place.size, bytes);
  });
}

/// Broadcasts a Container, std::vector or std::string.
template <class Container>
void broadcast_with(const Runner& run, MPI_Comm comm, Container& values, int root) {
  using T = typename Container::value_type;
  auto size = std::make_shared<std::uint64_t>(values.size());
  run("broadcast of a size", [=](MPI_Request* request) {
    DELTAPIPE_MPI(MPI_Ibcast(size.get(), 1, MPI_UINT64_T, root, comm, request));
  });
  auto buffer = std::make_shared<Container>(values);
  buffer->resize(*size);
  const int count = count_of(*size);
  run("broadcast", [=](MPI_Request* request) {
    DELTAPIPE_MPI(MPI_Ibcast(buffer->data(), count, datatype_of<T>(), root, comm, request));
  });
  values = *buffer;
}

template <class Container>
void broadcast_over(ProgressThread& progress, MPI_Comm comm, Container& values, int root) {
  const Place place = place_in(progress, comm);
  if (place.alone()) return progress.check();
  broadcast_with(runner(progress), comm, values, root);
  const std::size_t bytes = values.size() * sizeof(typename Container::value_type);
  const bool is_root = place.rank == root;
  if (is_root) progress.count_collective_bytes((place.size - 1) * (sizeof(std::uint64_t) + bytes));
  pass_wire(progress, [&](const RankWire& wire, TimePoint now) {
    now = wire.book_broadcast(now, place.size, is_root, sizeof(std::uint64_t));
    return wire.book_broadcast(now, place.size, is_root, bytes);
  });
}

struct Gathered {
  std::string mine;
  std::vector<int> counts;
  std::vector<int> offsets;
  std::string all;
};

void set_offsets(Gathered& gathered) {
  std::size_t total = 0;
  for (std::size_t i = 0; i < gathered.counts.size(); ++i) {
    gathered.offsets[i] = count_of(total);
    total += static_cast<std::size_t>(gathered.counts[i]);
  }
  count_of(total);
  gathered.all.resize(total);
}

std::vector<std::string> gather_with(const Runner& run, MPI_Comm comm, const Place& place,
                                     const std::string& bytes, int root) {
  auto gathered = std::make_shared<Gathered>();
  gathered->mine = bytes;
  gathered->counts.resize(place.rank == root ? static_cast<std::size_t>(place.size) : 0);
  gathered->offsets.resize(gathered->counts.size());
  auto count = std::make_shared<int>(count_of(bytes.size()));
  run("gather of sizes", [=](MPI_Request* request) {
    DELTAPIPE_MPI(MPI_Igather(count.get(), 1, MPI_INT, gathered->counts.data(), 1, MPI_INT, root,
                              comm, request));
  });
  set_offsets(*gathered);
  run("gather", [=](MPI_Request* request) {
    DELTAPIPE_MPI(MPI_Igatherv(gathered->mine.data(), *count, MPI_CHAR, gathered->all.data(),
                               gathered->counts.data(), gathered->offsets.data(), MPI_CHAR, root,
                               comm, request));
  });
  std::vector<std::string> strings;
  for (std::size_t i = 0; i < gathered->counts.size(); ++i) {
    strings.push_back(gathered->all.substr(static_cast<std::size_t>(gathered->offsets[i]),
                                           static_cast<std::size_t>(gathered->counts[i])));
  }
  return strings;
}

}  // namespace

void all_reduce(MPI_Comm comm, std::span<std::uint64_t> values, Reduction reduction) {
  reduce_with(run_blocking, comm, values, reduction);
}
void all_reduce(ProgressThread& progress, MPI_Comm comm, std::span<double> values,
                Reduction reduction) {
  reduce_over(progress, comm, values, reduction);
}
void all_reduce(ProgressThread& progress, MPI_Comm comm, std::span<std::uint64_t> values,
                Reduction reduction) {
  reduce_over(progress, comm, values, reduction);
}
double all_reduce(ProgressThread& progress, MPI_Comm comm, double value, Reduction reduction) {
  all_reduce(progress, comm, std::span(&value, 1), reduction);
  return value;
}
std::uint64_t all_reduce(ProgressThread& progress, MPI_Comm comm, std::uint64_t value,
                         Reduction reduction) {
  all_reduce(progress, comm, std::span(&value, 1), reduction);
  return value;
}

void broadcast(MPI_Comm comm, std::string& bytes, int root) {
  broadcast_with(run_blocking, comm, bytes, root);
}
void broadcast(ProgressThread& progress, MPI_Comm comm, std::vector<double>& values, int root) {
  broadcast_over(progress, comm, values, root);
}
void broadcast(ProgressThread& progress, MPI_Comm comm, std::vector<std::uint64_t>& values,
               int root) {
  broadcast_over(progress, comm, values, root);
}
void broadcast(ProgressThread& progress, MPI_Comm comm, std::string& bytes, int root) {
  broadcast_over(progress, comm, bytes, root);
}

std::vector<std::string> gather(MPI_Comm comm, const std::string& bytes, int root) {
  return gather_with(run_blocking, comm, place_in(comm), bytes, root);
}
std::vector<std::string> gather(ProgressThread& progress, MPI_Comm comm, const std::string& bytes,
                                int root) {
  const Place place = place_in(progress, comm);
  if (place.alone()) {
    progress.check();
    return {bytes};
  }
  const std::vector<std::string> all = gather_with(runner(progress), comm, place, bytes, root);
  const bool is_root = place.rank == root;
  std::size_t passing = sizeof(int) + bytes.size();
  if (is_root) {
    passing = (place.size - 1) * sizeof(int);
    for (int rank = 0; rank < place.size; ++rank)
      if (rank != root) passing += all[static_cast<std::size_t>(rank)].size();
    progress.count_collective_bytes(passing);
  }
  pass_wire(progress, [&](const RankWire& wire, TimePoint now) {
    return wire.book_gather(now, is_root, passing);
  });
  return all;
}

std::string all_gather(ProgressThread& progress, MPI_Comm comm, const std::string& bytes) {
  std::string all;
  for (const std::string& part : gather(progress, comm, bytes, 0)) all += part;
  broadcast(progress, comm, all, 0);
  return all;
}

std::vector<double> gather(ProgressThread& progress, MPI_Comm comm, std::span<const double> values,
                           int root) {
  const std::string bytes(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  std::vector<double> all;
  for (const std::string& part : gather(progress, comm, bytes, root)) {
    const std::size_t count = part.size() / sizeof(double);
    all.resize(all.size() + count);
    std::copy(part.begin(), part.end(), reinterpret_cast<char*>(all.data() + all.size() - count));
  }
  return all;
}

void barrier(ProgressThread& progress, MPI_Comm comm) {
  const Place place = place_in(progress, comm);
  if (place.alone()) return progress.check();
  runner(progress)("barrier",
                   [comm](MPI_Request* request) { DELTAPIPE_MPI(MPI_Ibarrier(comm, request)); });
  pass_wire(progress, [&](const RankWire& wire, TimePoint now) {
    return wire.book_barrier(now, place.size);
  });
}

std::uint64_t agree_on_minimum(MPI_Comm comm, std::uint64_t value, TimePoint deadline) {
  reduce_with(run_until(deadline), comm, std::span(&value, 1), Reduction::min);
  return value;
}

void agree_on_text(MPI_Comm comm, std::string& text, int root, TimePoint deadline) {
  broadcast_with(run_until(deadline), comm, text, root);
}

std::uint64_t agree_on_minimum(ProgressThread& progress, std::uint64_t value) {
  reduce_with(regardless(progress), progress.control(), std::span(&value, 1), Reduction::min);
  return value;
}

void agree_on_text(ProgressThread& progress, std::string& text, int root) {
  broadcast_with(regardless(progress), progress.control(), text, root);
}

}  // namespace deltapipe
