// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/device_sum.hpp"

#include <algorithm>
#include <utility>

#include "comm/transport/mpi_check.hpp"
#include "core/base/parallel/kernel.hpp"
#include "core/base/pieces.hpp"

namespace deltapipe {

namespace {

constexpr int kExchangeTag = 0, kGatherTag = 1;

std::size_t part_elements(std::size_t elements, int ranks) {
  const auto parts = static_cast<std::size_t>(ranks);
  return (elements + parts - 1) / parts;
}

/// Elements [begin, begin + size) of the values.
struct Part {
  std::size_t begin = 0;
  std::size_t size = 0;
};

/// Returns a rank's part; the last parts may be shorter or empty.
Part part_of(int rank, std::size_t elements, int ranks) {
  const std::size_t each = part_elements(elements, ranks);
  const std::size_t begin = std::min(elements, each * static_cast<std::size_t>(rank));
  return {begin, std::min(each, elements - begin)};
}

/// Returns the position of another rank's values among the received ones.
int slot_of(int peer, int rank) {
  return peer < rank ? peer : peer - 1;
}

void receive(float* values, std::size_t size, int peer, int tag, MPI_Comm comm,
             RequestList& requests) {
  for_pieces(0, size, kLargestPiece, [&](std::size_t first, std::size_t count) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Irecv(values + first, static_cast<int>(count), MPI_FLOAT, peer, tag, comm,
                            &requests.back()));
  });
}

void send(const float* values, std::size_t size, int peer, int tag, MPI_Comm comm,
          RequestList& requests) {
  for_pieces(0, size, kLargestPiece, [&](std::size_t first, std::size_t count) {
    requests.push_back(MPI_REQUEST_NULL);
    DELTAPIPE_MPI(MPI_Isend(values + first, static_cast<int>(count), MPI_FLOAT, peer, tag, comm,
                            &requests.back()));
  });
}

}  // namespace

DeviceSum::DeviceSum(MPI_Comm comm, int rank, int ranks, Vector<float> values)
    : comm_(comm), rank_(rank), ranks_(ranks), values_(std::move(values)) {
  const Part own = part_of(rank_, values_.extent(0), ranks_);
  received_ = Vector<float>(uninitialized("deltapipe::DeviceSum::received"),
                            static_cast<std::size_t>(ranks_ - 1) * own.size);
}

std::size_t DeviceSum::received_elements(std::size_t elements, int ranks) {
  return static_cast<std::size_t>(ranks - 1) * part_elements(elements, ranks);
}

OperationPlan DeviceSum::exchange() const {
  OperationPlan plan;
  plan.start = [comm = comm_, rank = rank_, ranks = ranks_, values = values_,
                received = received_](RequestList& requests) {
    const std::size_t elements = values.extent(0);
    const std::size_t own = part_of(rank, elements, ranks).size;
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank)
        receive(received.data() + own * static_cast<std::size_t>(slot_of(peer, rank)), own, peer,
                kExchangeTag, comm, requests);
    for (int peer = 0; peer < ranks; ++peer) {
      const Part theirs = part_of(peer, elements, ranks);
      if (peer != rank)
        send(values.data() + theirs.begin, theirs.size, peer, kExchangeTag, comm, requests);
    }
  };
  return plan;
}

void DeviceSum::add(const ExecSpace& exec) const {
  const Part part = part_of(rank_, values_.extent(0), ranks_);
  const auto size = static_cast<std::int64_t>(part.size);
  float* const own = values_.data() + part.begin;
  const float* const received = received_.data();
  const int rank = rank_, ranks = ranks_;
  for_tiles(
      "deltapipe::DeviceSum::add", exec, size, KOKKOS_LAMBDA(std::int64_t first, std::int64_t end) {
        for (std::int64_t i = first; i < end; ++i) {
          float sum = rank == 0 ? own[i] : received[i];
          for (int r = 1; r < ranks; ++r)
            sum += r == rank ? own[i] : received[(r < rank ? r : r - 1) * size + i];
          own[i] = sum;
        }
      });
}

OperationPlan DeviceSum::gather() const {
  OperationPlan plan;
  plan.start = [comm = comm_, rank = rank_, ranks = ranks_,
                values = values_](RequestList& requests) {
    const std::size_t elements = values.extent(0);
    const Part own = part_of(rank, elements, ranks);
    for (int peer = 0; peer < ranks; ++peer) {
      const Part theirs = part_of(peer, elements, ranks);
      if (peer != rank)
        receive(values.data() + theirs.begin, theirs.size, peer, kGatherTag, comm, requests);
    }
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank) send(values.data() + own.begin, own.size, peer, kGatherTag, comm, requests);
  };
  return plan;
}

}  // namespace deltapipe
