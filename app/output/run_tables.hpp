// SPDX-License-Identifier: BSD-3-Clause
// Tables of run.h5: steps, evaluations, checkpoints and restarts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/output/run_columns.hpp"
#include "app/output/run_file.hpp"
#include "core/base/error.hpp"
#include "core/files/hdf5.hpp"

namespace deltapipe {

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
    const EvaluationFigures none{
        kNotMeasured, {}, kNotMeasured, std::vector<std::uint64_t>(boundaries_), 0, 0};
    const EvaluationFigures& f = figures ? *figures : none;
    loss.add(f.loss);
    DELTAPIPE_ASSERT(!figures || f.metrics.size() == metrics.size(), "metrics of another task");
    for (std::size_t i = 0; i < metrics.size(); ++i)
      metrics[i].add(figures ? f.metrics[i].value : kNotMeasured);
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
inline constexpr std::size_t kLongestList = 60000;

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
}  // namespace deltapipe
