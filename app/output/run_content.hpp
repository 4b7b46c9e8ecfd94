// SPDX-License-Identifier: BSD-3-Clause
// What run.h5 has beside steps and evaluations.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "comm/pipeline/settings.hpp"
#include "core/stage/task.hpp"

namespace deltapipe {

/// Root attributes of run.h5.
struct RunAttributes {
  PipelineSettings pipeline;
  std::vector<int> partition;  ///< blocks per stage
  std::uint64_t parameters = 0;
  std::uint64_t trained_parameters = 0;  ///< of them, not frozen
  std::string deltapipe_version;
  std::string source_revision;
  std::string deck;                           ///< the effective deck, TOML
  std::string kokkos;                         ///< Kokkos' configuration
  const Task* task = &language_model_task();  ///< whose metrics evaluations have as columns
  bool evaluates_codec = false;    ///< evaluations have columns for what went through the codecs
  bool compares_answers = false;   ///< evaluations have columns for exact match
  std::string run_id;              ///< the same after restarts
  std::string command;             ///< as it was typed
  std::string slurm_job;           ///< of this start; empty: none
  std::vector<std::string> hosts;  ///< of each rank
  int threads_per_rank = 1;
  std::string mpi;  ///< the library's version
};

/// The loss of an evaluation after some step.
struct EvaluationLoss {
  std::uint64_t step = 0;
  double loss = 0;  ///< NaN: not evaluated so
};

/// Memory of one rank, bytes.
struct RankMemoryRecord {
  std::uint64_t peak = 0;              ///< host memory, as the system counts it; 0: unknown
  std::uint64_t predicted_host = 0;    ///< as `check` predicts
  std::uint64_t predicted_device = 0;  ///< 0 where kernels run on the host
  std::uint64_t process = 0;           ///< of predicted_host: program, libraries, data
  std::vector<std::pair<std::string, std::uint64_t>> uses;  ///< of the rest: for what
};

/// A checkpoint that is complete.
struct CheckpointRecord {
  std::uint64_t step = 0;
  double blocked_seconds = 0;  ///< training waited, the rank that waited longest
  double seconds = 0;          ///< from the step's end until the last rank's state was on the disk
  std::uint64_t bytes = 0;     ///< of all ranks
};

/// A start of the run from a checkpoint.
struct RestartRecord {
  std::uint64_t step = 0;
  double time = 0;  ///< seconds since 1970, UTC
  std::string revision;
  std::string changes;  ///< of the deck, on purpose
};

enum class RunStatus { running, finished, failed, interrupted, stopped };
inline constexpr std::array<const char*, 5> kRunStatusNames = {"running", "finished", "failed",
                                                               "interrupted", "stopped"};

}  // namespace deltapipe
