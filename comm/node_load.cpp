#include "comm/node_load.hpp"

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <thread>

#include "comm/mpi_check.hpp"

namespace deltapipe {

namespace {

using ProcessorSet = std::array<std::uint64_t, 64>;

/// Processors that this process may run on, a bit each; without such bindings all there are.
ProcessorSet my_processors() {
  ProcessorSet set{};
  const auto add = [&](std::size_t i) { set[i / 64 % set.size()] |= std::uint64_t{1} << i % 64; };
#ifdef __linux__
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
    for (std::size_t i = 0; i < CPU_SETSIZE; ++i)
      if (CPU_ISSET(i, &mask)) add(i);
    return set;
  }
#endif
  for (std::size_t i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) add(i);
  return set;
}

}  // namespace

NodeLoad node_load(MPI_Comm world, int threads) {
  MPI_Comm node = MPI_COMM_NULL;
  DELTAPIPE_MPI(MPI_Comm_split_type(world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node));
  NodeLoad load;
  ProcessorSet processors = my_processors();
  DELTAPIPE_MPI(MPI_Comm_size(node, &load.ranks));
  DELTAPIPE_MPI(MPI_Allreduce(&threads, &load.threads, 1, MPI_INT, MPI_SUM, node));
  DELTAPIPE_MPI(MPI_Allreduce(MPI_IN_PLACE, processors.data(), static_cast<int>(processors.size()),
                              MPI_UINT64_T, MPI_BOR, node));
  DELTAPIPE_MPI(MPI_Comm_free(&node));
  for (const std::uint64_t word : processors) load.processors += std::popcount(word);
  return load;
}

std::string crowding_warning(const NodeLoad& load) {
  if (load.threads <= load.processors || load.threads <= load.ranks) return {};
  return std::to_string(load.ranks) + (load.ranks == 1 ? " rank runs " : " ranks run ") +
         std::to_string(load.threads) + " threads on " + std::to_string(load.processors) +
         " processors of this machine, which is slow; set OMP_NUM_THREADS=" +
         std::to_string(std::max(1, load.processors / load.ranks));
}

}  // namespace deltapipe
