// SPDX-License-Identifier: BSD-3-Clause
#include "core/files/run_file.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

// The first entry is the sum of the seven after it.
const std::array<RankColumn, kRankValues> kRankColumns = {{
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
    {"cache_damaged", "1", "damaged records, with which both ends begin anew"},
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
    case RunStatus::stopped:
      return "stopped";
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

/// Entries of a row, and the columns of its dataset: more after a restart on a smaller layout.
struct Width {
  std::size_t entries = 1;
  std::size_t columns = 1;
};

/// One dataset of a table, [rows] or [rows, width], and the rows that are not in it yet.
template <typename T>
class Column {
 public:
  Column(hdf5::Group& group, const ColumnText& text)
      : Column(group, text, {0}, {chunk_rows}, {1, 1}, T{}) {}
  /// `padding`: of entries that a row lacks.
  Column(hdf5::Group& group, const ColumnText& text, const Width& width, T padding = T{})
      : Column(group, text, {0, width.columns},
               {chunk_rows, std::max<std::size_t>(width.columns, 1)}, width, padding) {}

  void add(T value) {
    DELTAPIPE_ASSERT(width_.columns == 1, name_);
    rows_.push_back(value);
  }
  void add(const std::vector<T>& values) {
    DELTAPIPE_ASSERT(values.size() == width_.entries,
                     name_ + " has " + std::to_string(values.size()) + " entries, not " +
                         std::to_string(width_.entries));
    add_padded(values);
  }
  void store(std::uint64_t rows) {
    if (width_.columns == 0) return dataset_.resize(dataset_.rows() + rows);
    DELTAPIPE_ASSERT(rows_.size() == rows * width_.columns, name_);
    dataset_.append(std::span<const T>(rows_));
    rows_.clear();
  }
  /// Adds the first rows of another file's column.
  void load(const hdf5::Group& group, std::uint64_t rows) {
    const hdf5::Dataset source = group.open_dataset(name_);
    const std::size_t width = source.row_elements();
    DELTAPIPE_ASSERT(width <= width_.columns && rows <= source.rows(), name_);
    std::vector<T> values(rows * width);
    source.read(0, std::span<T>(values));
    for (std::uint64_t row = 0; row < rows; ++row) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
      add_padded({begin, begin + static_cast<std::ptrdiff_t>(width)});
    }
  }

 private:
  Column(hdf5::Group& group, const ColumnText& text, const std::vector<std::uint64_t>& shape,
         const std::vector<std::uint64_t>& chunk, const Width& width, T padding)
      : name_(text.name),
        width_(width),
        padding_(padding),
        dataset_(
            group.create_dataset(text.name, hdf5::element_type_of<T>(), shape, {.chunk = chunk})) {
    dataset_.write_attribute("unit", text.unit);
    dataset_.write_attribute("description", text.description);
  }
  void add_padded(const std::vector<T>& values) {
    rows_.insert(rows_.end(), values.begin(), values.end());
    rows_.insert(rows_.end(), width_.columns - values.size(), padding_);
  }
  std::string name_;
  Width width_;
  T padding_;
  hdf5::Dataset dataset_;
  std::vector<T> rows_;
};

using Integers = Column<std::uint64_t>;
using Reals = Column<double>;

constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

/// Widths of the columns per boundary and per rank of a pipeline.
struct TableWidths {
  Width boundaries;
  Width ranks;
};

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
  template <typename Use>
  void each(const Use& use) {
    use(step);
    use(epoch);
    use(seconds);
  }

  Integers step;
  Reals epoch;
  Reals seconds;
};

struct DirectionColumns {
  DirectionColumns(hdf5::Group& group, const std::string& direction, const Width& boundaries)
      : bytes(group, {(direction + "_bytes").c_str(), "B", "sent on the wire, headers included"},
              boundaries),
        error(group,
              {(direction + "_error").c_str(), "1",
               "relative RMS error of the codec; NaN: not measured"},
              boundaries, kNotMeasured),
        wire(group,
             {(direction + "_wire_seconds").c_str(), "s", "at least one message was travelling"},
             boundaries),
        step(group,
             {(direction + "_step").c_str(), "1",
              "rms_step of the messages, mean; NaN: none had steps of the RMS"},
             boundaries, kNotMeasured) {}

  void add(const DirectionRecord& record) {
    bytes.add(record.bytes);
    error.add(record.error);
    wire.add(record.wire_seconds);
    step.add(record.step);
  }
  template <typename Use>
  void each(const Use& use) {
    use(bytes);
    use(error);
    use(wire);
    use(step);
  }

  Integers bytes;
  Reals error;
  Reals wire;
  Reals step;
};

/// One dataset a value, [steps, ranks of a pipeline]; counts and bytes as integers.
class RankColumns {
 public:
  RankColumns(hdf5::Group& group, const Width& ranks) : ranks_(ranks.entries) {
    for (std::size_t i = 0; i < kRankValues; ++i) {
      const RankColumn& column = kRankColumns[i];
      const ColumnText text{column.name, column.unit, column.description};
      if (is_seconds(static_cast<RankValue>(i))) {
        seconds_.emplace_back(group, text, ranks);
      } else {
        counts_.emplace_back(group, text, ranks);
      }
    }
  }

  void add(const std::vector<RankRecord>& ranks) {
    DELTAPIPE_ASSERT(ranks.size() == ranks_, "ranks of a step record");
    std::vector<double> seconds(ranks_);
    std::vector<std::uint64_t> counts(ranks_);
    for (std::size_t i = 0; i < kRankValues; ++i) {
      for (std::size_t r = 0; r < ranks_; ++r) {
        seconds[r] = ranks[r][i];
        counts[r] = static_cast<std::uint64_t>(ranks[r][i]);
      }
      if (i < seconds_.size()) {
        seconds_[i].add(seconds);
      } else {
        counts_[i - seconds_.size()].add(counts);
      }
    }
  }
  template <typename Use>
  void each(const Use& use) {
    for (Reals& column : seconds_) use(column);
    for (Integers& column : counts_) use(column);
  }

 private:
  std::size_t ranks_;
  std::vector<Reals> seconds_;  ///< they come first among the values
  std::vector<Integers> counts_;
};

/// Stores the rows that wait, and takes over those of a file.
template <class Table>
class TableRows {
 public:
  void store() {
    const std::uint64_t rows = std::exchange(waiting_, 0);
    if (rows == 0) return;
    static_cast<Table*>(this)->each([rows](auto& column) { column.store(rows); });
  }
  void load(const hdf5::Group& group, std::uint64_t rows) {
    static_cast<Table*>(this)->each([&](auto& column) { column.load(group, rows); });
    waiting_ += rows;
  }

 protected:
  std::uint64_t waiting_ = 0;
};

class StepTable : public TableRows<StepTable> {
 public:
  StepTable(hdf5::Group group, const TableWidths& widths)
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
        forward_(group, "forward", widths.boundaries),
        backward_(group, "backward", widths.boundaries),
        forward_predicted_(group,
                           {"forward_predicted", "1",
                            "share of the squared changes that prediction took away; NaN: none"},
                           widths.boundaries, kNotMeasured),
        ranks_(group, widths.ranks) {}

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
    ranks_.add(record.ranks);
    ++waiting_;
  }
  template <typename Use>
  void each(const Use& use) {
    progress_.each(use);
    for (Reals* const column :
         {&loss_, &learning_rate_, &gradient_norm_, &tied_row_error_, &tied_gradient_error_})
      use(*column);
    for (Integers* const column :
         {&tokens_, &samples_, &tied_row_bytes_, &tied_gradient_bytes_, &collective_bytes_})
      use(*column);
    forward_.each(use);
    backward_.each(use);
    use(forward_predicted_);
    ranks_.each(use);
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
  RankColumns ranks_;
};

/// Of evaluations that sent activations in one way; `prefix` of the names.
struct EvaluationColumns {
  EvaluationColumns(hdf5::Group& group, const std::string& prefix, const std::string& way,
                    const Width& boundaries)
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
        boundaries_(boundaries.entries) {}

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
  template <typename Use>
  void each(const Use& use) {
    use(loss);
    use(perplexity);
    use(forward_bytes);
    use(tied_row_bytes);
    use(collective_bytes);
  }

  Reals loss;
  Reals perplexity;
  Integers forward_bytes;
  Integers tied_row_bytes;
  Integers collective_bytes;

 private:
  std::size_t boundaries_;
};

class EvaluationTable : public TableRows<EvaluationTable> {
 public:
  EvaluationTable(hdf5::Group group, const TableWidths& widths, bool evaluates_codec)
      : progress_(group),
        tokens_(group, {"tokens", "1", "predicted tokens of the evaluation"}),
        plain_(group, "", "", widths.boundaries) {
    if (evaluates_codec)
      codec_.emplace(group, "codec_", ", activations through the codecs", widths.boundaries);
  }

  void add(const EvaluationRecord& record) {
    progress_.add(record);
    tokens_.add(record.tokens);
    plain_.add(record.plain);
    DELTAPIPE_ASSERT(codec_ || !record.codec, "a file without columns for this evaluation");
    if (codec_) codec_->add(record.codec);
    ++waiting_;
  }
  template <typename Use>
  void each(const Use& use) {
    progress_.each(use);
    use(tokens_);
    plain_.each(use);
    if (codec_) codec_->each(use);
  }

 private:
  ProgressColumns progress_;
  Integers tokens_;
  EvaluationColumns plain_;
  std::optional<EvaluationColumns> codec_;
};

class CheckpointTable : public TableRows<CheckpointTable> {
 public:
  explicit CheckpointTable(hdf5::Group group)
      : step_(group, {"step", "1", "steps that the checkpoint has"}),
        bytes_(group, {"bytes", "B", "of all ranks' files"}),
        blocked_(group, {"blocked_seconds", "s", "training waited, the rank that waited longest"}),
        seconds_(group,
                 {"seconds", "s", "from the step's end until all ranks' states were on the disk"}) {
  }
  void add(const CheckpointRecord& record) {
    step_.add(record.step);
    bytes_.add(record.bytes);
    blocked_.add(record.blocked_seconds);
    seconds_.add(record.seconds);
    ++waiting_;
  }
  template <typename Use>
  void each(const Use& use) {
    use(step_);
    use(bytes_);
    use(blocked_);
    use(seconds_);
  }

 private:
  Integers step_, bytes_;
  Reals blocked_, seconds_;
};

/// A start of the run from a checkpoint.
struct RestartRecord {
  std::uint64_t step = 0;
  double time = 0;  ///< seconds since 1970, UTC
  std::string revision;
  std::string changes;  ///< of the deck, on purpose
};

/// Of text in an attribute.
constexpr std::size_t kLongestList = 60000;

class RestartTable : public TableRows<RestartTable> {
 public:
  explicit RestartTable(hdf5::Group group)
      : step_(group, {"step", "1", "step of the checkpoint that the run started from"}),
        time_(group, {"time", "s", "of the start, since 1970 (UTC)"}),
        group_(std::move(group)) {}
  void add(const RestartRecord& record) {
    step_.add(record.step);
    time_.add(record.time);
    revisions_ += (revisions_.empty() ? "" : "\n") + record.revision;
    group_.write_fixed_attribute("revisions", revisions_.substr(0, kLongestList));
    changes_ += (times_ == 0 ? "" : "\n") + record.changes;
    group_.write_fixed_attribute("changes", changes_.substr(0, kLongestList));
    ++times_;
    ++waiting_;
  }
  template <typename Use>
  void each(const Use& use) {
    use(step_);
    use(time_);
  }

 private:
  Integers step_;
  Reals time_;
  hdf5::Group group_;
  std::string revisions_, changes_;  ///< a line each
  std::size_t times_ = 0;            ///< rows
};

hdf5::File make_file(const std::string& path, const RunAttributes& attributes) {
  hdf5::File file = hdf5::File::create_in_memory(path);
  file.write_attribute("format_version", format_version);
  file.write_attribute("deltapipe_version", attributes.deltapipe_version);
  file.write_attribute("source_revision", attributes.source_revision);
  file.write_attribute("deck", attributes.deck);
  file.write_attribute("stages", attributes.layout.stages);
  file.write_attribute("replicas", attributes.layout.replicas);
  file.write_attribute("stages_per_rank", attributes.layout.stages_per_rank);
  file.write_attribute("partition", attributes.partition);
  file.write_attribute("parameters", attributes.parameters);
  file.write_attribute("trained_parameters", attributes.trained_parameters);
  file.write_attribute("kokkos", attributes.kokkos);
  if (!attributes.run_id.empty()) file.write_fixed_attribute("run_id", attributes.run_id);
  file.write_attribute("started", utc_now());
  file.write_attribute("status", name_of(RunStatus::running));
  return file;
}

template <typename T>
std::vector<T> column_of(const hdf5::Group& group, const std::string& name) {
  const hdf5::Dataset dataset = group.open_dataset(name);
  dataset.expect_stored();
  std::vector<T> values(dataset.rows() * dataset.row_elements());
  dataset.read(0, std::span<T>(values));
  return values;
}

/// An earlier run file that a run goes on with.
class FormerFile {
 public:
  explicit FormerFile(const std::string& path)
      : file_(hdf5::File::open_read_only(path)),
        steps_(column_of<std::uint64_t>(file_.open_group("steps"), "step")) {}

  std::string run_id() const { return file_.find_plain_attribute("run_id").value_or(""); }
  /// Empty: the file does not say.
  std::string kokkos() const {
    return file_.has_attribute("kokkos") ? file_.read_string_attribute("kokkos") : "";
  }
  std::string started() const { return file_.read_string_attribute("started"); }
  hdf5::Group steps() const { return file_.open_group("steps"); }
  hdf5::Group evaluations() const { return file_.open_group("evaluations"); }

  /// UserError unless there is a row for each of the first steps.
  void expect_steps(std::uint64_t count) const {
    for (std::uint64_t row = 0; row < count; ++row)
      if (row >= steps_.size() || steps_[row] != row + 1)
        throw UserError({.what = "the run file of a checkpoint lacks step " +
                                 std::to_string(row + 1) + " of " + std::to_string(count),
                         .file = file_.file_name(),
                         .remedy = "start from another checkpoint"});
  }
  std::uint64_t evaluations_until(std::uint64_t step) const {
    const std::vector<std::uint64_t> at = column_of<std::uint64_t>(evaluations(), "step");
    return static_cast<std::uint64_t>(std::upper_bound(at.begin(), at.end(), step) - at.begin());
  }
  std::size_t rank_columns() const {
    return steps().open_dataset(kRankColumns[0].name).row_elements();
  }
  std::size_t boundary_columns() const {
    return steps().open_dataset("forward_bytes").row_elements();
  }

  std::vector<RestartRecord> restarts() const {
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
  std::vector<CheckpointRecord> checkpoints_until(std::uint64_t step) const {
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

 private:
  hdf5::File file_;
  std::vector<std::uint64_t> steps_;
};

TableWidths widths_of(const RunLayout& layout, const FormerFile* former) {
  TableWidths widths;
  widths.boundaries.entries = static_cast<std::size_t>(layout.boundaries());
  widths.ranks.entries = static_cast<std::size_t>(layout.ranks());
  widths.boundaries.columns =
      std::max(widths.boundaries.entries, former == nullptr ? 0 : former->boundary_columns());
  widths.ranks.columns =
      std::max(widths.ranks.entries, former == nullptr ? 0 : former->rank_columns());
  return widths;
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::optional<RunFileSummary> find_run_file(const std::string& path) {
  try {
    const hdf5::File file = hdf5::File::open_read_only(path);
    const auto rows = [&](const char* table) -> std::uint64_t {
      return file.exists(table) ? file.open_group(table).open_dataset("step").rows() : 0;
    };
    return RunFileSummary{
        file.find_plain_attribute("finished") == "1",
        file.find_plain_attribute("run_id").value_or(""), rows("checkpoints") > 0,
        file.has_attribute("deck") ? file.read_string_attribute("deck") : std::string(),
        rows("steps")};
  } catch (const UserError&) {
    return std::nullopt;
  }
}

class RunFile::State {
 public:
  State(const std::string& path, const RunAttributes& attributes, const FormerFile* former,
        Warn warn, std::chrono::duration<double> flush_interval)
      : path_(path),
        warn_(std::move(warn)),
        flush_interval_(flush_interval),
        file_(make_file(path, attributes)),
        steps_(file_.create_group("steps"), widths_of(attributes.layout, former)),
        evaluations_(file_.create_group("evaluations"), widths_of(attributes.layout, former),
                     attributes.evaluates_codec) {}

  void go_on(const FormerFile& former, const RunFileContinuation& continuation,
             const RunAttributes& attributes) {
    former.expect_steps(continuation.checkpoint.step);
    const std::string kokkos = former.kokkos();
    if (warn_ && !kokkos.empty() && kokkos != attributes.kokkos)
      warn_("the run so far was computed with " + printable(kokkos) + ", it goes on with " +
            attributes.kokkos +
            ": results may differ by rounding from those of a run without a break");
    steps_.load(former.steps(), continuation.checkpoint.step);
    evaluations_.load(former.evaluations(), former.evaluations_until(continuation.checkpoint.step));
    file_.write_attribute("started", former.started());
    take_lists(former, continuation);
    add_restart({continuation.checkpoint.step, seconds_since_1970(), attributes.source_revision,
                 continuation.changes});
  }

  void add_restart(const RestartRecord& record) {
    if (!restarts_) restarts_.emplace(file_.create_group("restarts"));
    restarts_->add(record);
  }

  template <typename Record>
  void append(const Record& record) {
    DELTAPIPE_ASSERT(!closed_, path_);
    if constexpr (std::is_same_v<Record, StepRecord>) {
      steps_.add(record);
    } else if constexpr (std::is_same_v<Record, CheckpointRecord>) {
      if (!checkpoints_) checkpoints_.emplace(file_.create_group("checkpoints"));
      checkpoints_->add(record);
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

  std::vector<std::byte> image() {
    store_rows();
    return file_.image();
  }

  bool is_closed() const { return closed_; }

  void close(RunStatus status, const std::string& reason) {
    file_.write_attribute("status", name_of(status));
    const bool is_finished = status == RunStatus::finished;
    if (is_finished) file_.write_attribute("finished", 1);
    if (!reason.empty()) file_.write_attribute("reason", reason);
    file_.write_attribute("stopped", utc_now());
    try {
      replace_file();
    } catch (...) {
      // It may be closed again, as failed.
      if (is_finished) file_.write_attribute("finished", 0);
      throw;
    }
    closed_ = true;
  }

  void replace_file() {
    const Clock::time_point begin = Clock::now();
    // Set first: after a failure (full disk) the next attempt waits as well.
    next_flush_ = begin + std::chrono::duration_cast<Clock::duration>(flush_interval_);
    store_rows();
    write_file_atomically(path_, std::span<const std::byte>(file_.image()));
    const Clock::time_point end = Clock::now();
    const std::chrono::duration<double> pause = (end - begin) / flush_cost;
    next_flush_ =
        end + std::chrono::duration_cast<Clock::duration>(std::max(flush_interval_, pause));
  }

 private:
  void store_rows() {
    steps_.store();
    evaluations_.store();
    if (restarts_) restarts_->store();
    if (checkpoints_) checkpoints_->store();
  }

  /// What happened after the checkpoint is in the newer file only; what happened before it may be
  /// in the checkpoint's only, if a kill came before the newer one was flushed.
  void take_lists(const FormerFile& history, const RunFileContinuation& continuation) {
    std::optional<FormerFile> last;
    try {
      last.emplace(continuation.last);
      if (last->run_id() != history.run_id()) last.reset();
    } catch (const UserError&) {
      last.reset();
    }
    std::map<double, RestartRecord> restarts;               // by time
    std::map<std::uint64_t, CheckpointRecord> checkpoints;  // by step
    const auto take = [&](const FormerFile& file) {
      for (const RestartRecord& record : file.restarts()) restarts.emplace(record.time, record);
      for (const CheckpointRecord& record :
           file.checkpoints_until(continuation.checkpoint.step - 1))
        checkpoints.emplace(record.step, record);
    };
    if (last) take(*last);
    take(history);
    for (const auto& [time, record] : restarts) add_restart(record);
    for (const auto& [step, record] : checkpoints) append(record);
    append(continuation.checkpoint);
  }

  std::string path_;
  Warn warn_;
  std::chrono::duration<double> flush_interval_;
  hdf5::File file_;
  StepTable steps_;
  EvaluationTable evaluations_;
  std::optional<RestartTable> restarts_;                     ///< once there is one
  std::optional<CheckpointTable> checkpoints_;               ///< the same
  Clock::time_point next_flush_ = Clock::time_point::max();  ///< not before the first file
  bool closed_ = false;
  bool warned_ = false;
};

RunFile::RunFile(const std::string& path, const RunAttributes& attributes, Warn warn,
                 std::chrono::duration<double> flush_interval)
    : state_(std::make_unique<State>(path, attributes, nullptr, std::move(warn), flush_interval)) {
  state_->replace_file();
}

RunFile::RunFile(const std::string& path, const RunAttributes& attributes,
                 const RunFileContinuation& continuation, Warn warn,
                 std::chrono::duration<double> flush_interval) {
  const FormerFile history(continuation.history);
  state_ = std::make_unique<State>(path, attributes, &history, std::move(warn), flush_interval);
  state_->go_on(history, continuation, attributes);
  state_->replace_file();
}

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

void RunFile::append(const CheckpointRecord& record) {
  state_->append(record);
}

std::vector<std::byte> RunFile::image() {
  return state_->image();
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
