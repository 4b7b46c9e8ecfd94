// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>
#include <thread>
#include <utility>

#include "app/checkpoint/checkpoint_job.hpp"
#include "app/checkpoint/checkpoint_removal.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/state/state_in_memory.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds kLook{2};
/// After a signal that ends the run at once, for what is being written.
constexpr double kPatienceSeconds = 2;
/// The share of the launcher's time that step and checkpoint may take.
constexpr double kShareOfLauncher = 0.7;

/// Notes after those of the signals.
enum Note : std::size_t { kLimit = kStopSignals.size(), kTimeDue, kDone, kFailed };
/// A reason to stop that is no signal's number.
constexpr std::uint64_t kOutOfTime = 1U << 16U;

/// Seconds that Open MPI's mpirun leaves its ranks after Ctrl-C; nothing under other launchers. An
/// MCA parameter on mpirun's command line is in the environment of the ranks as well.
std::optional<double> seconds_of_launcher() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return std::nullopt;
  for (const char* const name :
       {"OMPI_MCA_odls_base_sigkill_timeout", "PRTE_MCA_odls_base_sigkill_timeout"})
    if (const char* const text = std::getenv(name); text != nullptr)
      return std::strtod(text, nullptr);
  return 1;
}

/// Says that a disk takes its time: at first soon, then ever more rarely.
class SlowDiskNotice {
 public:
  explicit SlowDiskNotice(std::string what) : what_(std::move(what)) {}
  void look() {
    const double seconds = seconds_between(begin_, Clock::now());
    if (seconds < next_) return;
    next_ += std::min(next_, kLongestSilence);
    std::fprintf(stderr,
                 "\ndeltapipe: warning: waiting %.0f s for %s; a signal after the first one ends "
                 "the run at once\n",
                 seconds, what_.c_str());
  }

 private:
  static constexpr double kLongestSilence = 600;
  std::string what_;
  TimePoint begin_ = Clock::now();
  double next_ = 10;
};

}  // namespace

Checkpoints::Checkpoints(const CheckpointSettings& settings, const std::string& directory,
                         const ProcessGrid& grid, ProgressThread& progress,
                         const CheckpointMarker& marker, bool keeps_directory,
                         std::vector<ActivationCache*> caches, TimePoint start)
    : settings_(settings),
      directory_(directory),
      grid_(grid),
      progress_(progress),
      marker_(marker),
      keeps_directory_(keeps_directory),
      evaluation_stop_(progress),
      limit_(settings.time_limit_seconds, start),
      last_begin_(Clock::now()),
      last_notes_(Clock::now()),
      caches_(std::move(caches)) {
  set_notice();
}

void Checkpoints::go_on_from(const CheckpointMarker& marker) {
  last_complete_ = marker.step;
  if (!marker.milestone) referring_ = {marker.step};
}

void Checkpoints::let_go(std::uint64_t step) {
  for (ActivationCache* const cache : caches_) cache->let_go(step);
}

/// The job looks at the other members.
Checkpoints::~Checkpoints() {
  if (!job_) return;
  job_->give_up();
  SlowDiskNotice notice(waited_for());
  while (!job_->is_done()) {
    notice.look();
    if (const int signal = noted_signal(); signal != 0 && !ends_soon()) end_process(signal);
    std::this_thread::sleep_for(kLook);
  }
  job_.reset();
}

/// "the checkpoint of step 20 in DIRECTORY"
std::string Checkpoints::waited_for() const {
  return fmt::format("the checkpoint of step {} in {}", marker_.step, directory_);
}

/// True if the disk lets a job that is given up come to an end.
bool Checkpoints::ends_soon() const {
  const TimePoint begin = Clock::now();
  while (!job_->is_done() && seconds_between(begin, Clock::now()) < kPatienceSeconds)
    std::this_thread::sleep_for(kLook);
  return job_->is_done();
}

/// The job's thread cannot be stopped while it is inside a system call.
void Checkpoints::end_process(int signal) const {
  std::fprintf(stderr, "\ndeltapipe: error: interrupted by %s while the disk hangs under %s\n",
               name_of_signal(signal).c_str(), waited_for().c_str());
  progress_.abort(kSignalStatus + signal);
}

/// Throws when the run is to end.
void Checkpoints::await_job() {
  SlowDiskNotice notice(waited_for());
  while (!job_->is_done()) {
    try {
      progress_.check();
    } catch (...) {
      // The code that ends the run closes the run file, for which the library must be free.
      job_->give_up();
      const int signal = noted_signal();
      if (signal != 0 && !ends_soon() && job_->uses_library.load()) end_process(signal);
      throw;
    }
    notice.look();
    std::this_thread::sleep_for(kLook);
  }
}

std::string Checkpoints::unfinished() const {
  return unfinished_checkpoint(directory_, marker_.run_id, marker_.step);
}

/// The line that rank 0 prints when a signal asks for an end. A launcher may kill the ranks before
/// the step under way has come to its end.
void Checkpoints::set_notice() const {
  if (grid_.rank() != 0) return;
  const bool is_known = times_.longest_step() > 0;
  const double seconds = times_.of_steps(most_steps_to_stop_) + times_.of_checkpoint();
  std::string text =
      most_steps_to_stop_ > 1
          ? "\ndeltapipe: asked to stop: a checkpoint follows the next outer step of the replicas"
          : "\ndeltapipe: asked to stop: a checkpoint follows the step under way";
  if (is_known) text += fmt::format(", in about {:.2g} s", seconds);
  const std::optional<double> launcher = seconds_of_launcher();
  if (launcher && marker_.ranks() > 1 && (!is_known || seconds > kShareOfLauncher * *launcher))
    text += fmt::format(
        "; after Ctrl-C or SIGTERM mpirun kills the ranks {} s from now, which may be too early: "
        "`kill -USR1` to mpirun stops them with a checkpoint, however long that takes",
        number_text("%g", *launcher));
  OrderlyStop::set_notice(text + "\n");
}

void Checkpoints::evaluated(double seconds) {
  times_.add_evaluation(seconds);
  // An outer step before the evaluation is part of the next interval.
  last_notes_ +=
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Checkpoints::Notes Checkpoints::notes(bool evaluation_follows, std::uint64_t steps_to_stop) {
  most_steps_to_stop_ = std::max(most_steps_to_stop_, steps_to_stop);
  Notes notes{};
  const int signal = orderly_stop_ ? orderly_stop_->signal() : 0;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) notes[i] = signal == kStopSignals[i];
  const TimePoint now = Clock::now();
  const bool is_longest = times_.add_step(seconds_between(last_notes_, now));
  const bool has_agreed = steps_to_stop > 1 && steps_to_stop == most_steps_to_stop_;
  if (is_longest || has_agreed) set_notice();
  last_notes_ = now;
  if (grid_.rank() == 0) {
    // After the evaluation and the steps to come there has to be time for a checkpoint.
    const double evaluation = evaluation_follows ? times_.of_evaluation() : 0;
    const double steps = times_.of_steps(steps_to_stop) + times_.longest_step();
    if (limit_.is_over_after(evaluation + steps + 2 * times_.of_checkpoint())) notes[kLimit] = 1;
    if (settings_.every_seconds > 0 && seconds_between(last_begin_, now) >= settings_.every_seconds)
      notes[kTimeDue] = 1;
  }
  if (job_ && job_->is_done()) notes[job_->error.empty() ? kDone : kFailed] = 1;
  return notes;
}

void Checkpoints::hear(std::span<const double> sums) {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i)
    if (stop_reason_.empty() && sums[i] > 0) stop_reason_ = name_of_signal(kStopSignals[i]);
  if (stop_reason_.empty() && sums[kLimit] > 0) stop_reason_ = limit_.name();
  is_due_by_time_ = sums[kTimeDue] > 0;
  some_failed_ = sums[kFailed] > 0;
  all_done_ = sums[kDone] + sums[kFailed] == static_cast<double>(marker_.ranks());
}

bool Checkpoints::is_due(std::uint64_t step) const {
  return (settings_.every_steps > 0 && step % settings_.every_steps == 0) ||
         is_milestone(settings_, step) || is_due_by_time_;
}

bool Checkpoints::copies_files(std::uint64_t step) const {
  return is_milestone(settings_, step) && settings_.mode == CheckpointMode::exact;
}

bool Checkpoints::is_asked_to_stop(bool evaluation_follows) {
  std::uint64_t mine = orderly_stop_ ? static_cast<std::uint64_t>(orderly_stop_->signal()) : 0;
  if (mine == 0 && evaluation_follows && grid_.rank() == 0 &&
      limit_.is_over_after(times_.of_evaluation()))
    mine = kOutOfTime;
  const std::uint64_t reason = all_reduce(progress_, grid_.world(), mine, Reduction::max);
  if (reason == 0) return false;
  stop_reason_ = reason_of(reason);
  return true;
}

std::string Checkpoints::reason_of(std::uint64_t code) const {
  return code == kOutOfTime ? limit_.name() : name_of_signal(static_cast<int>(code));
}

bool Checkpoints::stops_evaluation(bool obeys_limit) {
  if (const int signal = orderly_stop_ ? orderly_stop_->signal() : 0; signal != 0)
    evaluation_stop_.ask(static_cast<std::uint64_t>(signal));
  else if (obeys_limit && grid_.rank() == 0 && limit_.is_over_after(2 * times_.of_checkpoint()))
    evaluation_stop_.ask(kOutOfTime);
  if (evaluation_stop_.begin_next()) return false;
  stop_reason_ = reason_of(evaluation_stop_.reason());
  return true;
}

bool Checkpoints::end_training() {
  const bool stops = is_asked_to_stop(false);
  if (!stops) orderly_stop_.reset();
  return stops;
}

double Checkpoints::limiting_evaluation() const {
  const bool limits = stop_reason_ == kTimeLimitKey &&
                      times_.longest_evaluation() > settings_.time_limit_seconds / 2;
  return limits ? times_.longest_evaluation() : 0;
}

void Checkpoints::warn(const std::string& what) const {
  const std::string last =
      last_complete_ ? fmt::format("; that of step {} stays", *last_complete_) : "";
  std::fprintf(stderr, "\ndeltapipe: warning: the checkpoint of step %llu is given up: %s%s\n",
               static_cast<unsigned long long>(marker_.step), what.c_str(), last.c_str());
}

void Checkpoints::begin(std::uint64_t step, std::span<const StatePart> parts, RunFile* run_file) {
  const TimePoint begin = Clock::now();
  finish(run_file);
  last_begin_ = begin;
  marker_.step = step;
  marker_.milestone = is_milestone(settings_, step);
  marker_.files.clear();
  // Milestones stay and have copies of all records.
  if (!marker_.milestone)
    for (ActivationCache* const cache : caches_) cache->refer_to_file(step);
  auto content = std::make_shared<StateContent>(state_in_memory(parts));
  std::optional<RunFileSnapshot> history;
  if (run_file != nullptr) history = run_file->snapshot();
  times_.set_checkpoint_bytes(content->bytes() + (history ? history->bytes() : 0));
  phase_ = Phase::writing;
  job_ = std::make_unique<CheckpointJob>([this, directory = unfinished(), content,
                                          history = std::move(history),
                                          rank = grid_.rank()](CheckpointJob& job) mutable {
    for (ActivationCache* const cache : caches_) cache->sync();
    make_unfinished(directory);
    const std::string name = rank_file_name(rank);
    job.uses_library.store(true);
    write_rank(directory + "/" + name, *content, job.given_up());
    content.reset();
    if (history) job.run_file = write_run_file(directory, *history);
    job.uses_library.store(false);
    job.rank_file = secure_file(directory, name);
  });
  blocked_seconds_ = seconds_between(begin, Clock::now());
}

/// All ranks' files are on the disk: who keeps a directory completes the checkpoint there.
void Checkpoints::exchange_and_mark() {
  const auto rank = static_cast<std::size_t>(grid_.rank());
  const auto ranks = static_cast<std::size_t>(marker_.ranks());
  constexpr double kMicro = 1e6;
  // Size and hash of each rank's file and of the run file, then each rank's times.
  std::vector<std::uint64_t> values(2 * ranks + 2 + 2 * ranks);
  values[2 * rank] = job_->rank_file.bytes;
  values[2 * rank + 1] = job_->rank_file.hash;
  values[2 * ranks] = job_->run_file.bytes;
  values[2 * ranks + 1] = job_->run_file.hash;
  values[2 * ranks + 2 + 2 * rank] = static_cast<std::uint64_t>(blocked_seconds_ * kMicro);
  values[2 * ranks + 3 + 2 * rank] =
      static_cast<std::uint64_t>((blocked_seconds_ + job_->seconds) * kMicro);
  all_reduce(progress_, grid_.world(), values, Reduction::sum);
  marker_.blocked_seconds = marker_.seconds = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    marker_.files.push_back(
        {rank_file_name(static_cast<int>(r)), values[2 * r], values[2 * r + 1]});
    const std::uint64_t* const times = &values[2 * ranks + 2 + 2 * r];
    marker_.blocked_seconds =
        std::max(marker_.blocked_seconds, static_cast<double>(times[0]) / kMicro);
    marker_.seconds = std::max(marker_.seconds, static_cast<double>(times[1]) / kMicro);
  }
  marker_.files.push_back({kRunFileCopy, values[2 * ranks], values[2 * ranks + 1]});
  phase_ = Phase::marking;
  job_ = std::make_unique<CheckpointJob>(
      [this, marker = marker_, path = unfinished()](CheckpointJob&) {
        if (keeps_directory_) complete_checkpoint(directory_, path, marker);
      });
}

void Checkpoints::note_complete(RunFile* run_file) {
  const CheckpointRecord record = record_of(marker_);
  times_.add_checkpoint(record.seconds);
  last_complete_ = record.step;
  set_notice();
  ++totals_.count;
  totals_.bytes += record.bytes;
  totals_.blocked_seconds += record.blocked_seconds;
  if (run_file == nullptr) return;
  run_file->append(record);
  // From the first one on the file says that there are checkpoints, also after a kill.
  if (totals_.count == 1) run_file->flush();
}

/// Not before all directories have the new one: a restart needs one that all ranks have.
void Checkpoints::start_removal() {
  phase_ = Phase::removing;
  job_ = std::make_unique<CheckpointJob>([this, marker = marker_](CheckpointJob&) {
    if (keeps_directory_) remove_superseded(directory_, marker, settings_);
  });
}

/// Records that only removed checkpoints referred to may be overwritten.
void Checkpoints::end_removal() {
  job_.reset();
  phase_ = Phase::idle;
  if (!marker_.milestone) referring_.push_back(marker_.step);
  for (; referring_.size() > static_cast<std::size_t>(settings_.keep); referring_.pop_front())
    let_go(referring_.front());
}

void Checkpoints::give_up() {
  const bool was_marking = phase_ == Phase::marking;
  if (!job_->error.empty()) warn(job_->error);
  times_.add_checkpoint(std::max(times_.last_checkpoint(), job_->seconds));
  job_.reset();
  phase_ = Phase::idle;
  std::error_code ignored;
  if (keeps_directory_) {
    fs::remove_all(unfinished(), ignored);
    // If other ranks could not complete it, no start may treat it as complete.
    if (was_marking) remove_or_warn(directory_, marker_.step);
  }
  let_go(marker_.step);
  // A second try of the same step makes a directory of the same name.
  barrier(progress_, grid_.world());
}

/// All ranks have done their part of the phase.
void Checkpoints::step_phase(bool failed, RunFile* run_file) {
  if (phase_ == Phase::removing) return end_removal();
  if (failed) return give_up();
  if (phase_ == Phase::writing) return exchange_and_mark();
  note_complete(run_file);
  start_removal();
}

void Checkpoints::advance(RunFile* run_file) {
  if (phase_ != Phase::idle && all_done_) step_phase(some_failed_, run_file);
  all_done_ = some_failed_ = false;
}

void Checkpoints::finish(RunFile* run_file) {
  while (phase_ != Phase::idle) {
    await_job();
    const std::uint64_t failed = job_->error.empty() ? 0 : 1;
    step_phase(all_reduce(progress_, grid_.world(), failed, Reduction::max) > 0, run_file);
  }
}

CheckpointRecord record_of(const CheckpointMarker& marker) {
  return {marker.step, marker.blocked_seconds, marker.seconds, marker.bytes()};
}

void check_for_other_runs(const std::string& directory) {
  const std::vector<std::uint64_t> steps = checkpoint_steps(directory);
  if (steps.empty()) return;
  throw UserError({.what = "checkpoint.directory has checkpoints of another run",
                   .value = directory + "/" + checkpoint_name(steps.back()),
                   .remedy = "set a directory of this run's own or leave the key out; if this run "
                             "wrote them with another output.directory, put the run.h5 that is in "
                             "the newest of them into this one",
                   .keys = {"checkpoint.directory"}});
}

}  // namespace deltapipe
