// SPDX-License-Identifier: BSD-3-Clause
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include "app/checkpoint/checkpoints.hpp"
#include "app/checkpoint/claimed_directories.hpp"
#include "app/checkpoint/former_runs.hpp"
#include "app/checkpoint/restart.hpp"
#include "app/checkpoint/spill_references.hpp"
#include "app/checkpoint/training_state.hpp"
#include "app/commands/commands.hpp"
#include "app/deck/deck.hpp"
#include "app/output/former_output.hpp"
#include "app/output/progress_display.hpp"
#include "app/output/run_file.hpp"
#include "app/preflight/memory_prediction.hpp"
#include "app/preflight/spill_check.hpp"
#include "app/preflight/start_check.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/data_of_stage.hpp"
#include "app/session/frozen_parameters.hpp"
#include "app/session/input_files.hpp"
#include "app/session/session.hpp"
#include "app/training/best_evaluation.hpp"
#include "app/training/evaluation.hpp"
#include "app/training/save_model.hpp"
#include "comm/pipeline/pipeline.hpp"
#include "comm/replicas/replica_check.hpp"
#include "comm/transport/collectives.hpp"
#include "comm/transport/mpi_check.hpp"
#include "comm/transport/trace.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/base/printable.hpp"
#include "core/base/version.hpp"
#include "core/cache/spill_file.hpp"
#include "core/files/directory_lock.hpp"
#include "models/optimizer.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

/// For progress threads, which answer within some 20 ms unless their processors are very busy.
constexpr std::chrono::milliseconds kAnswerLimit{300};
constexpr std::chrono::seconds kLateAnswerLimit{3};
/// Attempts at a step that damaged records spoil. Records found damaged are not read again.
constexpr int kMostAttempts = 10;

/// As the system knows it, arguments with blanks between them; empty: it does not say.
std::string process_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), {}};
  while (!command.empty() && command.back() == '\0') command.pop_back();
  std::replace(command.begin(), command.end(), '\0', ' ');
  return command;
}

/// The first line of the library's description.
std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  DELTAPIPE_MPI(MPI_Get_library_version(text.data(), &length));
  const std::string whole(text.data());
  return whole.substr(0, whole.find_first_of(",\n"));
}

PipelineShape pipeline_shape(const Settings& settings, const ModelPlan& plan,
                             const TokenDataset& train, bool training) {
  PipelineShape shape = pipeline_shape(pipeline_options(settings), plan.model->shape().vocabulary,
                                       plan.tokens, training);
  shape.train_samples = train.size();
  shape.data_fingerprint = train.fingerprint();
  shape.first_trained_stage = plan.first_trained_stage;
  shape.partition = plan.partition;
  return shape;
}

StepPlanner::Layout step_layout(const Settings& settings) {
  return {settings.training.micro_batch_size, settings.training.micro_batches,
          settings.pipeline.replicas};
}

RunAttributes run_attributes(const Settings& settings, const ModelPlan& plan) {
  RunAttributes attributes;
  attributes.layout = run_layout(settings.pipeline);
  attributes.partition = plan.partition;
  const ParameterCount parameters = parameter_count(*plan.model);
  attributes.parameters = parameters.all;
  attributes.trained_parameters = parameters.trained;
  attributes.deltapipe_version = std::string(version());
  attributes.source_revision = std::string(revision());
  attributes.deck = effective_deck(settings);
  attributes.kokkos = kokkos_configuration(settings.training.precision);
  attributes.command = process_command();
  attributes.slurm_job = slurm_job();
  attributes.threads_per_rank = kTeamExecution   ? HostTeam::instance().size()
                                : kHostExecution ? ExecSpace().concurrency()
                                                 : 1;
  attributes.mpi = mpi_library();
  attributes.evaluates_codec = settings.evaluation.has(EvaluationMode::codec);
  attributes.compares_answers = !settings.data.answers.files.empty();
  return attributes;
}

std::uint64_t wire_bytes(const StepRecord& record) {
  return std::accumulate(record.forward.bytes.begin(), record.forward.bytes.end(),
                         std::uint64_t{0}) +
         std::accumulate(record.backward.bytes.begin(), record.backward.bytes.end(),
                         std::uint64_t{0}) +
         record.tied_row_bytes + record.tied_gradient_bytes + record.collective_bytes +
         std::accumulate(record.ranks.begin(), record.ranks.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const RankRecord& rank) {
                           const double bytes =
                               rank[static_cast<std::size_t>(RankValue::replica_bytes)];
                           return sum + static_cast<std::uint64_t>(bytes);
                         });
}

InputUse input_use(const ProcessGrid& grid) {
  return grid.first() || grid.last() ? InputUse::train : InputUse::train_between;
}

/// ", exact match 95.25 %", or nothing without answers.
std::string exact_match_text(const EvaluationFigures& figures) {
  if (std::isnan(figures.exact_match)) return "";
  return ", exact match " + number_text("%.2f", 100 * figures.exact_match) + " %";
}

/// Training as a sequence of steps and evaluations.
class Trainer {
 public:
  Trainer(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress)
      : settings_(settings), grid_(grid), progress_(progress) {}

  TrainingEnd run() {
    try {
      return train();
    } catch (const Interrupted& interrupted) {
      end_interrupted(interrupted.signal());
      throw;
    } catch (const StopRequested& stop) {
      if (stop.signal() != 0)
        end_interrupted(stop.signal());
      else
        close(RunStatus::failed, stop.what());
      throw;
    } catch (const std::exception& error) {
      close(RunStatus::failed, error.what());
      throw;
    }
  }

 private:
  TrainingEnd train() {
    claimed_.emplace(settings_, grid_, progress_);
    former_ = find_former_run(settings_, grid_, progress_);
    if (former_.is_finished) {
      clear_finished_run();
      return TrainingEnd::finished;
    }
    set_up();
    progress_.take_collective_bytes();  // of the set-up
    progress_.account().resume(Clock::now());
    if (evaluation_is_missing() && !evaluate_now(totals_.steps)) return stop_with_checkpoint();
    for (std::uint64_t step = totals_.steps; step < steps_ && !is_out_of_patience(); ++step) {
      progress_.check();
      train_step(step);
      if (checkpoints_ && !checkpoints_->stop_reason().empty()) return stop_with_checkpoint();
      if (checkpoints_) checkpoint_after(step + 1);
      if (evaluates_after(step + 1) && step + 1 < steps_ && !evaluate_now(step + 1))
        return stop_with_checkpoint();
    }
    if (totals_.steps < steps_) end_early();
    if (checkpoints_ && checkpoint_at_end()) return stop_after(totals_.steps);
    // An evaluation that fails or is interrupted does not lose the model.
    if (settings_.output.save_model) {
      pipeline_->exec().fence();  // the optimizer's time is training's
      progress_.account().suspend(Clock::now());
      save(model_directory(settings_));
      progress_.account().resume(Clock::now());
    }
    // The evaluation that ends training early is the last one.
    if (totals_.evaluated != totals_.steps && !evaluate_now(totals_.steps))
      return stop_with_checkpoint();
    if (checkpoints_) end_checkpoints();
    progress_.account().suspend(Clock::now());
    totals_.seconds += progress_.account().open_seconds(Clock::now());
    display_->finish();
    warn_of_targets();
    if (run_file_) run_file_->flush();
    if (settings_.cache.keep)
      for (ActivationCache* const cache : pipeline_->caches()) cache->flush();
    gather_memory();
    agree_to_finish();
    if (run_file_) {
      run_file_->write_memory(memory_);
      run_file_->close(RunStatus::finished, early_end_);
    }
    if (checkpoints_ || restart_) {
      barrier(progress_, grid_.world());  // the run file says that the run is finished
      for (ActivationCache* const cache : pipeline_->caches())
        settings_.cache.keep ? cache->let_replace_file() : cache->remove_file_at_end();
      const std::set<std::string> ids = ids_of_spill_files();
      remove_other_spill_files(cache_directory(settings_), owner_,
                               settings_.cache.keep ? ids : std::set<std::string>());
      remove_checkpoints_of_finished_run();
    }
    report();
    return TrainingEnd::finished;
  }

  /// A signal that comes later ends nothing: what follows is short, and the run file says then that
  /// the run is finished. One that has come on any rank still ends the run on all.
  void agree_to_finish() {
    const auto mine = static_cast<std::uint64_t>(ignore_interruptions());
    const std::uint64_t signal = all_reduce(progress_, grid_.world(), mine, Reduction::max);
    if (signal != 0) throw Interrupted(static_cast<int>(signal));
  }

  void save(const std::string& directory) {
    const std::string former =
        save_model(pipeline_->exec(), directory, settings_.output.model_precision, *plan_, grid_,
                   progress_, stages_);
    if (!former.empty())
      display_->line("what was in " + directory + " and is no model is now in " + former);
  }

  /// The run file says what is there as soon as it is. A checkpoint under way comes first: no rank
  /// has to hold both copies, and nobody's next step waits for the disk.
  void save_best() {
    if (checkpoints_) checkpoints_->finish(run_file_of_rank());
    save(best_directory(settings_));
    if (run_file_) {
      run_file_->write_best({kept_.step(), kept_.loss()});
      run_file_->flush();
    }
    display_->line("the lowest validation loss so far: the model of step " +
                   std::to_string(kept_.step()) + " is in " + best_directory(settings_));
    barrier(progress_, grid_.world());
    progress_.take_collective_bytes();
  }

  bool is_out_of_patience() const {
    return settings_.training.patience > 0 && course_.since() >= settings_.training.patience;
  }
  std::string reason_of_early_end() const {
    std::string reason = "stopped early after step " + std::to_string(totals_.steps) + " of " +
                         std::to_string(steps_) +
                         ": training.patience = " + std::to_string(settings_.training.patience) +
                         ", no lower validation loss in " + std::to_string(course_.since()) +
                         " evaluation(s)";
    if (course_.is_known()) reason += " since step " + std::to_string(course_.step());
    return reason;
  }
  void end_early() {
    early_end_ = reason_of_early_end();
    display_->finish();
    display_->line(early_end_);
    if (settings_.pipeline.verify_replicas > 0 && !compares_replicas_after(totals_.steps))
      compare_replicas(totals_.steps);
  }

  /// The run may have been killed before it removed what restarts need.
  void clear_finished_run() {
    claimed_->take_over();
    const std::string& run_id = former_.run_id;
    const std::string directory = cache_directory(settings_);
    if (settings_.cache.keep)
      let_replace_spill_files(directory, {run_id});
    else if (needs_spill_files(directory, run_id))
      remove_other_spill_files(directory, {run_id}, {});
    barrier(progress_, grid_.world());
    if (claimed_->keeps_checkpoints())
      remove_checkpoints_of(checkpoint_directory(settings_), run_id);
    barrier(progress_, grid_.world());
    if (grid_.rank() == 0) report_finished(settings_, former_);
  }

  /// Files that cache.keep left are results.
  static bool needs_spill_files(const std::string& directory, const std::string& run_id) {
    const std::vector<CacheOwner> runs = runs_that_need_spill_files(directory);
    return std::any_of(runs.begin(), runs.end(),
                       [&](const CacheOwner& run) { return run.run_id == run_id; });
  }

  /// Collective. Last of all that a finished run leaves behind: while one is there, the same
  /// command knows that there may be more.
  void remove_checkpoints_of_finished_run() {
    barrier(progress_, grid_.world());
    if (claimed_->keeps_checkpoints())
      remove_checkpoints_but(checkpoint_directory(settings_), settings_.checkpoint, std::nullopt);
  }

  /// On rank 0; others: nullptr.
  RunFile* run_file_of_rank() { return run_file_ ? &*run_file_ : nullptr; }

  bool evaluates() const { return data_.validation.size() > 0; }

  bool evaluates_after(std::uint64_t steps_done) const {
    const std::uint64_t every = settings_.training.evaluate_every;
    return steps_done % (every > 0 ? every : planner_->steps_per_epoch()) == 0;
  }

  /// A checkpoint is written before the evaluation after the same step.
  bool evaluation_is_missing() const {
    if (totals_.steps == 0) return settings_.training.evaluate_at_start;
    return totals_.steps < steps_ && evaluates_after(totals_.steps) &&
           totals_.evaluated != totals_.steps;
  }

  void checkpoint_after(std::uint64_t steps_done) {
    if (checkpoints_->is_due(steps_done))
      begin_checkpoint(steps_done);
    else
      checkpoints_->advance(run_file_of_rank());
    remove_former_spill_files();
    progress_.take_collective_bytes();  // of the checkpoint
  }

  void begin_checkpoint(std::uint64_t steps_done) {
    if (checkpoints_->copies_files(steps_done)) check_spilled_records();
    std::vector<StatePart> parts = training_state(*pipeline_, optimizers_, totals_);
    if (settings_.checkpoint.mode == CheckpointMode::resync)
      parts = without_memories(std::move(parts));
    checkpoints_->begin(steps_done, parts, run_file_of_rank());
  }

  /// A damaged record must not get into a copy.
  void check_spilled_records() {
    for (ActivationCache* const cache : pipeline_->caches()) cache->find_damaged_records();
    const std::uint64_t mine = pipeline_->has_damaged_records() ? 1 : 0;
    if (all_reduce(progress_, grid_.world(), mine, Reduction::max) > 0) forget_damaged(false);
  }

  /// All ranks together; the next step learns from these samples as at their first visit.
  void forget_damaged(bool spoiled_step) {
    pipeline_->forget_damaged_records(spoiled_step);
    if (grid_.rank() == 0)
      std::fprintf(stderr,
                   "\ndeltapipe: warning: records of activation caches in %s are damaged: both "
                   "ends begin anew with their samples (/steps/cache_damaged counts them)\n",
                   cache_directory(settings_).c_str());
  }

  /// The last evaluation and saving the model may fail, or take long: they can be repeated.
  /// True: the run is to stop here.
  bool checkpoint_at_end() {
    complete_checkpoint();
    // A start that finds all steps done has this to do and nothing else.
    const bool has_trained = !restart_ || restart_->marker.step < totals_.steps;
    const bool is_evaluated = totals_.evaluated == totals_.steps;
    const bool stops = checkpoints_->is_asked_to_stop(has_trained && !is_evaluated);
    progress_.take_collective_bytes();
    return stops;
  }

  /// A signal that asked for an end meanwhile comes too late: all is done.
  void end_checkpoints() {
    checkpoints_->end_training();
    progress_.take_collective_bytes();
  }

  /// After the last step that is done; it may be there already.
  void complete_checkpoint() {
    checkpoints_->finish(run_file_of_rank());
    if (checkpoints_->last_complete() != totals_.steps) begin_checkpoint(totals_.steps);
    checkpoints_->finish(run_file_of_rank());
  }

  /// An evaluation that was stopped is what the next start begins with.
  TrainingEnd stop_with_checkpoint() {
    if (totals_.steps > 0) complete_checkpoint();
    remove_former_spill_files();
    if (settings_.checkpoint.mode == CheckpointMode::resync)
      for (ActivationCache* const cache : pipeline_->caches()) cache->flush();
    progress_.take_collective_bytes();  // of the checkpoint
    return stop_after(totals_.steps);
  }

  TrainingEnd stop_after(std::uint64_t steps_done) {
    progress_.account().suspend(Clock::now());
    display_->finish();
    const std::string after = " after step " + std::to_string(steps_done);
    close(RunStatus::stopped, checkpoints_->stop_reason() + after);
    const std::optional<std::uint64_t> complete = checkpoints_->last_complete();
    const bool has_progressed = checkpoints_->has_progressed();
    display_->line("stopped by " + checkpoints_->stop_reason() + after +
                   (complete ? "; the same command goes on from step " + std::to_string(*complete)
                             : "; there is no checkpoint to go on from") +
                   (complete && !has_progressed ? ", where this start began" : ""));
    if (const double seconds = checkpoints_->limiting_evaluation();
        seconds > 0 && grid_.rank() == 0)
      print_warnings({"an evaluation lasted " + number_text("%.3g", seconds) +
                      " s of checkpoint.time_limit = " +
                      number_text("%.3g", settings_.checkpoint.time_limit_seconds) +
                      " s: with a longer limit, or a larger training.evaluate_every, a start has "
                      "more time for steps"});
    return has_progressed ? TrainingEnd::stopped : TrainingEnd::stopped_without_progress;
  }

  /// The reason that ended the run is reported even if the file cannot be closed.
  void close(RunStatus status, const std::string& reason) {
    if (!run_file_) return;
    try {
      run_file_->close(status, reason);
    } catch (const UserError&) {
    }
  }

  /// Launchers send SIGTERM as well when a rank has died: a run that has lost a rank was not
  /// interrupted but failed. Throws PeerLost then.
  void end_interrupted(int signal) {
    if (!run_file_) return;
    const std::string interrupted = Interrupted(signal).what();
    std::vector<int> silent = progress_.silent_ranks(kAnswerLimit);
    if (silent.empty()) return close(RunStatus::interrupted, interrupted);
    std::string lost = "lost contact with ";
    for (const int rank : silent)
      lost += (rank == silent.front() ? "" : ", ") + progress_.name_of(rank);
    lost += " before " + name_of_signal(signal) + " came: its process or machine has ended";
    // Open MPI kills a second after the signal: what is known by now is on the disk by then.
    close(RunStatus::failed, lost);
    silent = progress_.silent_ranks(kLateAnswerLimit);
    if (silent.empty()) return close(RunStatus::interrupted, interrupted);
    throw PeerLost(lost);
  }

  void set_up() {
    if (!former_.run_id.empty()) restart_ = find_restart(settings_, former_, grid_, progress_);
    if (restart_) check_deck_of_restart(settings_, restart_->marker);
    if (!restart_ && !former_.run_id.empty() && grid_.rank() == 0)
      check_start_from_scratch(settings_, former_);
    if (restart_ && restart_->refers_to_files) claimed_->claim_caches(settings_, grid_, progress_);
    if (!restart_ && !settings_.checkpoint.directory.empty() && writes_checkpoints(settings_))
      check_for_other_runs(settings_.checkpoint.directory);
    if (grid_.rank() == 0) {
      for (const std::string& directory : saved_models(settings_))
        check_model_directory(directory, settings_);
      std::printf("reading model and data\n");
      std::fflush(stdout);
    }
    require(find_input_files(settings_, input_use(grid_)));
    plan_.emplace(plan_model(settings_));
    if (grid_.rank() == 0 && !saved_models(settings_).empty())
      plan_->kept_files = read_kept_files(settings_, plan_->warnings);
    const EmulatingRanks emulating = emulating_ranks(settings_, grid_, progress_);
    if (grid_.rank() == 0) {
      print_warnings(plan_->warnings);
      print_warnings(warnings_of(settings_, plan_->model->dropout()));
      print_warnings(warnings_of_precision(settings_, emulating));
      print_warnings(warnings_of_evaluation(settings_));
      print_warnings(warnings_without_effect(settings_));
      print_warnings(warnings_of_network(settings_.network));
      print_warnings(warnings_of_bubble(settings_));
    }
    data_ = load_data(settings_.data, *plan_, grid_, progress_);
    if (grid_.rank() == 0) print_warnings(texts_of(data_.skipped));
    compare_inputs(progress_, *plan_, &data_);
    if (restart_)
      check_data_of_restart(restart_->marker, data_.train.fingerprint(),
                            data_.validation.fingerprint());
    PipelineShape shape = pipeline_shape(settings_, *plan_, data_.train, true);
    if (restart_)
      former_files_ = former_spill_files(*restart_, settings_, plan_->partition, grid_.rank());
    check_resources(shape);
    check_spill_files(shape);
    stages_ = make_stages(settings_, *plan_, grid_, true, settings_.training.precision);
    planner_.emplace(data_.train, settings_.training.seed, settings_.data.shuffle,
                     step_layout(settings_));
    steps_ = total_steps(settings_.training.steps, settings_.training.epochs,
                         planner_->steps_per_epoch());
    shape.steps = steps_;
    check_steps_of_restart();
    name_run();
    progress_.set_ends_at_once(false);  // from now on the run file says how the run ended
    const std::vector<std::string> hosts = gather(progress_, grid_.world(), host_name(), 0);
    if (grid_.rank() == 0) {
      print_warnings(warnings_of_steps(settings_.output, steps_));
      open_run_file(hosts);
    }
    claimed_->take_over();
    if (restart_ && settings_.training.needs_validation()) find_former_evaluations();
    totals_.seed = settings_.training.seed;
    totals_.data_fingerprint = shape.data_fingerprint;
    totals_.ranks.resize(grid_.pipeline_ranks());
    PipelineOptions options = pipeline_options(settings_);
    const bool is_same = restart_ && is_same_layout(restart_->marker, settings_, plan_->partition);
    // After a checkpoint without memories the files may still hold records that both ends share.
    const bool resyncs =
        is_same && !restart_->with_memories && settings_.checkpoint.mode == CheckpointMode::resync;
    options.generations.owner = owner_;
    options.generations.referred = former_files_.reopened;
    options.generations.resyncs = resyncs;
    if (restart_) {
      make_room_for_spill_files(*restart_, settings_, plan_->partition, grid_.rank(), owner_);
      barrier(progress_, grid_.world());
    }
    pipeline_ = std::make_unique<Pipeline>(options, shape, grid_, progress_, pointers_to(stages_));
    for (const auto& stage : stages_)
      optimizers_.emplace_back(settings_.training.optimizer, stage->parameters());
    if (restart_)
      read_restart(*restart_, settings_, plan_->partition, grid_.rank(),
                   training_state(*pipeline_, optimizers_, totals_), totals_);
    if (resyncs) resync();
    announced_ = totals_.steps;
    for (int local = 0; local < grid_.stages_per_rank(); ++local)
      replica_checks_.emplace_back(stages_[static_cast<std::size_t>(local)]->parameters(), grid_,
                                   progress_, local);
    if (settings_.pipeline.verify_replicas > 0) compare_replicas(totals_.steps);
    find_global_tensors();
    display_.emplace(steps_, settings_.output.log_every, grid_.rank() == 0, totals_.steps);
    display_->line(description());
    // On another layout spill files are new ones.
    if (is_same) remove_other_checkpoints();
    if (writes_checkpoints(settings_)) start_checkpoints();
  }

  /// Checkpoints whose records this run will overwrite. The one that it starts from stays,
  /// also if it writes none: files that checkpoints refer to have room for each record twice.
  void remove_other_checkpoints() {
    std::uint64_t spills = 0;
    for (ActivationCache* const cache : pipeline_->caches())
      if (cache->has_file()) spills = 1;
    if (all_reduce(progress_, grid_.world(), spills, Reduction::max) == 0) return;
    if (claimed_->keeps_checkpoints())
      remove_checkpoints_but(checkpoint_directory(settings_), settings_.checkpoint,
                             restart_->marker.step);
    barrier(progress_, grid_.world());
  }

  /// Once the run can go on from a checkpoint of this start: spill files of other layouts, which
  /// older checkpoints refer to, and of starts without a checkpoint.
  void remove_former_spill_files() {
    const std::uint64_t former_step = restart_ ? restart_->marker.step : 0;
    if (removed_former_files_ || checkpoints_->last_complete().value_or(0) <= former_step) return;
    removed_former_files_ = true;
    remove_other_spill_files(cache_directory(settings_), owner_, ids_of_spill_files());
  }

  /// Collective. Of all ranks.
  std::set<std::string> ids_of_spill_files() {
    std::string mine;
    for (ActivationCache* const cache : pipeline_->caches())
      if (cache->has_file()) mine += std::to_string(cache->file_id()) + ' ';
    std::string all;
    for (const std::string& ids : gather(progress_, grid_.world(), mine, 0)) all += ids;
    broadcast(progress_, grid_.world(), all, 0);
    std::istringstream words(all);
    return {std::istream_iterator<std::string>(words), {}};
  }

  void resync() {
    const ResyncCounts mine = pipeline_->resync_memories();
    std::vector<std::uint64_t> sums = {mine.kept, mine.forgotten};
    all_reduce(progress_, grid_.world(), sums, Reduction::sum);
    if (grid_.rank() == 0 && sums[0] + sums[1] > 0)
      std::printf("memories of samples: %llu go on, %llu begin anew (both ends counted)\n",
                  static_cast<unsigned long long>(sums[0]),
                  static_cast<unsigned long long>(sums[1]));
  }

  void start_checkpoints() {
    std::vector<ActivationCache*> caches;
    if (settings_.checkpoint.mode == CheckpointMode::exact) caches = pipeline_->caches();
    checkpoints_.emplace(settings_.checkpoint, checkpoint_directory(settings_), grid_, progress_,
                         marker(), claimed_->keeps_checkpoints(), std::move(caches), start_);
    if (restart_) checkpoints_->go_on_from(restart_->marker);
    std::uint64_t bytes = 0;
    for (const MemoryUse use : {MemoryUse::weights, MemoryUse::optimizer, MemoryUse::cache})
      bytes += predicted_.ledger.bytes(use);
    checkpoints_->expect(all_reduce(progress_, grid_.world(), bytes, Reduction::max),
                         evaluates() ? evaluation_steps({*pipeline_, data_, step_layout(settings_),
                                                         settings_.evaluation, grid_, progress_})
                                     : 0);
  }

  void check_steps_of_restart() const {
    if (!restart_ || restart_->marker.step <= steps_) return;
    throw UserError({.what = "the checkpoint of step " + std::to_string(restart_->marker.step) +
                             " is beyond the end of the run",
                     .value = std::to_string(steps_) + " steps",
                     .remedy = "train for more steps, or start from scratch with output.overwrite "
                               "= true or another output.directory",
                     .keys = {"training.steps", "training.epochs"}});
  }

  /// All starts of a run have the same name.
  void name_run() {
    run_id_ = restart_ ? restart_->marker.run_id : new_run_id();
    broadcast(progress_, grid_.world(), run_id_, 0);
    owner_.run_id = run_id_;
  }

  /// Content that all checkpoints of this start share.
  CheckpointMarker marker() const {
    CheckpointMarker marker;
    marker.run_id = run_id_;
    marker.output_directory = absolute_output_directory(settings_);
    marker.with_memories = settings_.checkpoint.mode == CheckpointMode::exact;
    marker.stages = grid_.stages();
    marker.replicas = grid_.replicas();
    marker.stages_per_rank = grid_.stages_per_rank();
    marker.partition = plan_->partition;
    marker.deltapipe_version = std::string(version());
    marker.source_revision = std::string(revision());
    marker.deck = effective_deck(settings_);
    marker.train_fingerprint = data_.train.fingerprint();
    marker.validation_fingerprint = data_.validation.fingerprint();
    return marker;
  }

  /// Nobody starts what does not fit.
  void check_resources(const PipelineShape& shape) {
    // Each rank for itself: budgets and what is resident may differ.
    const auto rank = static_cast<std::size_t>(grid_.rank());
    predicted_ = predict_memory(settings_, *plan_, shape, grid_.rank(), process_bytes(settings_));
    const auto ranks = static_cast<std::size_t>(ranks_of(settings_.pipeline));
    std::vector<std::uint64_t> bytes(2 * ranks);
    bytes[2 * rank] = predicted_.host_peak();
    bytes[2 * rank + 1] = predicted_.device_peak();
    check_budgets(settings_, *plan_, shape, grid_.rank());
    std::vector<RankMachine> machines;
    {
      const auto lock = progress_.pause();
      machines = machines_of_ranks(grid_.world());
    }
    all_reduce(progress_, grid_.world(), bytes, Reduction::sum);
    std::vector<RankPeak> peaks;
    if (grid_.rank() == 0)
      print_warnings(
          warnings_of_disk(disk_needs(settings_, *plan_, shape, ranks_here(ranks, machines))));
    for (std::size_t r = 0; r < ranks; ++r) peaks.push_back({bytes[2 * r], bytes[2 * r + 1]});
    check_memory(peaks, machines);
    compare_spill_space(progress_, spill_need(settings_, *plan_, shape, grid_.rank(),
                                              machines[rank].machine, former_files_));
  }

  /// Spill files that this run or another is to go on with.
  void check_spill_files(const PipelineShape& shape) {
    const std::vector<std::string> paths = spill_files(settings_, *plan_, shape, grid_.rank());
    if (restart_) check_budget_of_restart(*restart_, settings_, former_files_, paths);
    owner_.run_id = restart_ ? restart_->marker.run_id : "";
    // As rank 0 knows the directory, which others need not see.
    std::error_code error;
    if (grid_.rank() == 0)
      owner_.directory = std::filesystem::canonical(settings_.output.directory, error).string();
    broadcast(progress_, grid_.world(), owner_.directory, 0);
    owner_.checkpoints =
        std::filesystem::weakly_canonical(checkpoint_directory(settings_), error).string();
    owner_.former_runs = former_runs(settings_, owner_.directory, grid_, progress_);
    for (const std::string& path : paths) check_spill_file_owner(path, owner_);
  }

  void open_run_file(const std::vector<std::string>& hosts) {
    const std::string path = settings_.output.directory + "/run.h5";
    const auto warn = [](const std::string& message) {
      std::fprintf(stderr, "\ndeltapipe: warning: %s\n", message.c_str());
    };
    RunAttributes attributes = run_attributes(settings_, *plan_);
    attributes.run_id = run_id_;
    attributes.hosts = hosts;
    print_program(attributes);
    if (restart_) {
      const std::string history = restart_->checkpoint + "/" + kRunFileCopy;
      run_file_.emplace(path, attributes,
                        RunFileContinuation{record_of(restart_->marker), history, path,
                                            changes_of_optimizer(settings_, restart_->marker)},
                        warn);
      return;
    }
    run_file_.emplace(path, attributes, warn);
  }

  /// The checkpoint's run file has the evaluations up to its step. The best model on the disk may
  /// be of a later one: it stays unless an evaluation brings a lower loss.
  void find_former_evaluations() {
    std::vector<double> values;  // pairs of step and loss, that of the best model first
    if (grid_.rank() == 0) {
      constexpr double nan = std::numeric_limits<double>::quiet_NaN();
      const EvaluationLoss kept = run_file_->best().value_or(EvaluationLoss{0, nan});
      values = {static_cast<double>(kept.step), kept.loss};
      for (const auto& [step, loss] :
           losses_of_evaluations(restart_->checkpoint + "/" + kRunFileCopy,
                                 counted_mode() == EvaluationMode::codec, restart_->marker.step))
        values.insert(values.end(), {static_cast<double>(step), loss});
    }
    broadcast(progress_, grid_.world(), values, 0);
    for (std::size_t i = 0; i < values.size(); i += 2)
      (i == 0 ? kept_ : course_).add(static_cast<std::uint64_t>(values[i]), values[i + 1]);
  }

  /// The evaluations whose losses are compared with each other.
  EvaluationMode counted_mode() const {
    return settings_.evaluation.has(EvaluationMode::plain) ? EvaluationMode::plain
                                                           : EvaluationMode::codec;
  }

  static void print_program(const RunAttributes& attributes) {
    std::vector<std::string> hosts = attributes.hosts;
    std::sort(hosts.begin(), hosts.end());
    hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
    std::string names;
    for (const std::string& host : hosts) names += (names.empty() ? "" : ", ") + host;
    std::printf("deltapipe %s (%s), %s, %zu rank(s) with %d thread(s) each on %s\n",
                attributes.deltapipe_version.c_str(), attributes.source_revision.c_str(),
                attributes.mpi.c_str(), attributes.hosts.size(), attributes.threads_per_rank,
                printable(names).c_str());
  }

  std::string description() const {
    std::string text = plan_->model->description() + ", vocabulary " +
                       std::to_string(plan_->model->shape().vocabulary) + "; blocks per stage";
    for (const int blocks : plan_->partition) text += " " + std::to_string(blocks);
    if (grid_.stages_per_rank() > 1)
      text += ", " + std::to_string(grid_.stages_per_rank()) + " stages a rank";
    text += "; " + std::to_string(grid_.replicas()) + " replica(s)\n" +
            std::to_string(data_.train.size()) + " training and " +
            std::to_string(data_.validation.size()) + " validation samples of " +
            std::to_string(plan_->tokens) + " tokens" + answers_text(data_) + "; " +
            std::to_string(steps_) + " steps, " + std::to_string(planner_->steps_per_epoch()) +
            " per epoch";
    if (restart_)
      text += "\ngoing on from the checkpoint of step " + std::to_string(restart_->marker.step);
    if (restart_)
      if (const std::string changes = changes_of_optimizer(settings_, restart_->marker);
          !changes.empty())
        text += " with " + changes;
    return text;
  }

  /// Finds the positions of this rank's tensors in the order of the model.
  void find_global_tensors() {
    tensors_before_.clear();
    tensors_ = 0;
    for (int s = 0; s < grid_.stages(); ++s) {
      if (grid_.owner_of(s) == grid_.pipeline_rank()) tensors_before_.push_back(tensors_);
      tensors_ += plan_->model->parameters(stage_part(plan_->partition, s)).size();
    }
  }

  /// Keeps the caches' reads ahead of training.
  void announce(std::uint64_t step) {
    const std::uint64_t ahead =
        1 + settings_.cache.prefetch / std::max(1, settings_.training.micro_batches);
    for (; announced_ < std::min(steps_, step + 1 + ahead); ++announced_)
      pipeline_->prefetch(planner_->samples(announced_, grid_.replica()));
  }

  void train_step(std::uint64_t step) {
    const bool traced = settings_.output.trace_step == step + 1;
    if (traced) {
      barrier(progress_, grid_.world());
      TraceRecorder::instance().start();
    }
    announce(step);
    const StepPlan plan = planner_->plan(step, grid_.replica());
    StepRecord record;
    const WatchedStep watched(progress_.step_watch(), step + 1);
    int attempts = 0;
    for (bool counts = false; !counts;) {
      pipeline_->train_step(data_.train, plan, step % settings_.output.log_every == 0,
                            [&] { counts = update(step, plan, record); });
      if (counts) break;
      if (++attempts == kMostAttempts)
        throw UserError({.what = "step " + std::to_string(step + 1) +
                                 " was spoiled by damaged "
                                 "records of activation caches in each of " +
                                 std::to_string(attempts) + " attempts",
                         .file = cache_directory(settings_),
                         .remedy = "check that disk, or set another cache.directory"});
      forget_damaged(true);
    }
    if (compares_replicas_after(step + 1)) compare_replicas(step + 1);
    record.collective_bytes += progress_.take_collective_bytes();  // which rank 0 counts
    if (traced) {
      progress_.account().suspend(Clock::now());
      write_trace(progress_, TraceRecorder::instance().stop(),
                  settings_.output.directory + "/trace.json");
      progress_.take_collective_bytes();  // of gathering the trace
      progress_.account().resume(Clock::now());
    }

    record.step = step + 1;
    record.epoch = static_cast<double>(step + 1) / static_cast<double>(planner_->steps_per_epoch());
    record.seconds = totals_.seconds;
    record.tokens = plan.predicted_tokens;
    record.samples = plan.samples;
    finish(record);
  }

  /// Fills the record's loss, norm and rate. False: damaged records have spoiled the step, nothing
  /// is updated.
  bool update(std::uint64_t step, const StepPlan& plan, StepRecord& record) {
    const double learning_rate = learning_rate_at(settings_.training.optimizer, step, steps_);
    if (!share(step, plan, record)) return false;
    if (!std::isfinite(record.loss) || !std::isfinite(record.gradient_norm))
      throw UserError(
          {.what = "loss or gradient is no longer finite at step " + std::to_string(step + 1),
           .value = "loss " + number_text("%g", record.loss) + ", gradient norm " +
                    number_text("%g", record.gradient_norm),
           .remedy = "lower training.optimizer.learning_rate, add warm-up steps, or "
                     "use more bits at the boundaries" +
                     way_back()});
    {
      const ActivityScope activity(progress_.account(), Activity::compute);
      const TraceScope trace(TraceCategory::compute, "optimizer");
      const double clip = settings_.training.optimizer.clip_norm;
      // As torch.nn.utils.clip_grad_norm_.
      const double factor = clip > 0 ? std::min(1.0, clip / (record.gradient_norm + 1e-6)) : 1.0;
      for (Optimizer<float>& optimizer : optimizers_)
        optimizer.update(pipeline_->exec(), step, learning_rate, factor);
    }
    record.learning_rate = learning_rate;
    return true;
  }

  /// Names the way to go on from the last checkpoint after a divergence.
  std::string way_back() const {
    const auto step = checkpoints_ ? checkpoints_->last_complete() : std::nullopt;
    if (!step) return "";
    return "; to go on from the checkpoint of step " + std::to_string(*step) +
           " with another rate, repeat the command with checkpoint.change_optimizer=true and "
           "training.optimizer.learning_rate=RATE";
  }

  /// Writes the norms of this rank's tensors at their positions in the model's order.
  void put_squared_norms(std::vector<double>& values) {
    const ActivityScope activity(progress_.account(), Activity::compute);
    for (std::size_t local = 0; local < optimizers_.size(); ++local) {
      const std::vector<double>& norms = optimizers_[local].squared_norms(pipeline_->exec());
      if (grid_.replica() == 0)
        std::copy(norms.begin(), norms.end(),
                  values.begin() + static_cast<std::ptrdiff_t>(tensors_before_[local]));
    }
  }

  /// Sums `values` over all ranks. They carry when each rank came, so that the wait for the last
  /// one is separate from the wait for the network.
  void sum_over_ranks(std::vector<double>& values) {
    const int ranks = ranks_of(settings_.pipeline);
    if (ranks == 1) return progress_.check();
    const std::size_t first = values.size();
    values.resize(first + ranks, 0);
    const TimePoint came = Clock::now();
    const auto common = came.time_since_epoch() + progress_.clock_offset();
    const double mine = std::chrono::duration<double>(common).count();
    values[first + grid_.rank()] = mine;
    all_reduce(progress_, grid_.world(), values, Reduction::sum);
    const std::chrono::duration<double> later(
        *std::max_element(values.begin() + first, values.end()) - mine);
    progress_.account().waited(came, came + std::chrono::duration_cast<Clock::duration>(later),
                               Clock::now());
    values.resize(first);
  }

  bool compares_replicas_after(std::uint64_t steps_done) const {
    const std::uint64_t every = settings_.pipeline.verify_replicas;
    return every > 0 && (steps_done % every == 0 || steps_done == steps_);
  }
  void compare_replicas(std::uint64_t steps_done) {
    for (ReplicaCheck& check : replica_checks_) check.compare(pipeline_->exec(), steps_done);
  }

  /// One collective: gradient norm, loss and measurements of all ranks. False: the step does not
  /// count, and what was measured is kept for the next one.
  bool share(std::uint64_t step, const StepPlan& plan, StepRecord& record) {
    std::vector<double> values(tensors_ + grid_.replicas(), 0);
    put_squared_norms(values);
    values[tensors_ + grid_.replica()] = pipeline_->loss_sum();
    StepMeasurements measured(grid_.stages(), grid_.pipeline_ranks(), grid_.replicas());
    pipeline_->take_measurements(measured);
    totals_.seconds += measured.rank(grid_.pipeline_rank(), RankValue::wall);
    if (unrecorded_) measured += *std::exchange(unrecorded_, std::nullopt);
    values.push_back(pipeline_->has_damaged_records() ? 1 : 0);
    values.insert(values.end(), measured.values().begin(), measured.values().end());
    if (checkpoints_)
      for (const double note : checkpoints_->notes(evaluates_after(step + 1)))
        values.push_back(note);
    sum_over_ranks(values);

    double squares = 0;
    for (std::size_t i = 0; i < tensors_; ++i) squares += values[i];
    double loss = 0;
    for (int r = 0; r < grid_.replicas(); ++r) loss += values[tensors_ + r];
    const std::size_t ends = tensors_ + static_cast<std::size_t>(grid_.replicas());
    const bool is_spoiled = values[ends] > 0;
    record.gradient_norm = std::sqrt(squares);
    record.loss = loss / static_cast<double>(plan.predicted_tokens);
    const auto first = values.begin() + static_cast<std::ptrdiff_t>(ends) + 1;
    const auto end = first + static_cast<std::ptrdiff_t>(measured.values().size());
    if (checkpoints_) checkpoints_->hear({end, values.end()});
    if (is_spoiled) {
      unrecorded_ = std::move(measured);
      return false;
    }
    std::copy(first, end, measured.values().begin());
    measured.fill(record);
    return true;
  }

  void finish(const StepRecord& record) {
    totals_.bytes += wire_bytes(record);
    totals_.samples += record.samples;
    totals_.tokens += record.tokens;
    totals_.last_loss = record.loss;
    totals_.steps = record.step;
    for (std::size_t r = 0; r < record.ranks.size(); ++r)
      for (std::size_t i = 0; i < kRankValues; ++i) totals_.ranks[r][i] += record.ranks[r][i];
    if (grid_.rank() == 0)
      for (const std::string& warning : error_watch_.look_at(record)) {
        display_->finish();  // ends the line of the bar
        print_warnings({warning});
      }
    display_->step({record.step, record.epoch, record.loss, record.learning_rate, record.tokens,
                    wire_bytes(record), record.seconds});
    if (run_file_) run_file_->append(record);
  }

  /// False: a signal or the time limit has stopped it, on all ranks, and the run is to stop, too.
  /// The time limit does not stop the evaluation that a start begins with: no start would get past
  /// it.
  bool evaluate_now(std::uint64_t step) {
    if (!evaluates()) return true;
    pipeline_->exec().fence();  // the optimizer's time is training's
    const TimePoint begin = Clock::now();
    TimeAccount& account = progress_.account();
    const double seconds = totals_.seconds + account.open_seconds(Clock::now());
    account.suspend(Clock::now());
    std::function<bool()> stops;
    const bool has_trained = totals_.steps > (restart_ ? restart_->marker.step : 0);
    if (checkpoints_) stops = [&] { return checkpoints_->stops_evaluation(has_trained); };
    std::optional<Evaluations> found = evaluate(
        {*pipeline_, data_, step_layout(settings_), settings_.evaluation, grid_, progress_}, stops);
    if (!found) {
      account.resume(Clock::now());
      return false;
    }
    Evaluations& result = *found;
    const double epoch =
        static_cast<double>(step) / static_cast<double>(planner_->steps_per_epoch());
    for (const EvaluationMode mode : settings_.evaluation.modes) {
      const EvaluationFigures& figures = *result.of(mode);
      display_->line("epoch " + number_text("%.2f", epoch) + ": " + validation_loss(mode) + " " +
                     number_text("%.4f", figures.loss) + ", perplexity " +
                     number_text("%.3f", figures.perplexity) + exact_match_text(figures));
      totals_.evaluation_bytes[static_cast<std::size_t>(mode)] += wire_bytes(figures);
    }
    if (run_file_)
      run_file_->append(
          EvaluationRecord{step, epoch, seconds, result.tokens, result.plain, result.codec});
    totals_.evaluated = step;
    const double loss = common_loss(result.of(counted_mode())->loss);
    course_.add(step, loss);
    if (settings_.training.keep_best && kept_.add(step, loss)) save_best();
    account.resume(Clock::now());
    last_evaluation_ = std::move(result);
    if (checkpoints_) checkpoints_->evaluated(seconds_between(begin, Clock::now()));
    return true;
  }

  /// A sum over ranks need not have the same bits on all of them; what they decide by it has to.
  double common_loss(double loss) {
    if (!settings_.training.needs_validation()) return loss;
    std::vector<double> of_rank_0 = {loss};
    broadcast(progress_, grid_.world(), of_rank_0, 0);
    progress_.take_collective_bytes();  // eight bytes that no step sent
    return of_rank_0.front();
  }

  static const char* validation_loss(EvaluationMode mode) {
    return mode == EvaluationMode::plain ? "validation loss" : "loss through the codec";
  }

  /// Prints how each rank of a pipeline spent its time, and how much of the transfers it did
  /// not wait for.
  void report_times() const {
    constexpr std::pair<RankValue, const char*> parts[] = {
        {RankValue::compute, "compute"}, {RankValue::codec, "codec"},
        {RankValue::cache, "cache"},     {RankValue::wire_exposed, "wire"},
        {RankValue::bubble, "bubble"},   {RankValue::replicas, "replicas"},
        {RankValue::other, "other"},
    };
    for (int rank = 0; rank < grid_.pipeline_ranks(); ++rank) {
      const auto seconds = [&](RankValue value) {
        return totals_.ranks[static_cast<std::size_t>(rank)][static_cast<std::size_t>(value)];
      };
      const std::string name =
          "time of " + stages_text(rank, grid_.stages(), grid_.stages_per_rank());
      std::printf("%-28s", name.c_str());
      for (const auto& [value, text] : parts)
        if (seconds(value) > 0)
          std::printf(" %s %.0f %%", text, 100 * seconds(value) / seconds(RankValue::wall));
      if (seconds(RankValue::wire) > 0)
        std::printf("; %.0f %% of %.1f s on the wire hidden",
                    100 * seconds(RankValue::wire_hidden) / seconds(RankValue::wire),
                    seconds(RankValue::wire));
      std::printf("\n");
    }
  }

  /// Targets of boundaries that the steps of codes could not hold.
  void warn_of_targets() {
    if (grid_.stages() == 1) return;
    std::vector<double> totals = pipeline_->step_totals();
    all_reduce(progress_, grid_.world(), totals, Reduction::sum);
    if (grid_.rank() == 0) print_warnings(warnings_of_targets(settings_, totals));
  }

  /// Peak and prediction of every rank, on rank 0.
  void gather_memory() {
    std::vector<double> mine = {
        static_cast<double>(process_memory().peak), static_cast<double>(predicted_.host_peak()),
        static_cast<double>(predicted_.device_peak()), static_cast<double>(predicted_.process)};
    for (std::size_t use = 0; use < kMemoryUses; ++use)
      mine.push_back(static_cast<double>(predicted_.ledger.bytes(static_cast<MemoryUse>(use))));
    const std::vector<double> all = gather(progress_, grid_.world(), mine, 0);
    for (auto row = all.begin(); row != all.end();
         row += static_cast<std::ptrdiff_t>(mine.size())) {
      const auto bytes = [row](std::size_t i) { return static_cast<std::uint64_t>(row[i]); };
      RankMemoryRecord record{bytes(0), bytes(1), bytes(2), bytes(3), {}};
      for (std::size_t use = 0; use < kMemoryUses; ++use)
        record.uses.emplace_back(kMemoryUseNames[use], bytes(4 + use));
      memory_.push_back(std::move(record));
    }
  }

  /// The last evaluation, and the bytes of all of them.
  void report_evaluation() {
    if (!last_evaluation_) return;
    for (const EvaluationMode mode : settings_.evaluation.modes) {
      const EvaluationFigures& figures = *last_evaluation_->of(mode);
      std::printf("%-28s %s (perplexity %s)%s", validation_loss(mode),
                  number_text("%.4f", figures.loss).c_str(),
                  number_text("%.3f", figures.perplexity).c_str(),
                  exact_match_text(figures).c_str());
      const std::uint64_t bytes = totals_.evaluation_bytes[static_cast<std::size_t>(mode)];
      if (bytes > 0)
        std::printf(", all evaluations %sB on the wire",
                    with_prefix(static_cast<double>(bytes)).c_str());
      std::printf("\n");
    }
  }

  void report_checkpoints() const {
    if (!checkpoints_ || checkpoints_->totals().count == 0) return;
    const Checkpoints::Totals& totals = checkpoints_->totals();
    std::printf(
        "%-28s %llu of %sB each, for which training waited %.2f s\n", "checkpoints",
        static_cast<unsigned long long>(totals.count),
        with_prefix(static_cast<double>(totals.bytes) / static_cast<double>(totals.count)).c_str(),
        totals.blocked_seconds);
  }

  void report() {
    if (grid_.rank() != 0) return;
    std::printf("\n%-28s %llu, %.2f s each\n", "steps",
                static_cast<unsigned long long>(totals_.steps),
                totals_.seconds / static_cast<double>(totals_.steps));
    if (!early_end_.empty()) std::printf("%-28s %s\n", "end", early_end_.c_str());
    std::printf("%-28s %s\n", "parameters",
                parameters_text(parameter_count(*plan_->model)).c_str());
    std::printf("%-28s %s\n", "training loss, last step",
                number_text("%.4f", totals_.last_loss).c_str());
    report_evaluation();
    std::printf("%-28s %s tokens/s, %.2f sequences/s\n", "speed",
                with_prefix(static_cast<double>(totals_.tokens) / totals_.seconds).c_str(),
                static_cast<double>(totals_.samples) / totals_.seconds);
    if (ranks_of(settings_.pipeline) > 1) {
      std::printf("%-28s %sB, %sB/s\n", "on the wire",
                  with_prefix(static_cast<double>(totals_.bytes)).c_str(),
                  with_prefix(static_cast<double>(totals_.bytes) / totals_.seconds).c_str());
    }
    report_times();
    std::printf("%-28s", "peak memory, rank by rank");
    for (const RankMemoryRecord& rank : memory_)
      std::printf(" %sB", with_prefix(static_cast<double>(rank.peak)).c_str());
    std::printf("\n");
    report_checkpoints();
    std::printf("%-28s %s/run.h5\n", "run file", settings_.output.directory.c_str());
    if (settings_.output.save_model)
      std::printf("%-28s %s\n", "model", model_directory(settings_).c_str());
    if (kept_.is_known())
      std::printf("%-28s %s, of step %llu with the validation loss %s\n", "best model",
                  best_directory(settings_).c_str(), static_cast<unsigned long long>(kept_.step()),
                  number_text("%.4f", kept_.loss()).c_str());
    std::fflush(stdout);
  }

  const Settings& settings_;
  const ProcessGrid& grid_;
  ProgressThread& progress_;
  RankMemory predicted_;
  TimePoint start_ = Clock::now();
  std::optional<ClaimedDirectories> claimed_;
  FormerRun former_;
  std::optional<Restart> restart_;
  std::string run_id_;
  CacheOwner owner_;  ///< of spill files
  FormerSpillFiles former_files_;
  bool removed_former_files_ = false;
  /// Outlives the pipeline, whose spill files go first: a failed run's last rows find their room.
  std::optional<RunFile> run_file_;
  std::optional<ModelPlan> plan_;
  DataSplit data_;
  Stages stages_;
  std::optional<StepPlanner> planner_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<Optimizer<float>> optimizers_;  ///< of each stage
  std::vector<ReplicaCheck> replica_checks_;
  std::optional<ProgressDisplay> display_;
  std::optional<Checkpoints> checkpoints_;
  std::size_t tensors_ = 0;
  std::vector<std::size_t> tensors_before_;  ///< each stage's
  std::uint64_t steps_ = 0, announced_ = 0;
  RunTotals totals_;
  std::optional<StepMeasurements> unrecorded_;  ///< this rank's, of a step that did not count
  std::vector<RankMemoryRecord> memory_;        ///< rank 0
  std::optional<Evaluations> last_evaluation_;
  ErrorWatch error_watch_{settings_};
  std::string early_end_;  ///< why training ended before its last step; empty: it did not
  BestEvaluation course_;  ///< of the evaluations in run.h5
  /// The one whose model is kept. A former start may have found it in steps that are repeated: its
  /// model stays unless another one is better.
  BestEvaluation kept_;
};

}  // namespace

TrainingEnd run_train(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress) {
  check_precision(settings);
  return Trainer(settings, grid, progress).run();
}

void run_evaluate(const Settings& settings, const ProcessGrid& grid, ProgressThread& progress) {
  check_precision(settings);
  require(find_input_files(settings, input_use(grid)));
  ModelPlan plan = plan_model(settings);
  const EmulatingRanks emulating = emulating_ranks(settings, grid, progress);
  if (grid.rank() == 0) {
    print_warnings(plan.warnings);
    print_warnings(warnings_of_untrained(settings));
    print_warnings(warnings_of_precision(settings, emulating));
    print_warnings(warnings_of_evaluation(settings));
  }
  const DataSplit data = load_data(settings.data, plan, grid, progress);
  if (grid.rank() == 0) print_warnings(texts_of(data.skipped));
  compare_inputs(progress, plan, &data);
  const TokenDataset& set = data.validation;
  if (set.size() == 0)
    throw UserError({.what = "the deck leaves no validation samples to evaluate",
                     .value = "data.validation_fraction = 0, no files in data.validation",
                     .remedy = "set data.validation_fraction above 0 or name files in "
                               "data.validation; to evaluate the training text, name its files",
                     .keys = {"data.validation_fraction", "data.validation"}});
  const Stages stages = make_stages(settings, plan, grid, false, settings.training.precision);
  Pipeline pipeline(pipeline_options(settings), pipeline_shape(settings, plan, data.train, false),
                    grid, progress, pointers_to(stages));
  const TimePoint begin = Clock::now();
  Evaluations result =
      *evaluate({pipeline, data, step_layout(settings), settings.evaluation, grid, progress});
  if (grid.rank() != 0) return;
  const double seconds = seconds_between(begin, Clock::now());
  const double tokens =
      static_cast<double>(result.tokens) * static_cast<double>(settings.evaluation.modes.size());
  std::printf("%llu samples, %llu tokens", static_cast<unsigned long long>(set.size()),
              static_cast<unsigned long long>(result.tokens));
  // With answers the time is not that of these tokens alone.
  if (data.answers.size() > 0)
    std::printf("%s; %.3g s\n", answers_text(data).c_str(), seconds);
  else
    std::printf(", %s tokens/s\n", with_prefix(tokens / seconds).c_str());
  for (const EvaluationMode mode : settings.evaluation.modes) {
    const EvaluationFigures& figures = *result.of(mode);
    std::printf("%sloss %s, perplexity %s%s",
                mode == EvaluationMode::plain ? "" : "through the codec: ",
                number_text("%.6f", figures.loss).c_str(),
                number_text("%.4f", figures.perplexity).c_str(), exact_match_text(figures).c_str());
    if (grid.stages() > 1)
      std::printf("; %sB on the wire",
                  with_prefix(static_cast<double>(wire_bytes(figures))).c_str());
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace deltapipe
