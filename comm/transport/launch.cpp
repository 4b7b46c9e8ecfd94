// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/launch.hpp"

#include <algorithm>
#include <cstdlib>

namespace deltapipe {

namespace {

/// Variables of a launcher.
struct Names {
  const char* rank;
  const char* size;
};

/// Batch scripts also have SLURM_PROCID and SLURM_NTASKS; only srun sets SLURM_STEP_NUM_TASKS.
constexpr Names kLaunchers[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
                                {"PMI_RANK", "PMI_SIZE"},
                                {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
                                {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"}};
/// PMIx sets both variables, but none that gives the number of processes.
constexpr Names kPmix = {"PMIX_RANK", "PMIX_SERVER_URI2"};

int number_in(const char* name) {
  const char* const text = std::getenv(name);
  return text != nullptr ? std::max(0, std::atoi(text)) : 0;
}

}  // namespace

Launch launch_of_environment() {
  for (const Names& names : kLaunchers)
    if (const int size = number_in(names.size); size > 0 && std::getenv(names.rank) != nullptr)
      return {number_in(names.rank), size};
  if (std::getenv(kPmix.rank) == nullptr || std::getenv(kPmix.size) == nullptr) return {};
  const int rank = number_in(kPmix.rank);
  return {rank, std::max(2, rank + 1)};
}

}  // namespace deltapipe
