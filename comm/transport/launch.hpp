// SPDX-License-Identifier: BSD-3-Clause
// What a launcher has put into the environment, for what is done before MPI starts.
#pragma once

namespace deltapipe {

struct Launch {
  int rank = 0;
  int size = 1;  ///< 1: started alone, or without a launcher
};

/// Launch by mpirun, srun and the like.
Launch launch_of_environment();

}  // namespace deltapipe
