// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/run_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int format_version = 2;
constexpr std::uint64_t chunk_rows = 512;
/// A flush may cost this fraction of the time until the next, unless more rows wait than these.
constexpr double flush_cost = 0.01;
constexpr std::uint64_t kWaitingBytes = std::uint64_t{16} << 20;

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
  std::string name;
  std::string unit;
  std::string description;
};

/// Entries of a row, and the columns of its dataset: more after a restart on a smaller layout.
struct Width {
  std::size_t entries = 1;
  std::size_t columns = 1;
};

/// One dataset of a table, [rows] or [rows, width], and the rows that are not in the file yet.
template <typename T>
class Column {
 public:
  explicit Column(ColumnText text) : text_(std::move(text)), is_list_(true) {}
  /// `padding`: of entries that a row lacks.
  Column(ColumnText text, const Width& width, T padding = T{})
      : text_(std::move(text)), width_(width), padding_(padding) {}

  void add(T value) {
    DELTAPIPE_ASSERT(width_.columns == 1, text_.name);
    rows_.push_back(value);
  }
  void add(const std::vector<T>& values) {
    DELTAPIPE_ASSERT(values.size() == width_.entries,
                     text_.name + " has " + std::to_string(values.size()) + " entries, not " +
                         std::to_string(width_.entries));
    add_padded(values, rows_);
  }
  void create(hdf5::Group& group) const {
    std::vector<std::uint64_t> shape = {0}, chunk = {chunk_rows};
    if (!is_list_) {
      shape.push_back(width_.columns);
      chunk.push_back(std::max<std::size_t>(width_.columns, 1));
    }
    hdf5::Dataset dataset =
        group.create_dataset(text_.name, hdf5::element_type_of<T>(), shape, {.chunk = chunk});
    dataset.write_attribute("unit", text_.unit);
    dataset.write_attribute("description", text_.description);
  }
  void store(hdf5::Group& group, std::uint64_t rows) const {
    hdf5::Dataset dataset = group.open_dataset(text_.name);
    if (width_.columns == 0) return dataset.resize(dataset.rows() + rows);
    DELTAPIPE_ASSERT(rows_.size() == rows * width_.columns, text_.name);
    dataset.append(std::span<const T>(rows_));
  }
  void clear() { rows_.clear(); }
  std::uint64_t bytes() const { return rows_.size() * sizeof(T); }
  /// The most that the file grows by with these rows and `others`.
  std::uint64_t room(std::uint64_t others) const {
    constexpr std::uint64_t kIndex = std::uint64_t{16} << 10;
    return bytes() + (others + 2 * chunk_rows) * width_.columns * sizeof(T) + kIndex;
  }
  /// Copies the first rows of another file's column, some at a time.
  void load(hdf5::Group& group, const hdf5::Group& former, std::uint64_t rows) const {
    hdf5::Dataset dataset = group.open_dataset(text_.name);
    const hdf5::Dataset source = former.open_dataset(text_.name);
    const std::size_t width = source.row_elements();
    DELTAPIPE_ASSERT(width <= width_.columns && rows <= source.rows(), text_.name);
    if (width_.columns == 0) return dataset.resize(rows);
    for (std::uint64_t first = 0; first < rows; first += chunk_rows) {
      const std::uint64_t count = std::min(chunk_rows, rows - first);
      std::vector<T> values(count * width), padded;
      source.read(first, std::span<T>(values));
      for (std::uint64_t row = 0; row < count; ++row) {
        const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row * width);
        add_padded({begin, begin + static_cast<std::ptrdiff_t>(width)}, padded);
      }
      dataset.append(std::span<const T>(padded));
    }
  }

 private:
  void add_padded(const std::vector<T>& values, std::vector<T>& rows) const {
    rows.insert(rows.end(), values.begin(), values.end());
    rows.insert(rows.end(), width_.columns - values.size(), padding_);
  }
  ColumnText text_;
  Width width_;
  bool is_list_ = false;
  T padding_{};
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
  ProgressColumns()
      : step({"step", "1", "optimizer steps done so far"}),
        epoch({"epoch", "1", "passes over the training data"}),
        seconds({"seconds", "s", "time of training so far, without evaluations"}) {}

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
  DirectionColumns(const std::string& direction, const Width& boundaries)
      : bytes({direction + "_bytes", "B", "sent on the wire, headers included"}, boundaries),
        error({direction + "_error", "1", "relative RMS error of the codec; NaN: not measured"},
              boundaries, kNotMeasured),
        wire({direction + "_wire_seconds", "s", "at least one message was travelling"}, boundaries),
        step({direction + "_step", "1",
              "step of the messages' codes as a fraction of the RMS, mean; NaN: none had such "
              "steps"},
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
  explicit RankColumns(const Width& ranks) : ranks_(ranks.entries) {
    for (std::size_t i = 0; i < kRankValues; ++i) {
      const RankColumn& column = kRankColumns[i];
      const ColumnText text{column.name, column.unit, column.description};
      if (is_seconds(static_cast<RankValue>(i))) {
        seconds_.emplace_back(text, ranks);
      } else {
        counts_.emplace_back(text, ranks);
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

/// A group of columns: creates it, adds the waiting rows to it, and copies those of another file.
template <class Table>
class TableRows {
 public:
  void create(hdf5::File& file) {
    hdf5::Group group = file.create_group(Table::kName);
    each([&](auto& column) { column.create(group); });
  }
  /// Stays as it is, since the file that has the rows now may fail to reach the disk.
  void store(hdf5::File& file) {
    if (waiting_ == 0) return;
    if (!file.exists(Table::kName)) create(file);
    hdf5::Group group = file.open_group(Table::kName);
    each([&](auto& column) { column.store(group, waiting_); });
  }
  void clear() {
    waiting_ = 0;
    each([](auto& column) { column.clear(); });
  }
  std::uint64_t bytes() {
    std::uint64_t sum = 0;
    each([&](auto& column) { sum += column.bytes(); });
    return sum;
  }
  std::uint64_t room(std::uint64_t others) {
    std::uint64_t sum = 0;
    each([&](auto& column) { sum += column.room(others); });
    return sum;
  }
  void load(hdf5::File& file, const hdf5::Group& former, std::uint64_t rows) {
    hdf5::Group group = file.open_group(Table::kName);
    each([&](auto& column) { column.load(group, former, rows); });
  }

 protected:
  std::uint64_t waiting_ = 0;

 private:
  template <typename Use>
  void each(const Use& use) {
    static_cast<Table*>(this)->each(use);
  }
};

class StepTable : public TableRows<StepTable> {
 public:
  static constexpr const char* kName = "steps";
  explicit StepTable(const TableWidths& widths)
      : loss_({"loss", "nat", "mean training loss of the step's tokens"}),
        learning_rate_({"learning_rate", "1", "learning rate of the step"}),
        gradient_norm_({"gradient_norm", "1", "global gradient norm before clipping"}),
        tokens_({"tokens", "1", "predicted tokens of the step, all replicas"}),
        samples_({"samples", "1", "samples of the step, all replicas"}),
        tied_row_bytes_(
            {"tied_row_bytes", "B", "values of shared embeddings between stages, on the wire"}),
        tied_gradient_bytes_({"tied_gradient_bytes", "B",
                              "gradients of shared embeddings between stages, on the wire"}),
        collective_bytes_(
            {"collective_bytes", "B", "sums over all ranks, as much as a tree or a ring sends"}),
        tied_row_error_({"tied_row_error", "1",
                         "relative RMS error of the token rows' codec; NaN: not measured"}),
        tied_gradient_error_(
            {"tied_gradient_error", "1",
             "relative RMS error of the codec of their gradients; NaN: not measured"}),
        replica_error_({"replica_error", "1",
                        "relative RMS error of what replicas sent for sums; NaN: not measured"}),
        forward_("forward", widths.boundaries),
        backward_("backward", widths.boundaries),
        ranks_(widths.ranks) {}

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
    replica_error_.add(record.replica_error);
    forward_.add(record.forward);
    backward_.add(record.backward);
    ranks_.add(record.ranks);
    ++waiting_;
  }
  template <typename Use>
  void each(const Use& use) {
    progress_.each(use);
    for (Reals* const column : {&loss_, &learning_rate_, &gradient_norm_, &tied_row_error_,
                                &tied_gradient_error_, &replica_error_})
      use(*column);
    for (Integers* const column :
         {&tokens_, &samples_, &tied_row_bytes_, &tied_gradient_bytes_, &collective_bytes_})
      use(*column);
    forward_.each(use);
    backward_.each(use);
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
  Reals replica_error_;
  DirectionColumns forward_;
  DirectionColumns backward_;
  RankColumns ranks_;
};

/// Columns of evaluations that sent activations in one way; `prefix` of the names.
struct EvaluationColumns {
  EvaluationColumns(const std::string& prefix, const std::string& way, const Width& boundaries,
                    const RunAttributes& attributes)
      : loss({prefix + "loss", "nat", "mean validation loss per token" + way}),
        forward_bytes({prefix + "forward_bytes", "B", "sent on the wire, headers included" + way},
                      boundaries),
        tied_row_bytes({prefix + "tied_row_bytes", "B",
                        "token rows from the last stage to the first, on the wire" + way}),
        collective_bytes({prefix + "collective_bytes", "B", "small sums over all ranks" + way}),
        boundaries_(boundaries.entries) {
    for (const Metric& metric : attributes.task->metrics())
      metrics.emplace_back(ColumnText{prefix + metric.name, metric.unit, metric.description + way});
    if (attributes.compares_answers)
      exact_match.emplace(
          ColumnText{prefix + "exact_match", "1",
                     "share of the prompts whose greedy answer is the expected one" + way});
  }

  /// Null: NaN, and no bytes.
  void add(const std::optional<EvaluationFigures>& figures) {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const EvaluationFigures none{nan, {}, nan, std::vector<std::uint64_t>(boundaries_), 0, 0};
    const EvaluationFigures& f = figures ? *figures : none;
    loss.add(f.loss);
    DELTAPIPE_ASSERT(!figures || f.metrics.size() == metrics.size(), "metrics of another task");
    for (std::size_t i = 0; i < metrics.size(); ++i)
      metrics[i].add(figures ? f.metrics[i].value : nan);
    if (exact_match) exact_match->add(f.exact_match);
    forward_bytes.add(f.forward_bytes);
    tied_row_bytes.add(f.tied_row_bytes);
    collective_bytes.add(f.collective_bytes);
  }
  template <typename Use>
  void each(const Use& use) {
    use(loss);
    for (Reals& metric : metrics) use(metric);
    if (exact_match) use(*exact_match);
    use(forward_bytes);
    use(tied_row_bytes);
    use(collective_bytes);
  }

  Reals loss;
  std::vector<Reals> metrics;  ///< the task's
  std::optional<Reals> exact_match;
  Integers forward_bytes;
  Integers tied_row_bytes;
  Integers collective_bytes;

 private:
  std::size_t boundaries_;
};

class EvaluationTable : public TableRows<EvaluationTable> {
 public:
  static constexpr const char* kName = "evaluations";
  EvaluationTable(const TableWidths& widths, const RunAttributes& attributes)
      : tokens_({"tokens", "1", "predicted tokens of the evaluation"}),
        plain_("", "", widths.boundaries, attributes) {
    if (attributes.evaluates_codec)
      codec_.emplace("codec_", ", activations through the codecs", widths.boundaries, attributes);
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
  static constexpr const char* kName = "checkpoints";
  CheckpointTable()
      : step_({"step", "1", "steps that the checkpoint has"}),
        bytes_({"bytes", "B", "of all ranks' files"}),
        blocked_({"blocked_seconds", "s", "training waited, the rank that waited longest"}),
        seconds_({"seconds", "s", "from the step's end until all ranks' states were on the disk"}) {
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

/// Most bytes of text in an attribute.
constexpr std::size_t kLongestList = 60000;

class RestartTable : public TableRows<RestartTable> {
 public:
  static constexpr const char* kName = "restarts";
  RestartTable()
      : step_({"step", "1", "step of the checkpoint that the run started from"}),
        time_({"time", "s", "of the start, since 1970 (UTC)"}) {}
  void add(const RestartRecord& record) {
    step_.add(record.step);
    time_.add(record.time);
    revisions_ += (revisions_.empty() ? "" : "\n") + record.revision;
    changes_ += (times_++ == 0 ? "" : "\n") + record.changes;
    ++waiting_;
  }
  void store(hdf5::File& file) {
    if (waiting_ == 0) return;
    TableRows::store(file);
    hdf5::Group group = file.open_group(kName);
    group.write_fixed_attribute("revisions", revisions_.substr(0, kLongestList));
    group.write_fixed_attribute("changes", changes_.substr(0, kLongestList));
  }
  template <typename Use>
  void each(const Use& use) {
    use(step_);
    use(time_);
  }

 private:
  Integers step_;
  Reals time_;
  std::string revisions_, changes_;  ///< a line each
  std::size_t times_ = 0;            ///< lines
};

/// Rows that wait to be written. Copies belong to checkpoints.
struct Rows {
  Rows(const TableWidths& widths, const RunAttributes& attributes)
      : steps(widths), evaluations(widths, attributes) {}

  void store(hdf5::File& file) {
    each([&](auto& table) { table.store(file); });
    if (!best) return;
    file.write_attribute("best_step", best->step);
    file.write_attribute("best_loss", best->loss);
  }
  /// The best evaluation stays.
  void clear() {
    each([](auto& table) { table.clear(); });
  }
  std::uint64_t bytes() {
    std::uint64_t sum = 0;
    each([&](auto& table) { sum += table.bytes(); });
    return sum;
  }
  /// The most that a file grows by with these rows, `others` of an earlier file, and attributes.
  std::uint64_t room(std::uint64_t others = 0) {
    std::uint64_t sum = std::uint64_t{256} << 10;
    each([&](auto& table) { sum += table.room(others); });
    return sum;
  }
  template <typename Use>
  void each(const Use& use) {
    use(steps);
    use(evaluations);
    use(checkpoints);
    use(restarts);
  }

  StepTable steps;
  EvaluationTable evaluations;
  CheckpointTable checkpoints;
  RestartTable restarts;
  std::optional<EvaluationLoss> best;
};

/// A run file without rows: its bytes.
std::vector<std::byte> empty_file(const std::string& path, const RunAttributes& attributes,
                                  Rows& rows) {
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
  file.write_attribute("status", name_of(RunStatus::running));
  rows.steps.create(file);
  rows.evaluations.create(file);
  return file.image();
}

/// A run file in its place. Nobody changes it, and it can be read also after its name was removed
/// or belongs to a newer one.
class WrittenFile {
 public:
  explicit WrittenFile(std::string path) : path_(std::move(path)), file_(path_) {}

  std::uint64_t bytes() const { return static_cast<std::uint64_t>(file_.status.st_size); }
  void copy_to(AtomicFile& file) const {
    std::vector<std::byte> buffer(std::min<std::uint64_t>(bytes(), kCopyBytes));
    std::optional<OpenFile> again;
    for (std::uint64_t offset = 0; offset < bytes();) {
      const int descriptor = again ? again->descriptor : file_.descriptor;
      const ssize_t read =
          ::pread(descriptor, buffer.data(), buffer.size(), static_cast<off_t>(offset));
      if (read < 0 && errno == EINTR) continue;
      if (read < 0 && errno == ESTALE && !again) {
        reopen(again);
        continue;
      }
      if (read <= 0) throw_system_error("cannot be read", path_, read < 0 ? errno : EIO);
      file.append(std::span(buffer).first(static_cast<std::size_t>(read)));
      offset += static_cast<std::uint64_t>(read);
    }
  }

 private:
  static constexpr std::uint64_t kCopyBytes = std::uint64_t{1} << 20;

  struct OpenFile {
    explicit OpenFile(const std::string& path)
        : descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
      if (descriptor >= 0 && ::fstat(descriptor, &status) == 0) return;
      const int error = errno;
      if (descriptor >= 0) (void)::close(descriptor);
      throw_system_error("cannot be read", path, error);
    }
    ~OpenFile() { (void)::close(descriptor); }
    OpenFile(const OpenFile&) = delete;
    OpenFile& operator=(const OpenFile&) = delete;

    int descriptor;
    struct stat status {};
  };

  /// A network file system may forget an open file, as when its server was started again: by its
  /// name it is found, unless that belongs to another file by now.
  void reopen(std::optional<OpenFile>& again) const {
    again.emplace(path_);
    const struct stat &found = again->status, &expected = file_.status;
    if (found.st_ino != expected.st_ino || found.st_size != expected.st_size ||
        found.st_mtim.tv_sec != expected.st_mtim.tv_sec ||
        found.st_mtim.tv_nsec != expected.st_mtim.tv_nsec)
      throw_system_error("cannot be read", path_, ESTALE);
  }

  std::string path_;
  OpenFile file_;
};
using WrittenFilePtr = std::shared_ptr<const WrittenFile>;

/// Puts a file in the place of `path`: `begun` has the bytes of an earlier state, `change` adds to
/// them.
template <typename Change>
WrittenFilePtr write_file(const std::string& path, AtomicFile& begun, const Change& change) {
  hdf5::File file = hdf5::File::open_unshared(begun.temporary_path(), path);
  change(file);
  file.close();
  begun.commit();
  return std::make_shared<const WrittenFile>(path);
}

/// The disk space is taken first: a full disk shows before the copy is made, and HDF5 1.10 loses
/// track of a file whose write fails.
template <typename Change>
WrittenFilePtr write_changed_copy(const WrittenFile& base, const std::string& path,
                                  std::uint64_t room, const Change& change) {
  AtomicFile file(path);
  file.reserve(base.bytes() + room);
  base.copy_to(file);
  return write_file(path, file, change);
}

template <typename T>
std::vector<T> column_of(const hdf5::Group& group, const std::string& name) {
  const hdf5::Dataset dataset = group.open_dataset(name);
  dataset.expect_stored();
  std::vector<T> values(dataset.rows() * dataset.row_elements());
  dataset.read(0, std::span<T>(values));
  return values;
}

/// An earlier run file that a run continues.
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
  std::optional<EvaluationLoss> best() const {
    if (!file_.has_attribute("best_step") || !file_.has_attribute("best_loss")) return std::nullopt;
    return EvaluationLoss{file_.read_attribute<std::uint64_t>("best_step"),
                          file_.read_attribute<double>("best_loss")};
  }
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
        file.find_plain_attribute("run_id").value_or(""),
        rows("checkpoints") > 0,
        file.has_attribute("deck") ? file.read_string_attribute("deck") : std::string(),
        rows("steps"),
        rows("evaluations"),
        file.find_plain_attribute("slurm_job").value_or("")};
  } catch (const UserError&) {
    return std::nullopt;
  }
}

std::vector<EvaluationLoss> losses_of_evaluations(const std::string& path, bool through_codec,
                                                  std::uint64_t until_step) {
  const hdf5::File file = hdf5::File::open_read_only(path);
  const hdf5::Group group = file.open_group("evaluations");
  const auto steps = column_of<std::uint64_t>(group, "step");
  const auto losses = column_of<double>(group, through_codec ? "codec_loss" : "loss");
  std::vector<EvaluationLoss> found;
  for (std::size_t i = 0; i < std::min(steps.size(), losses.size()); ++i)
    if (steps[i] <= until_step) found.push_back({steps[i], losses[i]});
  return found;
}

struct RunFileSnapshot::State {
  WrittenFilePtr base;
  Rows rows;
};

std::uint64_t RunFileSnapshot::bytes() const {
  return state_->base->bytes() + state_->rows.bytes();
}

void RunFileSnapshot::write(const std::string& path) const {
  write_changed_copy(*state_->base, path, state_->rows.room(),
                     [&](hdf5::File& file) { state_->rows.store(file); });
}

class RunFile::State {
 public:
  State(const std::string& path, const RunAttributes& attributes, const FormerFile* former,
        Warn warn, std::chrono::duration<double> flush_interval)
      : path_(path),
        warn_(std::move(warn)),
        flush_interval_(flush_interval),
        rows_(widths_of(attributes.layout, former), attributes) {}

  void create(const RunAttributes& attributes) {
    begin(attributes, 0, [](hdf5::File&) {});
  }

  void go_on(const FormerFile& former, const RunFileContinuation& continuation,
             const RunAttributes& attributes) {
    const std::uint64_t step = continuation.checkpoint.step;
    former.expect_steps(step);
    const std::string kokkos = former.kokkos();
    if (warn_ && !kokkos.empty() && kokkos != attributes.kokkos)
      warn_("the run so far was computed with " + printable(kokkos) + ", it goes on with " +
            attributes.kokkos +
            ": results may differ by rounding from those of a run without a break");
    const std::uint64_t evaluations = former.evaluations_until(step);
    take_lists(former, continuation);
    rows_.restarts.add(
        {step, seconds_since_1970(), attributes.source_revision, continuation.changes});
    begin(attributes, std::max(step, evaluations), [&](hdf5::File& file) {
      rows_.steps.load(file, former.steps(), step);
      rows_.evaluations.load(file, former.evaluations(), evaluations);
      file.write_attribute("started", former.started());
    });
  }

  template <typename Record>
  void append(const Record& record) {
    DELTAPIPE_ASSERT(!closed_, path_);
    if constexpr (std::is_same_v<Record, StepRecord>) {
      rows_.steps.add(record);
    } else if constexpr (std::is_same_v<Record, CheckpointRecord>) {
      rows_.checkpoints.add(record);
    } else {
      rows_.evaluations.add(record);
    }
    const bool is_full = !warned_ && rows_.bytes() >= kWaitingBytes;
    if (is_full || Clock::now() >= next_flush_) flush();
  }

  void write_best(const EvaluationLoss& best) { rows_.best = best; }
  const std::optional<EvaluationLoss>& best() const { return rows_.best; }

  void write_memory(const std::vector<RankMemoryRecord>& ranks) { memory_ = ranks; }

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

  RunFileSnapshot snapshot() {
    return RunFileSnapshot(
        std::make_shared<RunFileSnapshot::State>(RunFileSnapshot::State{base_, rows_}));
  }

  bool is_closed() const { return closed_; }

  void close(RunStatus status, const std::string& reason) {
    end_ = End{status, reason, utc_now()};
    replace_file();
    closed_ = true;
  }

 private:
  struct End {
    RunStatus status;
    std::string reason, time;
  };

  template <typename Load>
  void begin(const RunAttributes& attributes, std::uint64_t others, const Load& load) {
    const std::vector<std::byte> empty = empty_file(path_, attributes, rows_);
    AtomicFile file(path_);
    file.reserve(empty.size() + rows_.room(others));
    file.append(empty);
    base_ = write_file(path_, file, [&](hdf5::File& opened) {
      load(opened);
      store(opened);
    });
    rows_.clear();
    next_flush_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(flush_interval_);
  }

  void store(hdf5::File& file) {
    rows_.store(file);
    if (!memory_.empty()) store_memory(file);
    if (!end_) return;
    file.write_attribute("status", name_of(end_->status));
    if (end_->status == RunStatus::finished) file.write_attribute("finished", 1);
    if (!end_->reason.empty()) file.write_attribute("reason", end_->reason);
    file.write_attribute("stopped", end_->time);
  }

  void store_memory(hdf5::File& file) const {
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
      write(memory_.front().uses[use].first, "of the prediction: taken for this",
            [use](const R& r) { return r.uses[use].second; });
  }

  void replace_file() {
    const Clock::time_point begin = Clock::now();
    // Set first: after a failure (full disk) the next attempt waits as well.
    next_flush_ = begin + std::chrono::duration_cast<Clock::duration>(flush_interval_);
    base_ = write_changed_copy(*base_, path_, rows_.room() + room_of_memory(),
                               [&](hdf5::File& file) { store(file); });
    rows_.clear();
    memory_.clear();
    const Clock::time_point end = Clock::now();
    const std::chrono::duration<double> pause = (end - begin) / flush_cost;
    next_flush_ =
        end + std::chrono::duration_cast<Clock::duration>(std::max(flush_interval_, pause));
  }

  std::uint64_t room_of_memory() const {
    constexpr std::uint64_t kRoomOfUse = std::uint64_t{16} << 10;
    return memory_.empty() ? 0
                           : (4 + memory_.front().uses.size()) *
                                 (kRoomOfUse + memory_.size() * sizeof(std::uint64_t));
  }

  /// Rows after the checkpoint are in the newer file only; rows before it may be
  /// in the checkpoint's only, if a kill came before the newer one was flushed.
  void take_lists(const FormerFile& history, const RunFileContinuation& continuation) {
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
      for (const CheckpointRecord& record :
           file.checkpoints_until(continuation.checkpoint.step - 1))
        checkpoints.emplace(record.step, record);
    };
    if (last) take(*last);
    take(history);
    for (const auto& [time, record] : restarts) rows_.restarts.add(record);
    for (const auto& [step, record] : checkpoints) rows_.checkpoints.add(record);
    rows_.checkpoints.add(continuation.checkpoint);
    if (!rows_.best) rows_.best = history.best();
  }

  std::string path_;
  Warn warn_;
  std::chrono::duration<double> flush_interval_;
  Rows rows_;
  std::optional<End> end_;
  std::vector<RankMemoryRecord> memory_;  ///< until it is in the file
  WrittenFilePtr base_;
  Clock::time_point next_flush_{};
  bool closed_ = false;
  bool warned_ = false;
};

RunFile::RunFile(const std::string& path, const RunAttributes& attributes, Warn warn,
                 std::chrono::duration<double> flush_interval)
    : state_(std::make_unique<State>(path, attributes, nullptr, std::move(warn), flush_interval)) {
  state_->create(attributes);
}

RunFile::RunFile(const std::string& path, const RunAttributes& attributes,
                 const RunFileContinuation& continuation, Warn warn,
                 std::chrono::duration<double> flush_interval) {
  const FormerFile history(continuation.history);
  state_ = std::make_unique<State>(path, attributes, &history, std::move(warn), flush_interval);
  state_->go_on(history, continuation, attributes);
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

void RunFile::write_best(const EvaluationLoss& best) {
  state_->write_best(best);
}

std::optional<EvaluationLoss> RunFile::best() const {
  return state_->best();
}

RunFileSnapshot RunFile::snapshot() {
  return state_->snapshot();
}

namespace {

/// Rows of all tables that a run may have, with one step.
Rows rows_with_a_step(const RunLayout& layout) {
  RunAttributes attributes;
  attributes.evaluates_codec = attributes.compares_answers = true;
  Rows rows(widths_of(layout, nullptr), attributes);
  StepRecord record;
  const auto boundaries = static_cast<std::size_t>(layout.boundaries());
  for (DirectionRecord* const direction : {&record.forward, &record.backward}) {
    direction->bytes.resize(boundaries);
    for (auto* const column : {&direction->error, &direction->wire_seconds, &direction->step})
      column->resize(boundaries);
  }
  record.ranks.resize(static_cast<std::size_t>(layout.ranks()));
  rows.steps.add(record);
  return rows;
}

}  // namespace

std::uint64_t RunFile::memory_bytes(const RunLayout& layout, std::uint64_t steps) {
  // The library with its caches: measured with HDF5 1.10.
  constexpr std::uint64_t kLibrary = std::uint64_t{4} << 20;
  // As many rows as the fastest runs have between two flushes; a vector may own twice its
  // elements, and a checkpoint copies them.
  constexpr std::uint64_t kMostRows = 1024, kCopies = 3;
  Rows rows = rows_with_a_step(layout);
  return kLibrary + kCopies * std::min(kWaitingBytes, std::min(steps, kMostRows) * rows.bytes());
}

std::uint64_t RunFile::disk_bytes(const RunLayout& layout, std::uint64_t steps) {
  Rows rows = rows_with_a_step(layout);
  constexpr std::uint64_t kMostSteps = std::uint64_t{1} << 40;  // no disk has more
  return 2 * (rows.room() + std::min(steps, kMostSteps) * rows.bytes());
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
