// SPDX-License-Identifier: BSD-3-Clause
// Finds the newest checkpoint that is complete on all ranks, and checks that this deck can resume
// from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/checkpoint/spill_references.hpp"
#include "app/deck/settings.hpp"
#include "app/output/former_output.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

/// The checkpoint that a run starts from.
struct Restart {
  std::string checkpoint;  ///< its directory
  CheckpointMarker marker;
  /// The memories of boundaries are read from it. If a checkpoint refers to spill files, a run in
  /// mode resync uses the records that both ends still share instead.
  bool with_memories = true;
  bool refers_to_files = false;  ///< to spill files, of any rank
};

/// Collective. Nothing: the former run has never had a complete checkpoint. Every rank has found
/// all files that it will read, and one rank has compared each of them with its checksum. Rank 0
/// says which checkpoints were skipped, and why.
std::optional<Restart> find_restart(const Settings& settings, const FormerRun& former,
                                    const ProcessGrid& grid, ProgressThread& progress);

/// The files of a checkpoint that this rank compares with their checksums: its own or, where the
/// checkpoint is of another layout and every rank reads all, its share.
std::vector<std::string> files_to_hash(const CheckpointMarker& marker, const Settings& settings,
                                       int rank);

/// The directory of a run's results, independent of the working directory; for markers.
std::string absolute_output_directory(const Settings& settings);

/// True if steps have as many micro-batches as those of the checkpoint.
bool has_same_micro_batches(const CheckpointMarker& marker, const Settings& settings);

/// True if every rank reads what the same rank wrote.
bool is_same_layout(const CheckpointMarker& marker, const Settings& settings,
                    const std::vector<int>& partition);

/// Decides how this start uses the spill files that the checkpoint refers to.
FormerSpillFiles former_spill_files(const Restart& restart, const Settings& settings,
                                    const std::vector<int>& partition, int rank);

/// UserError when this rank continues a spill file but will not have one under its name, as a
/// larger cache.budget has it. `spill_files`: the files that it will have.
void check_budget_of_restart(const Restart& restart, const Settings& settings,
                             const FormerSpillFiles& former,
                             const std::vector<std::string>& spill_files);

/// The spill files that the checkpoint refers to take their places, or leave them to those of
/// another layout. To be done on all ranks before one makes its spill files.
void make_room_for_spill_files(const Restart& restart, const Settings& settings,
                               const std::vector<int>& partition, int rank,
                               const CacheOwner& owner);

/// The list without the boundaries' memories of samples.
std::vector<StatePart> without_memories(std::vector<StatePart> parts);

}  // namespace deltapipe
