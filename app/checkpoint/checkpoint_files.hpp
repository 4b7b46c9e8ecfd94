// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints on disk: a directory for each,
//   step-000000123/rank-0.h5 ...   the state of every rank (core/files/state_file.hpp)
//   step-000000123/run.h5          the run file as it was
//   step-000000123/complete.json   the marker, written last
// The directory has a temporary name until it is complete and its files are flushed to the disk.
// The marker has the size and XXH3 of each file, and its own XXH3.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace deltapipe {

struct CheckpointFile {
  std::string name;  ///< in the checkpoint's directory
  std::uint64_t bytes = 0;
  std::uint64_t hash = 0;  ///< XXH3, 64 bits

  bool operator==(const CheckpointFile&) const = default;
};

/// Content of complete.json.
struct CheckpointMarker {
  std::uint64_t step = 0;        ///< completed steps
  std::string run_id;            ///< the run that wrote it; the same after restarts
  std::string output_directory;  ///< of that run, absolute
  bool milestone = false;
  bool with_memories = true;  ///< false: without what boundaries remember
  int stages = 1;
  int replicas = 1;
  int stages_per_rank = 1;
  std::vector<int> partition;  ///< blocks of each stage
  std::string deltapipe_version;
  std::string source_revision;
  std::string deck;  ///< with all defaults, TOML
  std::uint64_t train_fingerprint = 0;
  std::uint64_t validation_fingerprint = 0;
  double blocked_seconds = 0, seconds = 0;  ///< as CheckpointRecord has them
  std::vector<CheckpointFile> files;

  int pipeline_ranks() const { return stages / stages_per_rank; }
  int ranks() const { return pipeline_ranks() * replicas; }
  /// Total size of all files.
  std::uint64_t bytes() const;
  /// UserError if there is no such file.
  const CheckpointFile& file(const std::string& name) const;

  bool operator==(const CheckpointMarker&) const = default;
};

/// "step-000000123"
std::string checkpoint_name(std::uint64_t step);
/// "rank-0.h5"
std::string rank_file_name(int rank);
inline constexpr const char* kRunFileCopy = "run.h5";

/// Name of a checkpoint that is being written; the same for all that know the run, so that ranks
/// which share a disk write into one directory. remove_leftovers() finds what a killed run left.
std::string unfinished_checkpoint(const std::string& directory, const std::string& run_id,
                                  std::uint64_t step);

/// The steps for which a checkpoint exists by its name, in ascending order.
std::vector<std::uint64_t> checkpoint_steps(const std::string& directory);

/// Reads the marker in the directory of one checkpoint. UserError: missing, damaged, of another
/// version of the format, or of another step than the directory's name says.
CheckpointMarker read_marker(const std::string& checkpoint);

/// Returns the marker of the checkpoint of that step; nothing where read_marker() throws.
std::optional<CheckpointMarker> find_marker(const std::string& directory, std::uint64_t step);

/// Size and hash of a file that was written, which is on the disk when this returns. UserError when
/// that fails.
CheckpointFile secure_file(const std::string& directory, const std::string& name);

/// Throws UserError unless the file exists and has the marker's size.
void check_file_size(const std::string& checkpoint, const CheckpointFile& file);
/// UserError unless the file is there as the marker says; reads all of it. `look` is called after
/// each piece and may throw.
void check_file(const std::string& checkpoint, const CheckpointFile& file,
                const std::function<void()>& look = {});

/// Writes the marker into `unfinished`, whose files are on the disk, and gives the directory its
/// name. A checkpoint of the same step goes first.
void complete_checkpoint(const std::string& directory, const std::string& unfinished,
                         const CheckpointMarker& marker);

/// Removes the checkpoint of that step: first its name, then its files. Returns what cannot be
/// removed, itself or the rest of it under another name; empty: nothing remains.
std::string remove_checkpoint(const std::string& directory, std::uint64_t step);

}  // namespace deltapipe
