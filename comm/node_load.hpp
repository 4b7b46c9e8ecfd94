// How many threads share the processors of a node.
#pragma once

#include <mpi.h>

#include <string>

namespace deltapipe {

/// What the ranks on the caller's node bring along.
struct NodeLoad {
  int ranks = 0;
  int threads = 0;     ///< that run kernels, of all these ranks
  int processors = 0;  ///< that these ranks may run on
};

/// Collective over `world`; `threads` are the caller's own.
NodeLoad node_load(MPI_Comm world, int threads);

/// What to tell the user when threads of several ranks have to take turns; empty when they fit, or
/// when ranks have one thread each, as then nothing but fewer ranks helps.
std::string crowding_warning(const NodeLoad& load);

}  // namespace deltapipe
