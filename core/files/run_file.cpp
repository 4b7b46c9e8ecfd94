// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/run_file.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

// The first entry is the sum of the seven after it.
const std::array<StageColumn, kStageValues> kStageColumns = {{
    {"wall_seconds", "s", "wall time of the step"},
    {"compute_seconds", "s", "kernels of the model and the optimizer"},
    {"codec_seconds", "s", "encoding and decoding"},
    {"cache_seconds", "s", "activation cache: copies and waiting for its file"},
    {"wire_exposed_seconds", "s", "waiting for a message on its way, or for room to send one"},
    {"bubble_seconds", "s", "waiting for a stage that had nothing to send yet"},
    {"replica_wait_seconds", "s", "waiting for sums of gradients over replicas"},
    {"other_seconds", "s", "loading samples, checksums, bookkeeping"},
    {"wire_seconds", "s", "at least one message to or from the rank was travelling"},
    {"wire_hidden_seconds", "s", "the part of wire_seconds in which the rank did not wait"},
    {"cache_stall_seconds", "s", "the part of cache_seconds that waits for the file"},
    {"cache_first_visits", "1", "samples that had no memory yet"},
    {"cache_hits", "1", "memories found in device memory"},
    {"cache_misses", "1", "memories that came from the file"},
    {"cache_late_misses", "1", "of the misses, those that were waited for"},
    {"cache_bytes_read", "B", "read from the cache's file"},
    {"cache_bytes_written", "B", "written to the cache's file"},
    {"replica_bytes", "B",
     "sums of gradients over replicas: 2 (replicas - 1) times the gradients, what a ring sends"},
}};

namespace {

using Clock = std::chrono::steady_clock;

constexpr int format_version = 2;
constexpr std::uint64_t chunk_rows = 512;
/// A flush may cost this fraction of the time until the next.
constexpr double flush_cost = 0.01;

const char* name_of(RunStatus status) {
  switch (status) {
    case RunStatus::running:
      return "running";
    case RunStatus::finished:
      return "finished";
    case RunStatus::failed:
      return "failed";
    case RunStatus::interrupted:
      return "interrupted";
  }
  throw InternalError("unknown run status");
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  DELTAPIPE_ASSERT(gmtime_r(&now, &parts) != nullptr, "the clock");
  char text[sizeof "2000-01-01T00:00:00Z"];
  const std::size_t length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return {text, length};
}

struct ColumnText {
  const char* name;
  const char* unit;
  const char* description;
};

/// One dataset of a table, [rows] or [rows, width], and the rows that are not in it yet.
template <typename T>
class Column {
 public:
  Column(hdf5::Group& group, const ColumnText& text) : Column(group, text, {0}, {chunk_rows}, 1) {}
  Column(hdf5::Group& group, const ColumnText& text, std::size_t width)
      : Column(group, text, {0, width}, {chunk_rows, std::max<std::size_t>(width, 1)}, width) {}

  void add(T value) {
    DELTAPIPE_ASSERT(width_ == 1, name_);
    rows_.push_back(value);
  }
  void add(const std::vector<T>& values) {
    DELTAPIPE_ASSERT(values.size() == width_, name_ + " has " + std::to_string(values.size()) +
                                                  " entries, not " + std::to_string(width_));
    rows_.insert(rows_.end(), values.begin(), values.end());
  }
  void store(std::uint64_t rows) {
    if (width_ == 0) return dataset_.resize(dataset_.rows() + rows);
    DELTAPIPE_ASSERT(rows_.size() == rows * width_, name_);
    dataset_.append(std::span<const T>(rows_));
    rows_.clear();
  }

 private:
  Column(hdf5::Group& group, const ColumnText& text, const std::vector<std::uint64_t>& shape,
         const std::vector<std::uint64_t>& chunk, std::size_t width)
      : name_(text.name),
        width_(width),
        dataset_(
            group.create_dataset(text.name, hdf5::element_type_of<T>(), shape, {.chunk = chunk})) {
    dataset_.write_attribute("unit", text.unit);
    dataset_.write_attribute("description", text.description);
  }
  std::string name_;
  std::size_t width_;
  hdf5::Dataset dataset_;
  std::vector<T> rows_;
};

using Integers = Column<std::uint64_t>;
using Reals = Column<double>;

/// The columns that steps and evaluations share.
struct ProgressColumns {
  explicit ProgressColumns(hdf5::Group& group)
      : step(group, {"step", "1", "optimizer step, counted from 1"}),
        epoch(group, {"epoch", "1", "passes over the training data"}),
        seconds(group, {"seconds", "s", "time of training so far, without evaluations"}) {}

  template <typename Record>
  void add(const Record& record) {
    step.add(record.step);
    epoch.add(record.epoch);
    seconds.add(record.seconds);
  }
  void store(std::uint64_t rows) {
    step.store(rows);
    epoch.store(rows);
    seconds.store(rows);
  }

  Integers step;
  Reals epoch;
  Reals seconds;
};

struct DirectionColumns {
  DirectionColumns(hdf5::Group& group, const std::string& direction, std::size_t boundaries)
      : bytes(group, {(direction + "_bytes").c_str(), "B", "sent on the wire, headers included"},
              boundaries),
        error(group,
              {(direction + "_error").c_str(), "1",
               "relative RMS error of the codec; NaN: not measured"},
              boundaries),
        wire(group,
             {(direction + "_wire_seconds").c_str(), "s", "at least one message was travelling"},
             boundaries),
        step(group,
             {(direction + "_step").c_str(), "1",
              "rms_step of the messages, mean; NaN: none had steps of the RMS"},
             boundaries) {}

  void add(const DirectionRecord& record) {
    bytes.add(record.bytes);
    error.add(record.error);
    wire.add(record.wire_seconds);
    step.add(record.step);
  }
  void store(std::uint64_t rows) {
    bytes.store(rows);
    error.store(rows);
    wire.store(rows);
    step.store(rows);
  }

  Integers bytes;
  Reals error;
  Reals wire;
  Reals step;
};

/// One dataset a value, [steps, stages]; counts and bytes as integers.
class StageColumns {
 public:
  StageColumns(hdf5::Group& group, std::size_t stages) : stages_(stages) {
    for (std::size_t i = 0; i < kStageValues; ++i) {
      const StageColumn& column = kStageColumns[i];
      const ColumnText text{column.name, column.unit, column.description};
      if (is_seconds(static_cast<StageValue>(i))) {
        seconds_.emplace_back(group, text, stages);
      } else {
        counts_.emplace_back(group, text, stages);
      }
    }
  }

  void add(const std::vector<StageRecord>& stages) {
    DELTAPIPE_ASSERT(stages.size() == stages_, "stages of a step record");
    std::vector<double> seconds(stages_);
    std::vector<std::uint64_t> counts(stages_);
    for (std::size_t i = 0; i < kStageValues; ++i) {
      for (std::size_t s = 0; s < stages_; ++s) {
        seconds[s] = stages[s][i];
        counts[s] = static_cast<std::uint64_t>(stages[s][i]);
      }
      if (i < seconds_.size()) {
        seconds_[i].add(seconds);
      } else {
        counts_[i - seconds_.size()].add(counts);
      }
    }
  }
  void store(std::uint64_t rows) {
    for (Reals& column : seconds_) column.store(rows);
    for (Integers& column : counts_) column.store(rows);
  }

 private:
  std::size_t stages_;
  std::vector<Reals> seconds_;  ///< they come first among the values
  std::vector<Integers> counts_;
};

class StepTable {
 public:
  StepTable(hdf5::Group group, const RunLayout& layout)
      : progress_(group),
        loss_(group, {"loss", "nat", "mean training loss of the step's tokens"}),
        learning_rate_(group, {"learning_rate", "1", "learning rate of the step"}),
        gradient_norm_(group, {"gradient_norm", "1", "global gradient norm before clipping"}),
        tokens_(group, {"tokens", "1", "predicted tokens of the step, all replicas"}),
        samples_(group, {"samples", "1", "samples of the step, all replicas"}),
        tied_row_bytes_(group, {"tied_row_bytes", "B",
                                "token rows from the last stage to the first, on the wire"}),
        tied_gradient_bytes_(
            group, {"tied_gradient_bytes", "B",
                    "gradients of token rows from the first stage to the last, on the wire"}),
        collective_bytes_(group, {"collective_bytes", "B",
                                  "sums over all ranks, as much as a tree or a ring sends"}),
        tied_row_error_(group, {"tied_row_error", "1",
                                "relative RMS error of the token rows' codec; NaN: not measured"}),
        tied_gradient_error_(
            group, {"tied_gradient_error", "1",
                    "relative RMS error of the codec of their gradients; NaN: not measured"}),
        forward_(group, "forward", static_cast<std::size_t>(layout.boundaries())),
        backward_(group, "backward", static_cast<std::size_t>(layout.boundaries())),
        forward_predicted_(group,
                           {"forward_predicted", "1",
                            "share of the squared changes that prediction took away; NaN: none"},
                           static_cast<std::size_t>(layout.boundaries())),
        stages_(group, static_cast<std::size_t>(layout.stages)) {}

  void add(const StepRecord& record) {
    progress_.add(record);
    loss_.add(record.loss);
    learning_rate_.add(record.learning_rate);
    gradient_norm_.add(record.gradient_norm);
    tokens_.add(record.tokens);
    samples_.add(record.samples);
    tied_row_bytes_.add(record.tied_row_bytes);
    tied_gradient_bytes_.add(record.tied_gradient_bytes);
    collective_bytes_.add(record.collective_bytes);
    tied_row_error_.add(record.tied_row_error);
    tied_gradient_error_.add(record.tied_gradient_error);
    forward_.add(record.forward);
    backward_.add(record.backward);
    forward_predicted_.add(record.forward_predicted);
    stages_.add(record.stages);
    ++waiting_;
  }
  void store() {
    const std::uint64_t rows = std::exchange(waiting_, 0);
    if (rows == 0) return;
    progress_.store(rows);
    loss_.store(rows);
    learning_rate_.store(rows);
    gradient_norm_.store(rows);
    tokens_.store(rows);
    samples_.store(rows);
    tied_row_bytes_.store(rows);
    tied_gradient_bytes_.store(rows);
    collective_bytes_.store(rows);
    tied_row_error_.store(rows);
    tied_gradient_error_.store(rows);
    forward_.store(rows);
    backward_.store(rows);
    forward_predicted_.store(rows);
    stages_.store(rows);
  }

 private:
  ProgressColumns progress_;
  Reals loss_;
  Reals learning_rate_;
  Reals gradient_norm_;
  Integers tokens_;
  Integers samples_;
  Integers tied_row_bytes_;
  Integers tied_gradient_bytes_;
  Integers collective_bytes_;
  Reals tied_row_error_;
  Reals tied_gradient_error_;
  DirectionColumns forward_;
  DirectionColumns backward_;
  Reals forward_predicted_;
  StageColumns stages_;
  std::uint64_t waiting_ = 0;
};

/// Of evaluations that sent activations in one way; `prefix` of the names.
struct EvaluationColumns {
  EvaluationColumns(hdf5::Group& group, const std::string& prefix, const std::string& way,
                    std::size_t boundaries)
      : loss(group,
             {(prefix + "loss").c_str(), "nat", ("mean validation loss per token" + way).c_str()}),
        perplexity(group, {(prefix + "perplexity").c_str(), "1", ("exp(loss)" + way).c_str()}),
        forward_bytes(group,
                      {(prefix + "forward_bytes").c_str(), "B",
                       ("sent on the wire, headers included" + way).c_str()},
                      boundaries),
        tied_row_bytes(
            group, {(prefix + "tied_row_bytes").c_str(), "B",
                    ("token rows from the last stage to the first, on the wire" + way).c_str()}),
        collective_bytes(group, {(prefix + "collective_bytes").c_str(), "B",
                                 ("small sums over all ranks" + way).c_str()}),
        boundaries_(boundaries) {}

  /// Null: NaN, and no bytes.
  void add(const std::optional<EvaluationFigures>& figures) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const EvaluationFigures none{nan, nan, std::vector<std::uint64_t>(boundaries_), 0, 0};
    const EvaluationFigures& f = figures ? *figures : none;
    loss.add(f.loss);
    perplexity.add(f.perplexity);
    forward_bytes.add(f.forward_bytes);
    tied_row_bytes.add(f.tied_row_bytes);
    collective_bytes.add(f.collective_bytes);
  }
  void store(std::uint64_t rows) {
    loss.store(rows);
    perplexity.store(rows);
    forward_bytes.store(rows);
    tied_row_bytes.store(rows);
    collective_bytes.store(rows);
  }

  Reals loss;
  Reals perplexity;
  Integers forward_bytes;
  Integers tied_row_bytes;
  Integers collective_bytes;

 private:
  std::size_t boundaries_;
};

class EvaluationTable {
 public:
  EvaluationTable(hdf5::Group group, const RunAttributes& attributes)
      : progress_(group),
        tokens_(group, {"tokens", "1", "predicted tokens of the evaluation"}),
        fp32_(group, "", "", static_cast<std::size_t>(attributes.layout.boundaries())) {
    if (attributes.evaluates_codec)
      codec_.emplace(group, "codec_", ", activations through the codecs",
                     static_cast<std::size_t>(attributes.layout.boundaries()));
  }

  void add(const EvaluationRecord& record) {
    progress_.add(record);
    tokens_.add(record.tokens);
    fp32_.add(record.fp32);
    DELTAPIPE_ASSERT(codec_ || !record.codec, "a file without columns for this evaluation");
    if (codec_) codec_->add(record.codec);
    ++waiting_;
  }
  void store() {
    const std::uint64_t rows = std::exchange(waiting_, 0);
    if (rows == 0) return;
    progress_.store(rows);
    tokens_.store(rows);
    fp32_.store(rows);
    if (codec_) codec_->store(rows);
  }

 private:
  ProgressColumns progress_;
  Integers tokens_;
  EvaluationColumns fp32_;
  std::optional<EvaluationColumns> codec_;
  std::uint64_t waiting_ = 0;
};

hdf5::File make_file(const std::string& path, const RunAttributes& attributes) {
  hdf5::File file = hdf5::File::create_in_memory(path);
  file.write_attribute("format_version", format_version);
  file.write_attribute("deltapipe_version", attributes.deltapipe_version);
  file.write_attribute("source_revision", attributes.source_revision);
  file.write_attribute("deck", attributes.deck);
  file.write_attribute("stages", attributes.layout.stages);
  file.write_attribute("replicas", attributes.layout.replicas);
  file.write_attribute("partition", attributes.partition);
  file.write_attribute("parameters", attributes.parameters);
  file.write_attribute("trained_parameters", attributes.trained_parameters);
  file.write_attribute("kokkos", attributes.kokkos);
  file.write_attribute("started", utc_now());
  file.write_attribute("status", name_of(RunStatus::running));
  return file;
}

}  // namespace

class RunFile::State {
 public:
  State(const std::string& path, const RunAttributes& attributes, Warn warn,
        std::chrono::duration<double> flush_interval)
      : path_(path),
        warn_(std::move(warn)),
        flush_interval_(flush_interval),
        file_(make_file(path, attributes)),
        steps_(file_.create_group("steps"), attributes.layout),
        evaluations_(file_.create_group("evaluations"), attributes) {
    replace_file();
  }

  template <typename Record>
  void append(const Record& record) {
    DELTAPIPE_ASSERT(!closed_, path_);
    if constexpr (std::is_same_v<Record, StepRecord>) {
      steps_.add(record);
    } else {
      evaluations_.add(record);
    }
    if (Clock::now() >= next_flush_) flush();
  }

  void write_memory(const std::vector<RankMemoryRecord>& ranks) {
    hdf5::Group group = file_.create_group("memory");
    const auto write = [&](const std::string& name, const char* description, const auto& bytes_of) {
      std::vector<std::uint64_t> bytes;
      for (const RankMemoryRecord& rank : ranks) bytes.push_back(bytes_of(rank));
      hdf5::Dataset dataset =
          group.create_dataset(name, hdf5::element_type_of<std::uint64_t>(), {0},
                               {.chunk = {std::max<std::uint64_t>(1, ranks.size())}});
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
    for (std::size_t use = 0; !ranks.empty() && use < ranks.front().uses.size(); ++use)
      write(ranks.front().uses[use].first, "of the prediction: taken for this",
            [use](const R& r) { return r.uses[use].second; });
  }

  void flush() {
    try {
      replace_file();
      warned_ = false;
    } catch (const UserError& error) {
      if (!std::exchange(warned_, true) && warn_)
        warn_(std::string(error.what()) +
              "; the run goes on, what run.h5 lacks is kept in memory and written later");
    }
  }

  bool is_closed() const { return closed_; }

  void close(RunStatus status, const std::string& reason) {
    file_.write_attribute("status", name_of(status));
    if (!reason.empty()) file_.write_attribute("reason", reason);
    file_.write_attribute("stopped", utc_now());
    replace_file();
    closed_ = true;
  }

 private:
  void replace_file() {
    const Clock::time_point begin = Clock::now();
    // Set first: after a failure (full disk) the next attempt waits as well.
    next_flush_ = begin + std::chrono::duration_cast<Clock::duration>(flush_interval_);
    steps_.store();
    evaluations_.store();
    write_file_atomically(path_, std::span<const std::byte>(file_.image()));
    const Clock::time_point end = Clock::now();
    const std::chrono::duration<double> pause = (end - begin) / flush_cost;
    next_flush_ =
        end + std::chrono::duration_cast<Clock::duration>(std::max(flush_interval_, pause));
  }

  std::string path_;
  Warn warn_;
  std::chrono::duration<double> flush_interval_;
  hdf5::File file_;
  StepTable steps_;
  EvaluationTable evaluations_;
  Clock::time_point next_flush_;
  bool closed_ = false;
  bool warned_ = false;
};

RunFile::RunFile(const std::string& path, const RunAttributes& attributes, Warn warn,
                 std::chrono::duration<double> flush_interval)
    : state_(std::make_unique<State>(path, attributes, std::move(warn), flush_interval)) {}

RunFile::RunFile(RunFile&&) noexcept = default;

RunFile::~RunFile() {
  if (state_ == nullptr || state_->is_closed()) return;
  try {
    state_->close(RunStatus::failed, "");
  } catch (const std::exception&) {
    // A destructor cannot report; the file on disk is the one of the last flush.
  }
}

void RunFile::append(const StepRecord& record) {
  state_->append(record);
}

void RunFile::append(const EvaluationRecord& record) {
  state_->append(record);
}

void RunFile::write_memory(const std::vector<RankMemoryRecord>& ranks) {
  state_->write_memory(ranks);
}

void RunFile::flush() {
  state_->flush();
}

void RunFile::close(RunStatus status, const std::string& reason) {
  state_->close(status, reason);
}

}  // namespace deltapipe
