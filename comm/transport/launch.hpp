// SPDX-License-Identifier: BSD-3-Clause
// Launcher's variables in the environment, for code that runs before MPI starts.
#pragma once

namespace deltapipe {

struct Launch {
  int rank = 0;
  int size = 1;  ///< 1: started alone, or without a launcher
};

/// Returns the launch by mpirun, srun and similar launchers.
Launch launch_of_environment();

}  // namespace deltapipe
