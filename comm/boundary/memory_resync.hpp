// SPDX-License-Identifier: BSD-3-Clause
// Agreement of both ends of a boundary, separate from messages, on the samples whose memories they
// retain. After a restart from a checkpoint without memories they retain those that both still have
// in their spill files. While training they retain all except samples for which one end has found a
// damaged record. All other samples begin with first visits.
#pragma once

#include <cstdint>
#include <span>

#include "comm/boundary/boundary.hpp"
#include "comm/transport/progress_thread.hpp"

namespace deltapipe {

/// Numbers of samples of the ends' caches.
struct ResyncCounts {
  std::uint64_t kept = 0;
  std::uint64_t forgotten = 0;   ///< were in at least one file
  std::uint64_t empty_ends = 0;  ///< ends of boundaries without a file, whose memories are reset

  ResyncCounts& operator+=(const ResyncCounts& other) {
    kept += other.kept;
    forgotten += other.forgotten;
    empty_ends += other.empty_ends;
    return *this;
  }
};

/// Exchanges visits and a hash of every record with the peer. Both ends call it before the first
/// step. Both forget the samples for which these differ or whose record is damaged. `end` was built
/// with generations.resyncs. Records that only this end keeps, such as errors, are retained if they
/// are intact.
ResyncCounts resync_memories(ProgressThread& progress, MPI_Comm comm, int peer, int tag,
                             BoundaryEnd& end);

/// Forgets the samples for which one of the ends has found a damaged record
/// (ActivationCache::take_damaged()), and those of the crossings of a spoiled step. Both ends call
/// it between two steps.
void forget_damaged(ProgressThread& progress, MPI_Comm comm, int peer, int tag, BoundaryEnd& end,
                    std::span<const Crossing> spoiled);

}  // namespace deltapipe
