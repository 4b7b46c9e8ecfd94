// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/machines.hpp"

#include <array>
#include <cstdint>

#include "comm/transport/mpi_check.hpp"

namespace deltapipe {

RankMachine this_machine() {
  return {0, machine_memory(), device_memory()};
}

std::vector<RankMachine> machines_of_ranks(MPI_Comm comm) {
  int rank = 0, size = 1;
  DELTAPIPE_MPI(MPI_Comm_rank(comm, &rank));
  DELTAPIPE_MPI(MPI_Comm_size(comm, &size));
  MPI_Comm machine = MPI_COMM_NULL;
  DELTAPIPE_MPI(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &machine));
  int lowest = rank;
  DELTAPIPE_MPI(MPI_Bcast(&lowest, 1, MPI_INT, 0, machine));
  DELTAPIPE_MPI(MPI_Comm_free(&machine));

  using Row = std::array<std::uint64_t, 6>;
  const auto [own, memory, device] = this_machine();
  const Row mine = {static_cast<std::uint64_t>(lowest),
                    memory.total,
                    memory.available,
                    device.device,
                    device.total,
                    device.available};
  std::vector<Row> rows(static_cast<std::size_t>(size));
  DELTAPIPE_MPI(MPI_Allgather(mine.data(), 6, MPI_UINT64_T, rows.data(), 6, MPI_UINT64_T, comm));
  std::vector<RankMachine> machines;
  for (const Row& row : rows)
    machines.push_back({static_cast<int>(row[0]), {row[1], row[2]}, {row[3], row[4], row[5]}});
  return machines;
}

}  // namespace deltapipe
