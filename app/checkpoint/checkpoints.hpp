// SPDX-License-Identifier: BSD-3-Clause
// Checkpoints of a training run while it trains. Between two steps every rank copies its state to
// host memory; a separate thread writes the copy and flushes it to the disk while training
// continues. What ranks have to tell each other travels in the sum over all ranks that ends a step,
// so that all act after the same step: when a checkpoint is due by time, that a signal or the time
// limit asks for an end, whose files are on the disk. When those of all ranks are, the one that
// keeps the directory writes the marker, and then older checkpoints go.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint_files.hpp"
#include "app/checkpoint/time_limit.hpp"
#include "app/deck/settings.hpp"
#include "app/output/run_file.hpp"
#include "comm/transport/common_stop.hpp"
#include "comm/transport/process_grid.hpp"
#include "comm/transport/progress_thread.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/base/state/state.hpp"
#include "core/cache/activation_cache.hpp"

namespace deltapipe {

/// UserError when a directory that the deck names has checkpoints: those of another run, which a
/// new one must not mix with its own.
void check_for_other_runs(const std::string& directory);

/// Record of a complete checkpoint, for the run file.
CheckpointRecord record_of(const CheckpointMarker& marker);

class CheckpointJob;

class Checkpoints {
 public:
  /// `marker`: all that checkpoints of this run have in common. `keeps_directory`: of the ranks
  /// that share the directory, this one completes and removes checkpoints. `caches`: this rank's
  /// whose files checkpoints refer to; they outlive this. The time limit counts from `start`.
  Checkpoints(const CheckpointSettings& settings, const std::string& directory,
              const ProcessGrid& grid, ProgressThread& progress, const CheckpointMarker& marker,
              bool keeps_directory, std::vector<ActivationCache*> caches, TimePoint start);
  /// Waits for what is being written, which stays without a marker.
  ~Checkpoints();
  Checkpoints(const Checkpoints&) = delete;
  Checkpoints& operator=(const Checkpoints&) = delete;

  static constexpr std::size_t kNotes = kStopSignals.size() + 4;
  using Notes = std::array<double, kNotes>;
  /// Values that this rank contributes at the end of a step, which an evaluation may follow, and
  /// the sums over all ranks. `steps_to_stop`: steps until the run can stop again, above 1 between
  /// outer steps of replicas.
  Notes notes(bool evaluation_follows, std::uint64_t steps_to_stop = 1);
  void hear(std::span<const double> sums);

  /// Size of a rank's first checkpoint and steps of an evaluation, for the time limit.
  void expect(std::uint64_t bytes, std::uint64_t evaluation_steps) {
    times_.set_checkpoint_bytes(bytes);
    times_.set_evaluation_steps(evaluation_steps);
  }
  /// Records the duration of an evaluation.
  void evaluated(double seconds);
  /// The run resumes from this checkpoint, the last one that is complete.
  void go_on_from(const CheckpointMarker& marker);

  /// True if a checkpoint is due after `step` steps; the same on all ranks.
  bool is_due(std::uint64_t step) const;
  /// True if the checkpoint of `step` is a milestone, with copies of the spill files' records; the
  /// same on all ranks.
  bool copies_files(std::uint64_t step) const;
  /// Reason for the run to stop, such as "SIGTERM"; empty: it continues.
  const std::string& stop_reason() const { return stop_reason_; }

  /// Collective, between two steps: copies the state and starts to write it, once the former
  /// checkpoint is complete. `run_file`: on rank 0.
  void begin(std::uint64_t step, std::span<const StatePart> parts, RunFile* run_file);
  /// Collective, after every step: advances as far as possible without waiting. What is
  /// complete is noted in the run file, on rank 0.
  void advance(RunFile* run_file);
  /// Collective: waits until the checkpoint under way, if any, is complete or given up.
  void finish(RunFile* run_file);
  /// Collective: a signal has asked for an end, which is the reason to stop then, or, with
  /// `evaluation_follows`, the time limit leaves no time for one.
  bool is_asked_to_stop(bool evaluation_follows);
  /// On all ranks, before each step of an evaluation. True: all of them stop before that step, for
  /// the signal or, with `obeys_limit`, the time limit that stop_reason() then names. Costs
  /// messages only when one asks.
  bool stops_evaluation(bool obeys_limit);
  /// Collective: from now on signals end the run at once. True: one has asked for an end before.
  bool end_training();
  /// Step of the last complete checkpoint, or nullopt.
  std::optional<std::uint64_t> last_complete() const { return last_complete_; }
  /// After a stop by the time limit: the seconds of an evaluation that used up most of it, else 0.
  double limiting_evaluation() const;
  /// True if this start has completed a checkpoint.
  bool has_progressed() const { return totals_.count > 0; }
  struct Totals {
    std::uint64_t count = 0, bytes = 0;
    double blocked_seconds = 0;
  };
  const Totals& totals() const { return totals_; }

 private:
  enum class Phase { idle, writing, marking, removing };

  void exchange_and_mark();
  void note_complete(RunFile* run_file);
  void start_removal();
  void end_removal();
  void give_up();
  void step_phase(bool failed, RunFile* run_file);
  void warn(const std::string& what) const;
  void let_go(std::uint64_t step);
  void await_job();
  bool ends_soon() const;
  void end_process(int signal) const;
  std::string waited_for() const;
  std::string unfinished() const;
  void set_notice() const;
  std::string reason_of(std::uint64_t code) const;

  const CheckpointSettings& settings_;
  std::string directory_;
  const ProcessGrid& grid_;
  ProgressThread& progress_;
  CheckpointMarker marker_;
  bool keeps_directory_;
  CommonStop evaluation_stop_;
  TimeLimit limit_;
  ExpectedTimes times_;
  TimePoint last_begin_, last_notes_;
  std::uint64_t most_steps_to_stop_ = 1;
  std::optional<OrderlyStop> orderly_stop_{std::in_place};
  std::string stop_reason_;
  bool is_due_by_time_ = false;
  bool all_done_ = false, some_failed_ = false;  ///< heard of the phase

  Phase phase_ = Phase::idle;
  std::unique_ptr<CheckpointJob> job_;
  double blocked_seconds_ = 0, seconds_ = 0;
  std::optional<std::uint64_t> last_complete_;
  std::vector<ActivationCache*> caches_;
  std::deque<std::uint64_t> referring_;  ///< checkpoints that stay and refer to files, oldest first
  Totals totals_;
};

}  // namespace deltapipe
