// SPDX-License-Identifier: BSD-3-Clause
// Replicas that no longer hold the same weights are noticed and named.
#include "comm/replicas/replica_check.hpp"

#include <catch2/catch.hpp>

#include "comm/transport/agree.hpp"
#include "mpi_test.hpp"

namespace deltapipe {
namespace {

using Catch::Matchers::Contains;

void fill(const ParameterArena<float>& parameters) {
  for (std::size_t i = 0; i < parameters.info().size(); ++i) {
    std::vector<float> values(parameters.info()[i].size);
    for (std::size_t n = 0; n < values.size(); ++n)
      values[n] = 0.25f * static_cast<float>(n + 7 * i) - 1.0f;
    parameters.copy_in(ExecSpace(), static_cast<int>(i), 0, values);
  }
}

void add(const ParameterArena<float>& parameters, int index, std::size_t place, float change) {
  float value = 0;
  parameters.copy_out(ExecSpace(), index, place, {&value, 1});
  const float changed = value + change;
  parameters.copy_in(ExecSpace(), index, place, {&changed, 1});
}

TEST_CASE("Replicas' weights are compared by the bit", "[replica_check]") {
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const ProcessGrid grid(MPI_COMM_WORLD, 1, size);
  ParameterArena<float> parameters;
  parameters.add("wpe.weight", {3, 5}, false, 0);
  parameters.add("h.0.ln_1.weight", {1001}, false, 1);
  parameters.set_operands({parameters.add("lm_head.weight", {7, 11}, true, 2)});
  parameters.allocate(false, GENERATE(ProductPrecision::fp32, ProductPrecision::bf16));
  fill(parameters);
  const int culprit = size - 1;
  SECTION("equal") {
    ProgressThread progress(grid.world());
    ReplicaCheck check(parameters, grid, progress);
    check.compare(ExecSpace(), 0);
    add(parameters, 1, 17, 1.0f);
    check.compare(ExecSpace(), 1);
  }
  const auto differs = [&](const std::string& name) {
    MPI_Comm world = MPI_COMM_NULL;  // of no further use after the stop
    MPI_Comm_dup(MPI_COMM_WORLD, &world);
    ProgressThread progress(world);
    ReplicaCheck check(parameters, grid, progress);
    std::string text;
    try {
      agree(progress, [&] { check.compare(ExecSpace(), 12); });
    } catch (const Stopped& stopped) {
      text = stopped.message();
    }
    if (size == 1) {
      CHECK(text.empty());
      return;
    }
    CHECK_THAT(text, Contains("replicas of stage 0"));
    CHECK_THAT(text, Contains("after step 12: " + name + " differs"));
  };
  SECTION("by one bit of one value") {
    if (rank == culprit) add(parameters, 1, 1000, 0x1p-16f);
    differs("h.0.ln_1.weight");
  }
  SECTION("by two values that changed places") {
    if (rank == culprit) add(parameters, 2, 3, 0.25f);
    if (rank == culprit) add(parameters, 2, 4, -0.25f);
    differs("lm_head.weight");
  }
  SECTION("by less than a bf16 tells") {
    if (rank == culprit) add(parameters, 2, 9, 0x1p-18f);
    differs("lm_head.weight");
  }
  SECTION("in several parameters") {
    if (rank == culprit) add(parameters, 2, 76, 1.0f);
    if (rank == culprit) add(parameters, 0, 0, 1.0f);
    differs("wpe.weight");
  }
}

}  // namespace
}  // namespace deltapipe
