// SPDX-License-Identifier: BSD-3-Clause
// run.h5, the record of a run. The file on disk is always complete and closed, so that
// h5py.File(path) works while the job runs and after it was killed: new rows wait in memory, and at
// intervals a copy of the file gets them and replaces it. Memory does not grow with the file.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/training/evaluation_record.hpp"
#include "comm/pipeline/step_record.hpp"

namespace deltapipe {

struct RunLayout {
  int stages = 1;
  int replicas = 1;
  int stages_per_rank = 1;
  int boundaries() const { return stages - 1; }
  /// Ranks of a pipeline.
  int ranks() const { return stages / stages_per_rank; }
};

/// Root attributes of run.h5.
struct RunAttributes {
  RunLayout layout;
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

enum class RunStatus { running, finished, failed, interrupted, stopped };

/// Content of the run file that an earlier start of a run left.
struct RunFileSummary {
  bool is_finished = false;
  std::string run_id;            ///< empty: not recorded
  bool has_checkpoints = false;  ///< some were complete
  std::string deck;              ///< as in RunAttributes; empty: not there
  std::uint64_t steps = 0;       ///< rows of /steps
  std::uint64_t evaluations = 0;
  std::string slurm_job;  ///< of the last start
};
/// Returns nothing if the file is missing or cannot be read.
std::optional<RunFileSummary> find_run_file(const std::string& path);

/// The rows up to a step, plain or through the codecs. UserError if the file is damaged.
std::vector<EvaluationLoss> losses_of_evaluations(const std::string& path, bool through_codec,
                                                  std::uint64_t until_step);

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
  /// About the size of the file.
  std::uint64_t bytes() const;
  /// Replaces `path` atomically.
  void write(const std::string& path) const;

 private:
  friend class RunFile;
  struct State;
  explicit RunFileSnapshot(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
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
  static std::uint64_t memory_bytes(const RunLayout& layout, std::uint64_t steps);
  /// About the most that a run of this length needs on the disk: each new file is written beside
  /// the one that it replaces, and takes room for the rows to come.
  static std::uint64_t disk_bytes(const RunLayout& layout, std::uint64_t steps);

  /// Writes the first (empty) file, so that an unwritable place shows before training: UserError.
  RunFile(const std::string& path, const RunAttributes& attributes, Warn warn = {},
          std::chrono::duration<double> flush_interval = std::chrono::seconds(5));
  /// A file that continues the rows of an earlier one, and notes the restart. Of another layout,
  /// columns are as wide as the widest layout; what a row lacks is 0, of errors NaN. UserError when
  /// the history is damaged, has gaps or has no row of the step.
  RunFile(const std::string& path, const RunAttributes& attributes,
          const RunFileContinuation& continuation, Warn warn = {},
          std::chrono::duration<double> flush_interval = std::chrono::seconds(5));
  /// Marks the run failed unless close() came before; ignores failures.
  ~RunFile();
  RunFile(RunFile&&) noexcept;
  RunFile& operator=(RunFile&&) = delete;

  void append(const StepRecord& record);
  void append(const EvaluationRecord& record);
  void append(const CheckpointRecord& record);
  /// Attributes best_step and best_loss, in the file when it is flushed.
  void write_best(const EvaluationLoss& best);
  /// As written, also by an earlier start; empty: not yet.
  std::optional<EvaluationLoss> best() const;
  /// With everything appended.
  RunFileSnapshot snapshot();
  /// One entry per rank, once, before close().
  void write_memory(const std::vector<RankMemoryRecord>& ranks);
  /// The file on disk now holds everything appended, unless that fails, as above.
  void flush();
  /// The last flush, with the run's status and, where there is more to say, the reason of its end.
  /// UserError when the file cannot be written; a later close() can still succeed, and one that
  /// knows better writes another status and reason.
  void close(RunStatus status = RunStatus::finished, const std::string& reason = {});

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace deltapipe
