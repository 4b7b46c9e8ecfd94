// Threads and processors of a node.
#include "comm/node_load.hpp"

#include <catch2/catch.hpp>
#include <thread>

#include "mpi_test.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("The ranks of a node count their threads together", "[node_load]") {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const NodeLoad load = node_load(MPI_COMM_WORLD, rank + 1);
  CHECK(load.ranks == size);
  CHECK(load.threads == size * (size + 1) / 2);
  // Its own at least; those of ranks that are bound elsewhere may come on top.
  CHECK(load.processors >= static_cast<int>(std::thread::hardware_concurrency()));
}

TEST_CASE("Threads that take turns are worth a warning", "[node_load]") {
  CHECK(crowding_warning({2, 16, 16}).empty());
  CHECK(crowding_warning({4, 4, 2}).empty());
  CHECK_THAT(crowding_warning({2, 32, 16}),
             Contains("2 ranks run 32 threads on 16 processors") && Contains("OMP_NUM_THREADS=8"));
  CHECK_THAT(crowding_warning({1, 4, 2}), Contains("1 rank runs") && Contains("THREADS=2"));
  CHECK_THAT(crowding_warning({4, 8, 2}), Contains("OMP_NUM_THREADS=1"));
}

}  // namespace
}  // namespace deltapipe
