// SPDX-License-Identifier: BSD-3-Clause
// run.h5, the record of a run. The file on disk is always complete and closed, so that
// h5py.File(path) works while the job runs and after it was killed: new rows wait in memory, and at
// intervals a copy of the file gets them and replaces it. Memory does not grow with the file.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/output/run_content.hpp"
#include "app/output/run_tables.hpp"
#include "app/output/written_file.hpp"
#include "core/base/observe/trace.hpp"

namespace deltapipe {

class FormerFile;

/// Point from which a run file continues.
struct RunFileContinuation {
  CheckpointRecord checkpoint;  ///< of the restart
  /// Has all rows up to its step; later ones are left out.
  std::string history;
  /// The run file as the last start left it, for the lists of restarts and checkpoints and for the
  /// best model, which may be of a later step than the checkpoint; it need not be there, and
  /// `history` is taken when it is not of the same run.
  std::string last;
  /// Settings that this start changes on purpose: "KEY = OLD -> NEW, ..."
  std::string changes = {};
};

/// A run file as it is now, for a checkpoint. Any thread may write it while the run continues.
class RunFileSnapshot {
 public:
  RunFileSnapshot(WrittenFilePtr base, Rows rows)
      : base_(std::move(base)), rows_(std::move(rows)) {}

  /// About the size of the file.
  std::uint64_t bytes() const { return base_->bytes() + rows_.bytes(); }
  /// Replaces `path` atomically.
  void write(const std::string& path) const;

 private:
  WrittenFilePtr base_;
  Rows rows_;
};

/// Not thread-safe. append() may flush; a flush is at most every flush_interval and at
/// most 1 % of the time, unless 16 MiB of rows wait. A flush that fails (full disk,
/// input/output error) leaves the old file, keeps the rows in memory and is tried again later:
/// training continues, and only close() fails for good.
class RunFile {
 public:
  /// Called with the message of the first flush that fails, and again when one fails after others
  /// have succeeded.
  using Warn = std::function<void(const std::string& message)>;

  /// About the most that an open run file uses: HDF5 and waiting rows, which are bounded.
  static std::uint64_t memory_bytes(const PipelineSettings& pipeline, std::uint64_t steps);
  /// About the most that a run of this length needs on the disk: each new file is written beside
  /// the one that it replaces, and takes room for the rows to come.
  static std::uint64_t disk_bytes(const PipelineSettings& pipeline, std::uint64_t steps);

  /// Writes the first (empty) file, so that an unwritable place shows before training: UserError.
  RunFile(const std::string& path, const RunAttributes& attributes, Warn warn = {},
          Clock::duration flush_interval = std::chrono::seconds(5));
  /// A file that continues the rows of an earlier one, and notes the restart. Of another layout,
  /// columns are as wide as the widest layout; what a row lacks is 0, of errors NaN. UserError when
  /// the history is damaged, has gaps or has no row of the step.
  RunFile(const std::string& path, const RunAttributes& attributes,
          const RunFileContinuation& continuation, Warn warn = {},
          Clock::duration flush_interval = std::chrono::seconds(5));
  /// Marks the run failed unless close() came before; ignores failures.
  ~RunFile();
  RunFile(const RunFile&) = delete;
  RunFile& operator=(const RunFile&) = delete;

  void append(const StepRecord& record);
  void append(const EvaluationRecord& record);
  void append(const CheckpointRecord& record);
  /// Attributes best_step and best_loss, in the file when it is flushed.
  void write_best(const EvaluationLoss& best) { rows_.best = best; }
  /// As written, also by an earlier start; empty: not yet.
  const std::optional<EvaluationLoss>& best() const { return rows_.best; }
  /// With everything appended.
  RunFileSnapshot snapshot() const { return {base_, rows_}; }
  /// One entry per rank, once, before close().
  void write_memory(const std::vector<RankMemoryRecord>& ranks) { memory_ = ranks; }
  /// The file on disk now holds everything appended, unless that fails, as above.
  void flush();
  /// The last flush, with the run's status and, where there is more to say, the reason of its end.
  /// UserError when the file cannot be written; a later close() can still succeed, and one that
  /// knows better writes another status and reason.
  void close(RunStatus status = RunStatus::finished, const std::string& reason = {});

 private:
  struct End {
    RunStatus status;
    std::string reason, time;
  };

  RunFile(const std::string& path, const RunAttributes& attributes, const FormerFile& history,
          const RunFileContinuation& continuation, Warn warn, Clock::duration flush_interval);

  template <typename Record>
  void append_to(Table<Record>& table, const Record& record);
  void begin(const RunAttributes& attributes, std::uint64_t others, const ChangeOfFile& load);
  void take_lists(const FormerFile& history, const RunFileContinuation& continuation);
  void store(hdf5::File& file) const;
  void store_memory(hdf5::File& file) const;
  std::uint64_t room_of_memory() const;
  void replace_file();

  std::string path_;
  Warn warn_;
  Clock::duration flush_interval_;
  Rows rows_;
  std::optional<End> end_;
  std::vector<RankMemoryRecord> memory_;  ///< until it is in the file
  WrittenFilePtr base_;
  TimePoint next_flush_{};
  bool closed_ = false;
  bool warned_ = false;
};

}  // namespace deltapipe
