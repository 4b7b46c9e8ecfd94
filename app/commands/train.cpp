// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/checkpoint/checkpoint_removal.hpp"
#include "app/checkpoint/checkpoints.hpp"
#include "app/checkpoint/run_spill_files.hpp"
#include "app/commands/commands.hpp"
#include "app/commands/train_start.hpp"
#include "app/output/progress_display.hpp"
#include "app/output/run_records.hpp"
#include "app/output/save_model.hpp"
#include "app/output/training_report.hpp"
#include "app/preflight/target_warnings.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/session.hpp"
#include "app/training/training_run.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/trace.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"

namespace deltapipe {

namespace {

/// Damaged records were forgotten; the next step learns from these samples as at their first visit.
void warn_of_damaged_records(const StartedRun& run) {
  if (run.grid.rank() == 0)
    std::fprintf(stderr,
                 "\ndeltapipe: warning: records of activation caches in %s are damaged: both "
                 "ends reset these samples (/steps/cache_damaged counts them)\n",
                 cache_directory(run.settings).c_str());
}

/// Steps, evaluations and checkpoints of a run, to its end.
class TrainingLoop {
 public:
  explicit TrainingLoop(StartedRun& run)
      : run_(run),
        settings_(run.settings),
        progress_(run.progress),
        training_(*run.training),
        checkpoints_(run.checkpoints.get()),
        error_watch_(run.settings) {
    observer_.forgot_records = [this] { warn_of_damaged_records(run_); };
    observer_.done = [this](const StepRecord& record) { note(record); };
    if (checkpoints_ == nullptr) return;
    observer_.notes = [this] {
      const std::uint64_t done = steps_done() + 1;
      const Checkpoints::Notes notes =
          checkpoints_->notes(evaluates_after(done), training_.steps_to_agreement(done));
      return std::vector<double>(notes.begin(), notes.end());
    };
    observer_.hear = [this](std::span<const double> sums) { checkpoints_->hear(sums); };
  }

  TrainingEnd run() {
    training_.start();
    if (evaluation_is_missing() && !evaluate()) return stop_with_checkpoint();
    while (steps_done() < training_.steps() && !is_out_of_patience()) {
      progress_.check();
      step();
      // Between outer steps replicas differ, and a run can neither stop nor be evaluated.
      const bool agree = training_.replicas_agree(steps_done());
      if (agree && checkpoints_ && !checkpoints_->stop_reason().empty())
        return stop_with_checkpoint();
      if (checkpoints_) checkpoint_after_step(agree);
      if (!agree) continue;
      if (evaluates_after(steps_done()) && steps_done() < training_.steps() && !evaluate())
        return stop_with_checkpoint();
    }
    if (steps_done() < training_.steps()) end_early();
    if (checkpoints_ && checkpoint_at_end()) return stop();
    // An evaluation that fails or is interrupted does not lose the model.
    if (settings_.output.save_model) {
      const TrainingRun::Pause pause(training_);
      save(model_directory(settings_));
    }
    // The evaluation that ends training early is the last one.
    if (training_.totals().evaluated != steps_done() && !evaluate()) return stop_with_checkpoint();
    if (checkpoints_) end_checkpoints();
    training_.end();
    finish();
    return TrainingEnd::finished;
  }

 private:
  std::uint64_t steps_done() const { return training_.totals().steps; }

  bool evaluates_after(std::uint64_t steps_done) const {
    const std::uint64_t every = settings_.training.evaluate_every;
    return steps_done % (every > 0 ? every : training_.planner().steps_per_epoch()) == 0;
  }

  /// A checkpoint is written before the evaluation after the same step.
  bool evaluation_is_missing() const {
    if (steps_done() == 0) return settings_.training.evaluate_at_start;
    return steps_done() < training_.steps() && evaluates_after(steps_done()) &&
           training_.totals().evaluated != steps_done();
  }

  bool is_out_of_patience() const {
    return settings_.training.patience > 0 &&
           run_.course.all.since() >= settings_.training.patience;
  }

  void step() {
    if (settings_.output.trace_step == steps_done() + 1) {
      barrier(progress_, run_.grid.world());
      TraceRecorder::instance().start();
    }
    try {
      training_.step(observer_);
    } catch (const Diverged& diverged) {
      throw UserError({.what = diverged.mistake().what,
                       .value = diverged.mistake().value,
                       .remedy = "lower training.optimizer.learning_rate or add warm-up steps" +
                                 remedy_of_codecs() + way_back()});
    }
  }

  /// Returns the settings of codecs that may make training diverge.
  std::string remedy_of_codecs() const {
    std::string remedy;
    const auto loses = [](const CodecSettings& codec) { return codec.kind != CodecKind::none; };
    if (settings_.pipeline.stages > 1 && (loses(settings_.forward) || loses(settings_.backward)))
      remedy += ", or use more bits at the boundaries";
    const ReplicaSettings& replicas = settings_.replicas;
    if (settings_.pipeline.replicas > 1 && has_errors(replicas.codec))
      remedy += replicas.codec == ReplicaCodec::topk ? ", or a larger replicas.topk"
                                                     : ", or a larger replicas.bits";
    if (replicas.local_steps > 0) remedy += ", or a smaller replicas.outer_learning_rate";
    return remedy;
  }

  /// Returns the command that resumes from the last checkpoint after a divergence.
  std::string way_back() const {
    const auto step = checkpoints_ ? checkpoints_->last_complete() : std::nullopt;
    if (!step) return "";
    return fmt::format(
        "; to continue from the checkpoint of step {} with another rate, repeat the command with "
        "checkpoint.change_optimizer=true and training.optimizer.learning_rate=RATE",
        *step);
  }

  /// A step is done.
  void note(const StepRecord& record) {
    if (settings_.output.trace_step == record.step) {
      const TrainingRun::Pause pause(training_);
      write_trace(progress_, TraceRecorder::instance().stop(),
                  settings_.output.directory + "/trace.json");
      progress_.take_collective_bytes();  // those of gathering the trace belong to no step
    }
    if (run_.grid.rank() == 0)
      for (const std::string& warning : error_watch_.look_at(record)) {
        run_.display.finish();  // ends the line of the bar
        print_warnings({warning});
      }
    run_.display.step({record.step, record.epoch, record.loss, record.learning_rate, record.tokens,
                       wire_bytes(record), record.seconds});
    if (RunFile* const file = run_.output.file()) file->append(record);
  }

  /// Returns false if a signal or the time limit has stopped the evaluation, on all ranks: the run
  /// is to stop, too. The time limit does not stop the evaluation that a start begins with: no
  /// start would get past it.
  bool evaluate() {
    const DataSplit& data = run_.inputs.data;
    if (data.validation->size() == 0) return true;
    const TrainingRun::Pause pause(training_);
    const TimePoint begin = Clock::now();
    StopsEvaluation stops;
    const bool obeys_limit = steps_done() > run_.first_step();
    if (checkpoints_) stops = [&] { return checkpoints_->stops_evaluation(obeys_limit); };
    std::optional<EvaluationRecord> found = training_.evaluate(data, stops);
    if (!found) return false;
    for (const EvaluationMode mode : settings_.evaluation.modes)
      run_.display.line(evaluation_text(*found, mode));
    if (RunFile* const file = run_.output.file()) file->append(*found);
    const double loss = common_loss(found->of(counted_mode(settings_.evaluation))->loss);
    run_.course.all.add(found->step, loss);
    if (settings_.training.keep_best && run_.course.kept.add(found->step, loss)) save_best();
    last_evaluation_ = std::move(found);
    if (checkpoints_) checkpoints_->evaluated(seconds_between(begin, Clock::now()));
    return true;
  }

  /// A sum over ranks may have other bits on some of them; they have to decide by the same value.
  double common_loss(double loss) {
    if (!settings_.training.needs_validation()) return loss;
    std::vector<double> of_rank_0 = {loss};
    broadcast(progress_, run_.grid.world(), of_rank_0, 0);
    progress_.take_collective_bytes();  // eight bytes that no step sent
    return of_rank_0.front();
  }

  void save(const std::string& directory) {
    const std::string former =
        save_model(training_.pipeline().exec(), directory, settings_.output.model_precision,
                   run_.inputs.model, run_.grid, progress_, training_.stages());
    if (!former.empty())
      run_.display.line(
          fmt::format("what was in {} and is no model is now in {}", directory, former));
  }

  /// The run file records the best evaluation as soon as its model is saved. A checkpoint under way
  /// comes first: no rank has to hold both copies, and nobody's next step waits for the disk.
  void save_best() {
    if (checkpoints_) checkpoints_->finish(run_.output.file());
    save(best_directory(settings_));
    const BestEvaluation& kept = run_.course.kept;
    if (RunFile* const file = run_.output.file()) {
      file->write_best({kept.step(), kept.loss()});
      file->flush();
    }
    run_.display.line(
        fmt::format("the lowest validation loss so far: the model of step {} is in {}", kept.step(),
                    best_directory(settings_)));
    barrier(progress_, run_.grid.world());
    progress_.take_collective_bytes();
  }

  void end_early() {
    early_end_ = early_end_text(steps_done(), training_.steps(), settings_.training.patience,
                                run_.course.all);
    run_.display.finish();
    run_.display.line(early_end_);
    training_.compare_replicas();
  }

  void checkpoint_after_step(bool replicas_agree) {
    if (replicas_agree && checkpoints_->is_due(steps_done()))
      begin_checkpoint();
    else
      checkpoints_->advance(run_.output.file());
    remove_former_spill_files();
    progress_.take_collective_bytes();  // of the checkpoint
  }

  void begin_checkpoint() {
    // A damaged record must not get into a copy.
    if (checkpoints_->copies_files(steps_done()) && training_.forget_damaged_records())
      warn_of_damaged_records(run_);
    std::vector<StatePart> parts = training_.state();
    if (settings_.checkpoint.mode == CheckpointMode::resync)
      parts = without_memories(std::move(parts));
    checkpoints_->begin(steps_done(), parts, run_.output.file());
  }

  /// After the last step that is done; it may be there already.
  void complete_checkpoint() {
    checkpoints_->finish(run_.output.file());
    if (checkpoints_->last_complete() != steps_done()) begin_checkpoint();
    checkpoints_->finish(run_.output.file());
  }

  /// Removes them once the run can resume from a checkpoint of this start.
  void remove_former_spill_files() {
    if (removed_former_files_ || checkpoints_->last_complete().value_or(0) <= run_.first_step())
      return;
    removed_former_files_ = true;
    run_.spill_files.remove_former();
  }

  /// The last evaluation and saving the model may fail, or take long: they can be repeated.
  /// True: the run is to stop here.
  bool checkpoint_at_end() {
    complete_checkpoint();
    // A start that finds all steps done has this to do and nothing else.
    const bool has_trained = !run_.restart || run_.first_step() < steps_done();
    const bool is_evaluated = training_.totals().evaluated == steps_done();
    const bool stops = checkpoints_->is_asked_to_stop(has_trained && !is_evaluated);
    progress_.take_collective_bytes();
    return stops;
  }

  /// A signal that asked for an end meanwhile comes too late: all is done.
  void end_checkpoints() {
    checkpoints_->end_training();
    progress_.take_collective_bytes();
  }

  /// An evaluation that was stopped is what the next start begins with.
  TrainingEnd stop_with_checkpoint() {
    if (steps_done() > 0) complete_checkpoint();
    remove_former_spill_files();
    if (settings_.checkpoint.mode == CheckpointMode::resync) run_.spill_files.flush();
    progress_.take_collective_bytes();  // of the checkpoint
    return stop();
  }

  TrainingEnd stop() {
    const TrainingRun::Pause pause(training_);
    ProgressDisplay& display = run_.display;
    display.finish();
    const std::string by =
        fmt::format("{} after step {}", checkpoints_->stop_reason(), steps_done());
    run_.output.close(RunStatus::stopped, by);
    const std::optional<std::uint64_t> complete = checkpoints_->last_complete();
    const bool has_progressed = checkpoints_->has_progressed();
    display.line(
        fmt::format("stopped by {}{}{}", by,
                    complete ? fmt::format("; the same command continues from step {}", *complete)
                             : "; there is no checkpoint to continue from",
                    complete && !has_progressed ? ", where this start began" : ""));
    if (const double seconds = checkpoints_->limiting_evaluation();
        seconds > 0 && run_.grid.rank() == 0)
      print_warnings({fmt::format(
          "an evaluation lasted {:.3g} s of checkpoint.time_limit = {:.3g} s: with a longer "
          "limit, or a larger training.evaluate_every, a start has more time for steps",
          seconds, settings_.checkpoint.time_limit_seconds)});
    return has_progressed ? TrainingEnd::stopped : TrainingEnd::stopped_without_progress;
  }

  /// All is trained, evaluated and saved.
  void finish() {
    run_.display.finish();
    warn_of_targets();
    RunFile* const file = run_.output.file();
    if (file) file->flush();
    if (settings_.cache.keep) run_.spill_files.flush();
    const std::vector<RankMemoryRecord> memory =
        gather_memory(run_.plan.predicted, run_.grid, progress_);
    agree_to_finish();
    if (file) {
      file->write_memory(memory);
      file->close(RunStatus::finished, early_end_);
    }
    if (checkpoints_ || run_.restart) {
      barrier(progress_, run_.grid.world());  // the run file says that the run is finished
      run_.spill_files.finish();
      remove_checkpoints();
    }
    if (run_.grid.rank() == 0)
      print_report(settings_, {training_.totals(), early_end_,
                               parameter_count(*run_.inputs.model.model), last_evaluation_, memory,
                               checkpoints_ ? checkpoints_->totals() : Checkpoints::Totals(),
                               run_.course.kept, run_.inputs.model.model->task().target_name()});
  }

  /// Targets of boundaries that the steps of codes could not hold.
  void warn_of_targets() {
    if (run_.grid.stages() == 1) return;
    std::vector<double> totals = training_.pipeline().step_totals();
    all_reduce(progress_, run_.grid.world(), totals, Reduction::sum);
    if (run_.grid.rank() == 0) print_warnings(warnings_of_targets(settings_, totals));
  }

  /// A signal that comes later ends nothing: what follows is short, and the run file says then that
  /// the run is finished. One that has come on any rank still ends the run on all.
  void agree_to_finish() {
    const auto mine = static_cast<std::uint64_t>(ignore_interruptions());
    const std::uint64_t signal = all_reduce(progress_, run_.grid.world(), mine, Reduction::max);
    if (signal != 0) throw Interrupted(static_cast<int>(signal));
  }

  /// Last of all that a finished run leaves behind: while one is there, the same command knows that
  /// there may be more.
  void remove_checkpoints() {
    barrier(progress_, run_.grid.world());
    if (run_.claimed.keeps_checkpoints())
      remove_checkpoints_but(checkpoint_directory(settings_), settings_.checkpoint, std::nullopt);
  }

  StartedRun& run_;
  const Settings& settings_;
  ProgressThread& progress_;
  TrainingRun& training_;
  Checkpoints* checkpoints_;
  ErrorWatch error_watch_;
  StepObserver observer_;
  std::optional<EvaluationRecord> last_evaluation_;
  std::string early_end_;  ///< why training ended before its last step; empty: it did not
  bool removed_former_files_ = false;
};

}  // namespace

TrainingEnd run_train(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress) {
  const TimePoint begin = Clock::now();
  check_precision(settings);
  ClaimedDirectories claimed(settings, grid, progress);
  const FormerRun former = find_former_run(settings, grid, progress);
  if (former.is_finished) {
    clear_finished_run(settings, former, claimed, grid, progress);
    return TrainingEnd::finished;
  }
  const std::optional<Restart> restart = find_start(settings, former, claimed, grid, progress);
  TrainingInputs inputs = open_inputs(settings, restart, grid, progress);
  const RunPlan plan = plan_run(settings, inputs, restart, grid, progress);
  Stages stages = make_stages(settings, inputs.model, grid, true, settings.training.precision);
  progress.set_ends_at_once(false);  // from now on the run file says how the run ended
  // Outlives the run, whose spill files go first: a failed run's last rows find their room.
  RunOutput output = open_output(settings, inputs, plan, restart, grid, progress);
  StartedRun run = output.closing_on_failure([&] {
    return start_run(settings, claimed, restart, inputs, plan, std::move(stages), output, begin,
                     grid, progress);
  });
  return output.closing_on_failure([&] { return TrainingLoop(run).run(); });
}

}  // namespace deltapipe
