// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/checkpoints.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/base/pieces.hpp"
#include "core/base/state/state_in_memory.hpp"
#include "core/files/replacement.hpp"
#include "core/files/state_file.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

constexpr std::chrono::milliseconds kLook{2};
/// After a signal that ends the run at once, for what is being written.
constexpr double kPatienceSeconds = 2;
/// The share of the launcher's time that step and checkpoint may take.
constexpr double kShareOfLauncher = 0.7;
/// Assumed speed of a disk before it is known, for the time limit.
constexpr double kBytesPerSecond = 1e8;

constexpr const char* kTimeLimitKey = "checkpoint.time_limit";

/// Notes after those of the signals.
enum Note : std::size_t { kLimit = kStopSignals.size(), kTimeDue, kDone, kFailed };
/// A reason to stop that is no signal's number.
constexpr std::uint64_t kOutOfTime = 1U << 16U;

/// The batch system kills at the job's end; closing files and the end of MPI need a moment.
constexpr double kJobMarginSeconds = 10;
constexpr const char* kJobEndVariable = "SLURM_JOB_END_TIME";  // seconds since 1970

/// Until the batch job ends; 0: unknown, or of a job that is over.
double seconds_of_job() {
  const char* const text = std::getenv(kJobEndVariable);
  if (text == nullptr) return 0;
  const double end = std::strtod(text, nullptr);
  const std::chrono::duration<double> now = std::chrono::system_clock::now().time_since_epoch();
  return std::isfinite(end) ? std::max(0.0, end - kJobMarginSeconds - now.count()) : 0;
}

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

/// Several ranks may make it.
void make_unfinished(const std::string& path) {
  std::error_code error;
  fs::create_directory(path, error);
  if (error && !fs::is_directory(path)) make_directory(path);
}

/// As write_state(), until it is given up.
void write_pieces(const StateContent& content, StateWriter& writer,
                  const std::atomic<bool>& given_up) {
  constexpr std::size_t kPiece = std::size_t{1} << 23;
  for (const StateContent::Part& part : content.parts) {
    writer.begin_part(part.name);
    for (const StateContent::Item& item : part.items) {
      writer.begin_item(item.item);
      for_pieces(0, item.bytes.size(), kPiece, [&](std::size_t first, std::size_t count) {
        if (given_up.load()) throw UserError({.what = "the run has ended"});
        writer.append(item.bytes.data() + first, count);
      });
    }
    writer.end_part();
  }
}

void write_rank(const std::string& path, const StateContent& content,
                const std::atomic<bool>& given_up) {
  StateFileWriter writer(path);
  write_pieces(content, writer, given_up);
  writer.close();
}

CheckpointFile write_run_file(const std::string& directory, const RunFileSnapshot& history) {
  history.write(directory + "/" + kRunFileCopy);
  return secure_file(directory, kRunFileCopy);
}

void remove_or_warn(const std::string& directory, std::uint64_t step) {
  const std::string left = remove_checkpoint(directory, step);
  if (left.empty()) return;
  std::fprintf(stderr,
               "\ndeltapipe: warning: the checkpoint of step %llu, which is no longer needed, "
               "cannot be removed; what is left of it is in %s\n",
               static_cast<unsigned long long>(step), left.c_str());
}

/// By the marker or, where that is damaged, by the step.
bool is_milestone_of(const std::string& directory, std::uint64_t step,
                     const CheckpointSettings& settings) {
  try {
    return read_marker(directory + "/" + checkpoint_name(step)).milestone;
  } catch (const UserError&) {
    return settings.milestone_every > 0 && step % settings.milestone_every == 0;
  }
}

/// Removes checkpoints of other runs, of other courses of this one, and those older than the
/// newest `keep`; a milestone whose marker is damaged stays.
void remove_superseded(const std::string& directory, const CheckpointMarker& newest,
                       const CheckpointSettings& settings) {
  int kept = 0;
  std::vector<std::uint64_t> steps = checkpoint_steps(directory);
  std::reverse(steps.begin(), steps.end());
  for (const std::uint64_t step : steps) {
    bool stays = false;
    try {
      const CheckpointMarker marker = read_marker(directory + "/" + checkpoint_name(step));
      stays = marker.run_id == newest.run_id && step <= newest.step &&
              (marker.milestone || kept < settings.keep);
      if (stays && !marker.milestone) ++kept;
    } catch (const UserError&) {
      stays = is_milestone_of(directory, step, settings);
    }
    if (!stays) remove_or_warn(directory, step);
  }
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

/// Work on the thread of its own.
class CheckpointJob {
 public:
  explicit CheckpointJob(std::function<void(CheckpointJob&)> work)
      : begin_(Clock::now()),
        thread_(start_helper_thread("checkpoints", [this, work = std::move(work)] {
          try {
            work(*this);
          } catch (const std::bad_alloc&) {
            error = "out of memory";  // short enough to need none
          } catch (const std::exception& failure) {
            error = failure.what();
            if (error.empty()) error = "unknown reason";
          }
          seconds = seconds_between(begin_, Clock::now());
          done_.store(true, std::memory_order_release);
        })) {}
  ~CheckpointJob() {
    give_up();
    thread_.join();
  }
  CheckpointJob(const CheckpointJob&) = delete;
  CheckpointJob& operator=(const CheckpointJob&) = delete;

  bool is_done() const { return done_.load(std::memory_order_acquire); }
  /// Nobody waits for the work any more.
  void give_up() { given_up_.store(true); }
  const std::atomic<bool>& given_up() const { return given_up_; }
  /// While it does, nobody else can use the HDF5 library.
  std::atomic<bool> uses_library{false};

  // To be read when it is done.
  CheckpointFile rank_file, run_file;
  std::string error;  ///< empty: none
  double seconds = 0;

 private:
  TimePoint begin_;
  std::atomic<bool> done_{false}, given_up_{false};
  std::thread thread_;
};

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
      start_(start),
      last_begin_(Clock::now()),
      last_notes_(Clock::now()),
      limit_seconds_(settings.time_limit_seconds),
      limit_name_(kTimeLimitKey),
      caches_(std::move(caches)) {
  set_notice();
  const double job = seconds_of_job();
  if (job == 0) return;
  const double limit = seconds_between(start_, Clock::now()) + job;
  if (limit_seconds_ > 0 && limit_seconds_ <= limit) return;
  limit_seconds_ = limit;
  limit_name_ = "the end of the batch job";
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
  return "the checkpoint of step " + std::to_string(marker_.step) + " in " + directory_;
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

/// Estimate for the next checkpoint.
double Checkpoints::expected_seconds() const {
  return last_seconds_ > 0 ? last_seconds_ : static_cast<double>(bytes_) / kBytesPerSecond;
}

/// The line that rank 0 prints when a signal asks for an end. A launcher may kill the ranks before
/// the step under way has come to its end.
void Checkpoints::set_notice() const {
  if (grid_.rank() != 0) return;
  const bool is_known = longest_step_ > 0;
  const double seconds = expected_step_seconds(most_steps_to_stop_) + expected_seconds();
  std::string text =
      most_steps_to_stop_ > 1
          ? "\ndeltapipe: asked to stop: a checkpoint follows the next outer step of the replicas"
          : "\ndeltapipe: asked to stop: a checkpoint follows the step under way";
  if (is_known) text += ", in about " + number_text("%.2g", seconds) + " s";
  const std::optional<double> launcher = seconds_of_launcher();
  if (launcher && marker_.ranks() > 1 && (!is_known || seconds > kShareOfLauncher * *launcher))
    text += "; after Ctrl-C or SIGTERM mpirun kills the ranks " + number_text("%g", *launcher) +
            " s from now, which may be too early: `kill -USR1` to mpirun stops them with a "
            "checkpoint, however long that takes";
  OrderlyStop::set_notice(text + "\n");
}

double Checkpoints::mean_step_seconds() const {
  return step_seconds_ / static_cast<double>(std::max<std::uint64_t>(1, timed_steps_));
}

/// The last of these steps, an outer step of the replicas after which the run can stop, may take
/// as long as the longest.
double Checkpoints::expected_step_seconds(std::uint64_t steps_to_stop) const {
  return static_cast<double>(steps_to_stop - 1) * mean_step_seconds() + longest_step_;
}

/// Before the first evaluation: as if its steps were training steps, which usually take longer.
double Checkpoints::expected_evaluation_seconds() const {
  if (longest_evaluation_ > 0) return longest_evaluation_;
  return static_cast<double>(evaluation_steps_) * mean_step_seconds();
}

bool Checkpoints::is_out_of_time(double seconds_to_come) const {
  return limit_seconds_ > 0 &&
         seconds_between(start_, Clock::now()) + seconds_to_come >= limit_seconds_;
}

void Checkpoints::evaluated(double seconds) {
  longest_evaluation_ = std::max(longest_evaluation_, seconds);
  last_notes_ = Clock::now();
}

Checkpoints::Notes Checkpoints::notes(bool evaluation_follows, std::uint64_t steps_to_stop) {
  most_steps_to_stop_ = std::max(most_steps_to_stop_, steps_to_stop);
  Notes notes{};
  const int signal = orderly_stop_ ? orderly_stop_->signal() : 0;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) notes[i] = signal == kStopSignals[i];
  const TimePoint now = Clock::now();
  const double seconds = seconds_between(last_notes_, now);
  // A start's first step takes memory for the first time.
  if (longest_step_ > 0) {
    step_seconds_ += seconds;
    ++timed_steps_;
  } else {
    step_seconds_ = seconds;
    timed_steps_ = 1;
  }
  if (seconds > longest_step_) {
    longest_step_ = seconds;
    set_notice();
  }
  last_notes_ = now;
  if (grid_.rank() == 0) {
    // After the evaluation and the steps to come there has to be time for a checkpoint.
    const double evaluation = evaluation_follows ? expected_evaluation_seconds() : 0;
    const double steps = expected_step_seconds(steps_to_stop) + longest_step_;
    if (is_out_of_time(evaluation + steps + 2 * expected_seconds())) notes[kLimit] = 1;
    if (settings_.every_seconds > 0 && seconds_between(last_begin_, now) >= settings_.every_seconds)
      notes[kTimeDue] = 1;
  }
  if (job_ && job_->is_done()) notes[job_->error.empty() ? kDone : kFailed] = 1;
  return notes;
}

void Checkpoints::hear(std::span<const double> sums) {
  for (std::size_t i = 0; i < kStopSignals.size(); ++i)
    if (stop_reason_.empty() && sums[i] > 0) stop_reason_ = name_of_signal(kStopSignals[i]);
  if (stop_reason_.empty() && sums[kLimit] > 0) stop_reason_ = limit_name_;
  is_due_by_time_ = sums[kTimeDue] > 0;
  some_failed_ = sums[kFailed] > 0;
  all_done_ = sums[kDone] + sums[kFailed] == static_cast<double>(marker_.ranks());
}

bool Checkpoints::is_milestone(std::uint64_t step) const {
  return settings_.milestone_every > 0 && step % settings_.milestone_every == 0;
}

bool Checkpoints::is_due(std::uint64_t step) const {
  return (settings_.every_steps > 0 && step % settings_.every_steps == 0) || is_milestone(step) ||
         is_due_by_time_;
}

bool Checkpoints::copies_files(std::uint64_t step) const {
  return is_milestone(step) && settings_.mode == CheckpointMode::exact;
}

bool Checkpoints::is_asked_to_stop(bool evaluation_follows) {
  std::uint64_t mine = orderly_stop_ ? static_cast<std::uint64_t>(orderly_stop_->signal()) : 0;
  if (mine == 0 && evaluation_follows && grid_.rank() == 0 &&
      is_out_of_time(expected_evaluation_seconds()))
    mine = kOutOfTime;
  const std::uint64_t reason = all_reduce(progress_, grid_.world(), mine, Reduction::max);
  if (reason == 0) return false;
  stop_reason_ = reason_of(reason);
  return true;
}

std::string Checkpoints::reason_of(std::uint64_t code) const {
  return code == kOutOfTime ? limit_name_ : name_of_signal(static_cast<int>(code));
}

bool Checkpoints::stops_evaluation(bool obeys_limit) {
  if (const int signal = orderly_stop_ ? orderly_stop_->signal() : 0; signal != 0)
    evaluation_stop_.ask(static_cast<std::uint64_t>(signal));
  else if (obeys_limit && grid_.rank() == 0 && is_out_of_time(2 * expected_seconds()))
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
  const bool limits =
      stop_reason_ == kTimeLimitKey && longest_evaluation_ > settings_.time_limit_seconds / 2;
  return limits ? longest_evaluation_ : 0;
}

void Checkpoints::warn(const std::string& what) const {
  const std::string last =
      last_complete_ ? "; that of step " + std::to_string(*last_complete_) + " stays" : "";
  std::fprintf(stderr, "\ndeltapipe: warning: the checkpoint of step %llu is given up: %s%s\n",
               static_cast<unsigned long long>(marker_.step), what.c_str(), last.c_str());
}

void Checkpoints::begin(std::uint64_t step, std::span<const StatePart> parts, RunFile* run_file) {
  const TimePoint begin = Clock::now();
  finish(run_file);
  last_begin_ = begin;
  marker_.step = step;
  marker_.milestone = is_milestone(step);
  marker_.files.clear();
  // Milestones stay and have copies of all records.
  if (!marker_.milestone)
    for (ActivationCache* const cache : caches_) cache->refer_to_file(step);
  auto content = std::make_shared<StateContent>(state_in_memory(parts));
  std::optional<RunFileSnapshot> history;
  if (run_file != nullptr) history = run_file->snapshot();
  bytes_ = content->bytes() + (history ? history->bytes() : 0);
  phase_ = Phase::writing;
  job_ = std::make_unique<CheckpointJob>([this, directory = unfinished(), content, history,
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
  last_seconds_ = record.seconds;
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
  last_seconds_ = std::max(last_seconds_, job_->seconds);
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

void remove_checkpoints_but(const std::string& directory, const CheckpointSettings& settings,
                            std::optional<std::uint64_t> one) {
  for (const std::uint64_t step : checkpoint_steps(directory))
    if (step != one && !is_milestone_of(directory, step, settings)) remove_or_warn(directory, step);
}

void remove_checkpoints_of(const std::string& directory, const std::string& run_id) {
  for (const std::uint64_t step : checkpoint_steps(directory)) try {
      const CheckpointMarker marker = read_marker(directory + "/" + checkpoint_name(step));
      if (marker.run_id == run_id && !marker.milestone) remove_or_warn(directory, step);
    } catch (const UserError&) {
    }
}

}  // namespace deltapipe
