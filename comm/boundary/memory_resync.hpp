// SPDX-License-Identifier: BSD-3-Clause
// What both ends of a boundary have to agree on beside messages: which samples' memories go on.
// After a restart from a checkpoint without memories those that both still have in their spill
// files; while training all but those for which one end has found a damaged record. All else begins
// with first visits.
#pragma once

#include <cstdint>
#include <span>

#include "comm/boundary/boundary.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Samples of the ends' caches.
struct ResyncCounts {
  std::uint64_t kept = 0;
  std::uint64_t forgotten = 0;  ///< were in one file at least
};

/// Both ends call it before the first step: visits and a hash of every record travel both ways, and
/// both forget the samples for which they differ or whose record is damaged. `end` was built with
/// generations.resyncs. Errors that only this end keeps go on where they are whole.
ResyncCounts resync_memories(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                             BoundaryEnd& end);

/// Both ends call it between two steps: they forget the samples for which one of them has found a
/// damaged record (ActivationCache::take_damaged()), and those of the crossings of a spoiled step.
void forget_damaged(ProgressThread& progress, MPI_Comm comm, int peer, int tag, BoundaryEnd& end,
                    std::span<const Crossing> spoiled);

}  // namespace deltapipe
