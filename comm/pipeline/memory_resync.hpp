// SPDX-License-Identifier: BSD-3-Clause
// After a restart from a checkpoint without memories: what both ends of a boundary still have of a
// sample in their spill files goes on, all else begins with first visits.
#pragma once

#include <cstdint>

#include "comm/pipeline/boundary.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Samples of the ends' caches.
struct ResyncCounts {
  std::uint64_t kept = 0;
  std::uint64_t forgotten = 0;  ///< were in one file at least
};

/// Both ends call it before the first step: visits and a hash of every record travel both ways, and
/// both forget the samples for which they differ or whose record is damaged. `end` was built with
/// generations.reuse_files. Errors that only this end keeps go on where they are whole.
ResyncCounts resync_memories(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                             BoundaryEnd& end);

}  // namespace deltapipe
