// SPDX-License-Identifier: BSD-3-Clause
// Run files that earlier starts left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/output/run_content.hpp"
#include "core/files/hdf5.hpp"

namespace deltapipe {

/// A run of an earlier start, by its run file.
struct FormerRun {
  std::string run_id;  ///< empty: not recorded
  bool is_finished = false;
  bool has_checkpoints = false;  ///< some were complete, wherever they are now
  std::string deck;              ///< as in RunAttributes; empty: not there
  std::uint64_t steps = 0;       ///< rows of /steps
  std::uint64_t evaluations = 0;
  std::string slurm_job;  ///< of the last start
};
/// Returns nothing if the file is missing or cannot be read.
std::optional<FormerRun> find_run_file(const std::string& path);

/// The rows up to a step, plain or through the codecs. UserError if the file is damaged.
std::vector<EvaluationLoss> losses_of_evaluations(const std::string& path, bool through_codec,
                                                  std::uint64_t until_step);

/// One that a run continues.
class FormerFile {
 public:
  explicit FormerFile(const std::string& path);

  std::string run_id() const;
  /// Returns the configuration of Kokkos; empty: the file does not say.
  std::string kokkos() const;
  std::string started() const;
  std::optional<EvaluationLoss> best() const;
  hdf5::Group steps() const { return file_.open_group("steps"); }
  hdf5::Group evaluations() const { return file_.open_group("evaluations"); }

  /// Throws UserError unless there is a row for each of the first steps.
  void expect_steps(std::uint64_t count) const;
  std::uint64_t evaluations_until(std::uint64_t step) const;
  std::size_t rank_columns() const;
  std::size_t boundary_columns() const;
  std::vector<RestartRecord> restarts() const;
  std::vector<CheckpointRecord> checkpoints_until(std::uint64_t step) const;

 private:
  hdf5::File file_;
  std::vector<std::uint64_t> steps_;
};

}  // namespace deltapipe
