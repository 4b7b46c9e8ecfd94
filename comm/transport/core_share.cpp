// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/core_share.hpp"

#include <algorithm>
#include <cstdint>

#include "comm/transport/collectives.hpp"

namespace deltapipe {

namespace {

int share(double cores, double quota) {
  if (quota > 0) cores = std::min(cores, quota);
  return std::max(1, static_cast<int>(cores + 1e-6));
}

}  // namespace

int share_of_cores(const std::vector<int>& cores, double quota) {
  return share(static_cast<double>(cores.size()), quota);
}

int share_of_cores(MPI_Comm comm, const std::vector<int>& cores, double quota) {
  MPI_Comm machine = MPI_COMM_NULL;
  MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine);
  std::vector<std::uint64_t> most = {cores.empty() ? 0 : std::uint64_t(cores.back()) + 1};
  all_reduce(machine, most, Reduction::max);
  std::vector<std::uint64_t> users(most[0], 0);
  for (const int core : cores) users[static_cast<std::size_t>(core)] = 1;
  if (!users.empty()) all_reduce(machine, users, Reduction::sum);
  int ranks = 1;
  MPI_Comm_size(machine, &ranks);
  MPI_Comm_free(&machine);
  double own = 0;
  for (const int core : cores)
    own += 1.0 / static_cast<double>(users[static_cast<std::size_t>(core)]);
  return share(own, quota / ranks);
}

}  // namespace deltapipe
