// SPDX-License-Identifier: BSD-3-Clause
// An earlier run file that a run continues.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/output/run_file.hpp"
#include "app/output/run_tables.hpp"
#include "core/files/hdf5.hpp"

namespace deltapipe {

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
