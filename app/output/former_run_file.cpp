// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/former_run_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <sstream>

#include "comm/pipeline/step_record.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace {

template <typename T>
std::vector<T> column_of(const hdf5::Group& group, const std::string& name) {
  const hdf5::Dataset dataset = group.open_dataset(name);
  dataset.expect_stored();
  std::vector<T> values(dataset.rows() * dataset.row_elements());
  dataset.read(0, std::span<T>(values));
  return values;
}

}  // namespace

FormerFile::FormerFile(const std::string& path)
    : file_(hdf5::File::open_read_only(path)),
      steps_(column_of<std::uint64_t>(file_.open_group("steps"), "step")) {}

std::string FormerFile::run_id() const {
  return file_.find_plain_attribute("run_id").value_or("");
}

std::string FormerFile::kokkos() const {
  return file_.has_attribute("kokkos") ? file_.read_string_attribute("kokkos") : "";
}

std::string FormerFile::started() const {
  return file_.read_string_attribute("started");
}

std::optional<EvaluationLoss> FormerFile::best() const {
  if (!file_.has_attribute("best_step") || !file_.has_attribute("best_loss")) return std::nullopt;
  return EvaluationLoss{file_.read_attribute<std::uint64_t>("best_step"),
                        file_.read_attribute<double>("best_loss")};
}

void FormerFile::expect_steps(std::uint64_t count) const {
  for (std::uint64_t row = 0; row < count; ++row)
    if (row >= steps_.size() || steps_[row] != row + 1)
      throw UserError(
          {.what = fmt::format("the run file of a checkpoint lacks step {} of {}", row + 1, count),
           .file = file_.file_name(),
           .remedy = "start from another checkpoint"});
}

std::uint64_t FormerFile::evaluations_until(std::uint64_t step) const {
  const std::vector<std::uint64_t> at = column_of<std::uint64_t>(evaluations(), "step");
  return static_cast<std::uint64_t>(std::upper_bound(at.begin(), at.end(), step) - at.begin());
}

std::size_t FormerFile::rank_columns() const {
  return steps().open_dataset(kRankColumns[0].name).row_elements();
}

std::size_t FormerFile::boundary_columns() const {
  return steps().open_dataset("forward_bytes").row_elements();
}

std::vector<RestartRecord> FormerFile::restarts() const {
  std::vector<RestartRecord> records;
  if (!file_.exists("restarts")) return records;
  const hdf5::Group group = file_.open_group("restarts");
  const auto steps = column_of<std::uint64_t>(group, "step");
  const auto times = column_of<double>(group, "time");
  std::istringstream revisions(group.find_plain_attribute("revisions").value_or(""));
  std::istringstream changes(group.find_plain_attribute("changes").value_or(""));
  for (std::size_t i = 0; i < std::min(steps.size(), times.size()); ++i) {
    records.push_back({steps[i], times[i], "", ""});
    std::getline(revisions, records.back().revision);
    std::getline(changes, records.back().changes);
  }
  return records;
}

std::vector<CheckpointRecord> FormerFile::checkpoints_until(std::uint64_t step) const {
  std::vector<CheckpointRecord> records;
  if (!file_.exists("checkpoints")) return records;
  const hdf5::Group group = file_.open_group("checkpoints");
  const auto steps = column_of<std::uint64_t>(group, "step");
  const auto bytes = column_of<std::uint64_t>(group, "bytes");
  const auto blocked = column_of<double>(group, "blocked_seconds");
  const auto seconds = column_of<double>(group, "seconds");
  for (std::size_t i = 0;
       i < std::min({steps.size(), bytes.size(), blocked.size(), seconds.size()}); ++i)
    if (steps[i] <= step) records.push_back({steps[i], blocked[i], seconds[i], bytes[i]});
  return records;
}

std::optional<FormerRun> find_run_file(const std::string& path) {
  try {
    const hdf5::File file = hdf5::File::open_read_only(path);
    const auto rows = [&](const char* table) -> std::uint64_t {
      return file.exists(table) ? file.open_group(table).open_dataset("step").rows() : 0;
    };
    return FormerRun{
        file.find_plain_attribute("run_id").value_or(""),
        file.find_plain_attribute("finished") == "1",
        rows("checkpoints") > 0,
        file.has_attribute("deck") ? file.read_string_attribute("deck") : std::string(),
        rows("steps"),
        rows("evaluations"),
        file.find_plain_attribute("slurm_job").value_or("")};
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::vector<EvaluationLoss> losses_of_evaluations(const std::string& path, bool through_codec,
                                                  std::uint64_t until_step) {
  const hdf5::File file = hdf5::File::open_read_only(path);
  const hdf5::Group group = file.open_group("evaluations");
  const auto steps = column_of<std::uint64_t>(group, "step");
  const auto losses = column_of<double>(group, through_codec ? "codec_loss" : "loss");
  std::vector<EvaluationLoss> found;
  for (std::size_t i = 0; i < std::min(steps.size(), losses.size()); ++i)
    if (steps[i] <= until_step) found.push_back({steps[i], losses[i]});
  return found;
}

}  // namespace deltapipe
