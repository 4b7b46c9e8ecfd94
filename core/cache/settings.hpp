// SPDX-License-Identifier: BSD-3-Clause
// Settings for the memories m(s) of AQ-SGD and ef21 and for the errors of error feedback.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "core/codec/settings.hpp"

namespace deltapipe {

struct CacheSettings {
  MemoryStorage storage = MemoryStorage::fp16;
  /// Budget per rank and boundary end; 0: all records in memory, without a spill file.
  std::uint64_t budget_bytes = 0;
  std::string directory;  ///< directory of spill files; empty: the output directory
  int prefetch = 8;       ///< number of micro-batches to read ahead
  bool keep = false;      ///< keeps spill files after the run
  /// Visits of a sample between comparisons of its memory at both ends; 0: never.
  std::uint64_t verify_every = 64;

  bool operator==(const CacheSettings&) const = default;
};

/// Run to which a spill file belongs.
struct CacheOwner {
  std::string run_id;
  std::string directory = {};    ///< its output directory
  std::string checkpoints = {};  ///< its directory of checkpoints
  /// Runs in the same output directory that this run replaces. Not stored in files.
  std::set<std::string> former_runs = {};
};

/// Use of spill files by checkpoints.
struct CacheGenerations {
  int kept = 0;  ///< checkpoints that refer to a file's records at the same time; 0: none
  /// Keeps files until the run is finished; otherwise they are removed when it ends.
  bool keep_files = false;
  /// Largest number of samples that a cache sees between two checkpoints; 0: any number.
  std::uint64_t visits = 0;
  /// Paths of the files to which the checkpoint refers from which the run resumes; they are
  /// reopened.
  std::set<std::string> referred;
  /// Reopens all existing files of the run. No checkpoint refers to them, so a defect of a file
  /// costs only first visits.
  bool resyncs = false;
  CacheOwner owner;
};

}  // namespace deltapipe
