// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/run_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <map>
#include <span>

#include "app/output/former_run_file.hpp"
#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

namespace {

constexpr int format_version = 2;
/// A flush may cost this fraction of the time until the next, unless more rows wait than these.
constexpr double flush_cost = 0.01;
constexpr std::uint64_t kWaitingBytes = std::uint64_t{16} << 20;

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  DELTAPIPE_ASSERT(gmtime_r(&now, &parts) != nullptr, "the clock");
  char text[sizeof "2000-01-01T00:00:00Z"];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, length};
}

/// A run file without rows: its bytes.
std::vector<std::byte> empty_file(const std::string& path, const RunAttributes& attributes,
                                  const Rows& rows) {
  hdf5::File file = hdf5::File::create_in_memory(path);
  file.write_attribute("format_version", format_version);
  file.write_attribute("deltapipe_version", attributes.deltapipe_version);
  file.write_attribute("source_revision", attributes.source_revision);
  file.write_attribute("deck", attributes.deck);
  file.write_attribute("stages", attributes.pipeline.stages);
  file.write_attribute("replicas", attributes.pipeline.replicas);
  file.write_attribute("stages_per_rank", attributes.pipeline.stages_per_rank);
  file.write_attribute("partition", attributes.partition);
  file.write_attribute("parameters", attributes.parameters);
  std::vector<std::string> metrics;
  for (const Metric& metric : attributes.task->metrics()) metrics.emplace_back(metric.name);
  file.write_attribute("task", std::string(attributes.task->name()));
  file.write_attribute("metrics", metrics);
  file.write_attribute("trained_parameters", attributes.trained_parameters);
  file.write_attribute("kokkos", attributes.kokkos);
  if (!attributes.run_id.empty()) file.write_fixed_attribute("run_id", attributes.run_id);
  file.write_attribute("command", attributes.command);
  if (!attributes.slurm_job.empty()) file.write_fixed_attribute("slurm_job", attributes.slurm_job);
  file.write_attribute("hosts", attributes.hosts);
  file.write_attribute("threads_per_rank", attributes.threads_per_rank);
  file.write_attribute("mpi", attributes.mpi);
  file.write_attribute("started", utc_now());
  file.write_attribute("status", kRunStatusNames[static_cast<std::size_t>(RunStatus::running)]);
  rows.steps.create(file);
  rows.evaluations.create(file);
  return file.image();
}

TableWidths widths_of(const PipelineSettings& pipeline, const FormerFile* former) {
  TableWidths widths;
  widths.boundaries.entries = static_cast<std::size_t>(pipeline.stages - 1);
  widths.ranks.entries = static_cast<std::size_t>(pipeline.pipeline_ranks());
  widths.boundaries.columns =
      std::max(widths.boundaries.entries, former == nullptr ? 0 : former->boundary_columns());
  widths.ranks.columns =
      std::max(widths.ranks.entries, former == nullptr ? 0 : former->rank_columns());
  return widths;
}

/// Rows of all tables that a run may have, with one step.
Rows rows_with_a_step(const PipelineSettings& pipeline) {
  RunAttributes attributes;
  attributes.evaluates_codec = attributes.compares_answers = true;
  Rows rows(widths_of(pipeline, nullptr), attributes);
  StepRecord record;
  const auto boundaries = static_cast<std::size_t>(pipeline.stages - 1);
  for (DirectionRecord* const direction : {&record.forward, &record.backward}) {
    direction->bytes.resize(boundaries);
    for (auto* const column : {&direction->error, &direction->wire_seconds, &direction->step})
      column->resize(boundaries);
  }
  record.ranks.resize(static_cast<std::size_t>(pipeline.pipeline_ranks()));
  rows.steps.add(record);
  return rows;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint64_t RunFile::memory_bytes(const PipelineSettings& pipeline, std::uint64_t steps) {
  // The library with its caches: measured with HDF5 1.10.
  constexpr std::uint64_t kLibrary = std::uint64_t{4} << 20;
  // As many rows as the fastest runs have between two flushes; a vector may own twice its
  // elements, and a checkpoint copies them.
  constexpr std::uint64_t kMostRows = 1024, kCopies = 3;
  const Rows rows = rows_with_a_step(pipeline);
  return kLibrary + kCopies * std::min(kWaitingBytes, std::min(steps, kMostRows) * rows.bytes());
}

std::uint64_t RunFile::disk_bytes(const PipelineSettings& pipeline, std::uint64_t steps) {
  const Rows rows = rows_with_a_step(pipeline);
  constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 40;  // no disk has more
  return 2 * (rows.room() + std::min(steps, kMostSteps) * rows.bytes());
}

void RunFileSnapshot::write(const std::string& path) const {
  write_changed_copy(*base_, path, rows_.room(), [&](hdf5::File& file) { rows_.store(file); });
}

RunFile::RunFile(const std::string& path, const RunAttributes& attributes, Warn warn,
                 Clock::duration flush_interval)
    : path_(path),
      warn_(std::move(warn)),
      flush_interval_(flush_interval),
      rows_(widths_of(attributes.pipeline, nullptr), attributes) {
  begin(attributes, 0, [](hdf5::File&) {});
}

RunFile::RunFile(const std::string& path, const RunAttributes& attributes,
                 const RunFileContinuation& continuation, Warn warn, Clock::duration flush_interval)
    : RunFile(path, attributes, FormerFile(continuation.history), continuation, std::move(warn),
              flush_interval) {}

RunFile::RunFile(const std::string& path, const RunAttributes& attributes,
                 const FormerFile& history, const RunFileContinuation& continuation, Warn warn,
                 Clock::duration flush_interval)
    : path_(path),
      warn_(std::move(warn)),
      flush_interval_(flush_interval),
      rows_(widths_of(attributes.pipeline, &history), attributes) {
  const std::uint64_t step = continuation.checkpoint.step;
  history.expect_steps(step);
  const std::string kokkos = history.kokkos();
  if (warn_ && !kokkos.empty() && kokkos != attributes.kokkos)
    warn_(
        fmt::format("the run so far was computed with {}, it continues with {}: results may "
                    "differ by rounding from those of a run without a break",
                    printable(kokkos), attributes.kokkos));
  const std::uint64_t evaluations = history.evaluations_until(step);
  take_lists(history, continuation);
  rows_.restarts.add(
      {step, seconds_since_1970(), attributes.source_revision, continuation.changes});
  begin(attributes, std::max(step, evaluations), [&](hdf5::File& file) {
    rows_.steps.load(file, history.steps(), step);
    rows_.evaluations.load(file, history.evaluations(), evaluations);
    file.write_attribute("started", history.started());
  });
}

RunFile::~RunFile() {
  if (closed_) return;
  try {
    close(RunStatus::failed);
  } catch (const std::exception&) {
    // A destructor cannot report; the file on disk is the one of the last flush.
  }
}

void RunFile::begin(const RunAttributes& attributes, std::uint64_t others,
                    const ChangeOfFile& load) {
  const std::vector<std::byte> empty = empty_file(path_, attributes, rows_);
  AtomicFile file(path_);
  file.reserve(empty.size() + rows_.room(others));
  file.append(empty);
  base_ = write_file(path_, file, [&](hdf5::File& opened) {
    load(opened);
    store(opened);
  });
  rows_.clear();
  next_flush_ = Clock::now() + flush_interval_;
}

/// Rows after the checkpoint are in the newer file only; rows before it may be
/// in the checkpoint's only, if a kill came before the newer one was flushed.
void RunFile::take_lists(const FormerFile& history, const RunFileContinuation& continuation) {
  std::optional<FormerFile> last;
  try {
    last.emplace(continuation.last);
    if (last->run_id() != history.run_id()) last.reset();
    if (last) rows_.best = last->best();
  } catch (const UserError&) {
    last.reset();
  }
  std::map<double, RestartRecord> restarts;               // by time
  std::map<std::uint64_t, CheckpointRecord> checkpoints;  // by step
  const auto take = [&](const FormerFile& file) {
    for (const RestartRecord& record : file.restarts()) restarts.emplace(record.time, record);
    for (const CheckpointRecord& record : file.checkpoints_until(continuation.checkpoint.step - 1))
      checkpoints.emplace(record.step, record);
  };
  if (last) take(*last);
  take(history);
  for (const auto& [time, record] : restarts) rows_.restarts.add(record);
  for (const auto& [step, record] : checkpoints) rows_.checkpoints.add(record);
  rows_.checkpoints.add(continuation.checkpoint);
  if (!rows_.best) rows_.best = history.best();
}

template <typename Record>
void RunFile::append_to(Table<Record>& table, const Record& record) {
  DELTAPIPE_ASSERT(!closed_, path_);
  table.add(record);
  const bool is_full = !warned_ && rows_.bytes() >= kWaitingBytes;
  if (is_full || Clock::now() >= next_flush_) flush();
}

void RunFile::append(const StepRecord& record) {
  append_to(rows_.steps, record);
}

void RunFile::append(const EvaluationRecord& record) {
  append_to(rows_.evaluations, record);
}

void RunFile::append(const CheckpointRecord& record) {
  append_to(rows_.checkpoints, record);
}

void RunFile::flush() {
  try {
    replace_file();
    warned_ = false;
  } catch (const UserError& error) {
    if (!std::exchange(warned_, true) && warn_)
      warn_(std::string(error.what()) +
            "; the run continues, what run.h5 lacks is kept in memory and written later");
  }
}

void RunFile::close(RunStatus status, const std::string& reason) {
  end_ = End{status, reason, utc_now()};
  replace_file();
  closed_ = true;
}

void RunFile::replace_file() {
  const TimePoint begin = Clock::now();
  // Set first: after a failure (full disk) the next attempt waits as well.
  next_flush_ = begin + flush_interval_;
  base_ = write_changed_copy(*base_, path_, rows_.room() + room_of_memory(),
                             [&](hdf5::File& file) { store(file); });
  rows_.clear();
  memory_.clear();
  const TimePoint end = Clock::now();
  const auto pause = std::chrono::duration_cast<Clock::duration>((end - begin) / flush_cost);
  next_flush_ = end + std::max(flush_interval_, pause);
}

void RunFile::store(hdf5::File& file) const {
  rows_.store(file);
  if (!memory_.empty()) store_memory(file);
  if (!end_) return;
  file.write_attribute("status", kRunStatusNames[static_cast<std::size_t>(end_->status)]);
  if (end_->status == RunStatus::finished) file.write_attribute("finished", 1);
  if (!end_->reason.empty()) file.write_attribute("reason", end_->reason);
  file.write_attribute("stopped", end_->time);
}

void RunFile::store_memory(hdf5::File& file) const {
  hdf5::Group group = file.create_group("memory");
  const auto write = [&](const std::string& name, const char* description, const auto& bytes_of) {
    std::vector<std::uint64_t> bytes;
    for (const RankMemoryRecord& rank : memory_) bytes.push_back(bytes_of(rank));
    hdf5::Dataset dataset =
        group.create_dataset(name, hdf5::element_type_of<std::uint64_t>(), {0},
                             {.chunk = {std::max<std::uint64_t>(1, bytes.size())}});
    dataset.write_attribute("unit", "B");
    dataset.write_attribute("description", description);
    dataset.append(std::span<const std::uint64_t>(bytes));
  };
  using R = RankMemoryRecord;
  write("peak", "highest resident memory of each rank", [](const R& r) { return r.peak; });
  write("predicted", "predicted peak of each rank's host memory",
        [](const R& r) { return r.predicted_host; });
  write("predicted_device", "predicted memory of each rank on its device",
        [](const R& r) { return r.predicted_device; });
  write("process", "of the prediction: program, libraries, tokenizer and data",
        [](const R& r) { return r.process; });
  for (std::size_t use = 0; use < memory_.front().uses.size(); ++use)
    write(memory_.front().uses[use].first, "of the prediction: bytes of this use",
          [use](const R& r) { return r.uses[use].second; });
}

std::uint64_t RunFile::room_of_memory() const {
  constexpr std::uint64_t kRoomOfUse = std::uint64_t{16} << 10;
  return memory_.empty() ? 0
                         : (4 + memory_.front().uses.size()) *
                               (kRoomOfUse + memory_.size() * sizeof(std::uint64_t));
}

}  // namespace deltapipe
