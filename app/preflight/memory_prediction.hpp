// SPDX-License-Identifier: BSD-3-Clause
// What every rank of a run takes of memory and disk, and whether the machines have it. `check`
// prints it, `train` starts by it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "app/checkpoint/spill_references.hpp"
#include "app/session/session.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/transport/machines.hpp"
#include "core/base/observe/memory_ledger.hpp"

namespace deltapipe {

struct RankMemory {
  MemoryLedger ledger;
  /// Host memory of program, libraries, tokenizer and data: resident before the stage is built.
  std::uint64_t process = 0;
  std::uint64_t loading = 0;     ///< host, in passing: while weights are read
  std::uint64_t saving = 0;      ///< host, in passing: while the model is saved
  std::uint64_t checkpoint = 0;  ///< host, in passing: the copy of the state that is being written

  /// Host memory at the peak. What nothing writes to (messages and records of samples that do not
  /// come up) is counted although it need not become resident.
  std::uint64_t host_peak() const;
  std::uint64_t device_peak() const { return ledger.device_bytes(); }
};

/// Resident memory of this process after tokenizer and data are loaded, and the memory that
/// products will add to it. Loads the library that multiplies.
std::uint64_t process_bytes(const Settings& settings);

/// `process_bytes`: that of a rank's process.
RankMemory predict_memory(const Settings& settings, const ModelLayout& model,
                          const PipelineShape& shape, int rank, std::uint64_t process_bytes);
/// Predictions for all ranks, in rank order.
std::vector<RankMemory> predict_memory(const Settings& settings, const ModelLayout& model,
                                       const PipelineShape& shape, std::uint64_t process_bytes);

/// Bytes of a rank's state in a checkpoint, once all samples have been visited; 0: the run writes
/// none.
std::uint64_t checkpoint_bytes(const Settings& settings, const ModelLayout& model,
                               const PipelineShape& shape, int rank);

/// Files that a run writes: spill files of its caches, checkpoints that are kept (milestones
/// excepted), run.h5 and the models.
struct DiskNeed {
  std::string directory;
  std::uint64_t bytes = 0;
};
/// Needs of the ranks on one machine. Space of files that will be replaced counts as free.
std::vector<DiskNeed> disk_needs(const Settings& settings, const ModelLayout& model,
                                 const PipelineShape& shape, const std::vector<int>& ranks);

/// Space that a rank's spill files occupy on a file system before training starts.
struct SpillNeed {
  int machine = 0;
  std::uint64_t file_system = 0;  ///< tells those of a machine apart
  std::uint64_t bytes = 0;        ///< beyond the files that will be replaced; 0: nothing
  std::uint64_t available = 0;    ///< bytes there, without those of the files that will be replaced
  std::string directory;
};
/// `directory` need not exist yet. Called on `machine`.
SpillNeed spill_need(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
                     int rank, int machine, const FormerSpillFiles& former = {});
/// Space that a spill file needs beyond the one of `there` bytes under its name.
std::uint64_t new_spill_bytes(const CacheNeed& need, const std::string& path, std::uint64_t there,
                              const FormerSpillFiles& former);
/// The spill files that a rank will make or continue.
std::vector<std::string> spill_files(const Settings& settings, const ModelLayout& model,
                                     const PipelineShape& shape, int rank);
/// UserError when the ranks' spill files need more disk space than a file system has left.
void check_spill_space(const std::vector<SpillNeed>& needs);

/// The nearest directory above that exists: where a run will make `directory`.
std::filesystem::path existing_parent(std::filesystem::path directory);
/// One for each directory that has less than it needs.
std::vector<std::string> warnings_of_disk(const std::vector<DiskNeed>& needs);

/// Ranks on rank 0's machine; all, where nothing is known of machines.
std::vector<int> ranks_here(std::size_t ranks, const std::vector<RankMachine>& machines);

struct RankPeak {
  std::uint64_t host = 0;
  std::uint64_t device = 0;
};
/// UserError when the ranks of a machine need more memory than it has, or those that share a device
/// more than that has.
void check_memory(std::span<const RankPeak> peaks, const std::vector<RankMachine>& machines);
/// UserError when the budget of a cache of this rank is less than its micro-batches in flight need.
void check_budgets(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
                   int rank);

/// Plan of a stage of the first replica.
StagePlan stage_plan_of(const Settings& settings, const ModelLayout& model,
                        const PipelineShape& shape, int stage);

int ranks_of(const PipelineSettings& settings);
/// Places of all stages that the rank holds, in their order.
std::vector<StagePlace> places_of_rank(const PipelineSettings& settings, int rank);

}  // namespace deltapipe
