// SPDX-License-Identifier: BSD-3-Clause
// Where the memories m(s) of delta codecs and the errors of quantize with error feedback live.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "core/codec/settings.hpp"

namespace deltapipe {

struct CacheSettings {
  MemoryStorage storage = MemoryStorage::fp16;
  std::uint64_t budget_bytes = 0;  ///< per rank and boundary end; 0: all in memory, nothing spills
  std::string directory;           ///< for spill files; empty: the output directory
  int prefetch = 8;                ///< micro-batches read ahead
  bool keep = false;               ///< spill files stay after the run
  /// A sample's memory at both ends is compared at every so many of its visits; 0: never.
  std::uint64_t verify_every = 64;

  bool operator==(const CacheSettings&) const = default;
};

/// The run that a spill file belongs to.
struct CacheOwner {
  std::string run_id;
  std::string directory = {};    ///< its output directory
  std::string checkpoints = {};  ///< where it puts checkpoints
  /// Runs in the same output directory that this one takes the place of. Files do not say it.
  std::set<std::string> former_runs = {};
};

/// How checkpoints use spill files.
struct CacheGenerations {
  int kept = 0;             ///< refer to a file's records at a time; 0: none do
  bool keep_files = false;  ///< until the run is finished; else they go whenever it ends
  /// Samples that a cache sees between two of them, at most; 0: any number.
  std::uint64_t visits = 0;
  /// Paths: the checkpoint that the run goes on from refers to these, which are reopened.
  std::set<std::string> referred;
  /// All files of the run that are there are reopened. No checkpoint refers to them: what is wrong
  /// with one costs first visits.
  bool resyncs = false;
  CacheOwner owner;
};

}  // namespace deltapipe
