// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/run_tables.hpp"

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// The columns that steps and evaluations share.
template <typename Record>
void add_progress(Table<Record>& table) {
  table.add_column(Integers({"step", "1", "optimizer steps done so far"}), &Record::step);
  table.add_column(Reals({"epoch", "1", "passes over the training data"}), &Record::epoch);
  table.add_column(Reals({"seconds", "s", "time of training so far, without evaluations"}),
                   &Record::seconds);
}

void add_direction(Table<StepRecord>& table, DirectionRecord StepRecord::*direction,
                   const std::string& name, const Width& boundaries) {
  const auto of = [direction](auto DirectionRecord::*values) {
    return [=](const StepRecord& record) { return record.*direction.*values; };
  };
  table.add_column(
      Integers({name + "_bytes", "B", "sent on the wire, headers included"}, boundaries),
      of(&DirectionRecord::bytes));
  table.add_column(
      Reals({name + "_error", "1", "relative RMS error of the codec; NaN: not measured"},
            boundaries, kNotMeasured),
      of(&DirectionRecord::error));
  table.add_column(
      Reals({name + "_wire_seconds", "s", "at least one message was travelling"}, boundaries),
      of(&DirectionRecord::wire_seconds));
  table.add_column(
      Reals({name + "_step", "1",
             "step of the messages' codes as a fraction of the RMS, mean; NaN: none had such "
             "steps"},
            boundaries, kNotMeasured),
      of(&DirectionRecord::step));
}

/// One value of each rank of a pipeline; counts and bytes as integers.
template <typename T>
void add_rank_value(Table<StepRecord>& table, std::size_t value, const Width& ranks) {
  const RankColumn& text = kRankColumns[value];
  table.add_column(Column<T>({text.name, text.unit, text.description}, ranks),
                   [value](const StepRecord& record) {
                     std::vector<T> values;
                     for (const RankRecord& rank : record.ranks)
                       values.push_back(static_cast<T>(rank[value]));
                     return values;
                   });
}

/// Columns of evaluations that sent activations in one way; `prefix` of the names. Null: NaN, and
/// no bytes.
void add_figures(Table<EvaluationRecord>& table, EvaluationMode mode, const std::string& prefix,
                 const std::string& way, const Width& boundaries, const RunAttributes& attributes) {
  const std::span<const Metric> metrics = attributes.task->metrics();
  EvaluationFigures none;
  none.loss = kNotMeasured;
  none.metrics.assign(metrics.size(), {nullptr, kNotMeasured});
  none.forward_bytes.resize(boundaries.entries);
  const auto of = [mode, none](auto value) {
    return [=](const EvaluationRecord& record) {
      return std::invoke(value, record.of(mode).value_or(none));
    };
  };
  table.add_column(Reals({prefix + "loss", "nat", "mean validation loss per token" + way}),
                   of(&EvaluationFigures::loss));
  for (std::size_t i = 0; i < metrics.size(); ++i)
    table.add_column(
        Reals({prefix + metrics[i].name, metrics[i].unit, metrics[i].description + way}),
        of([i, count = metrics.size()](const EvaluationFigures& figures) {
          DELTAPIPE_ASSERT(figures.metrics.size() == count, "metrics of another task");
          return figures.metrics[i].value;
        }));
  if (attributes.compares_answers)
    table.add_column(Reals({prefix + "exact_match", "1",
                            "share of the prompts whose greedy answer is the expected one" + way}),
                     of(&EvaluationFigures::exact_match));
  table.add_column(
      Integers({prefix + "forward_bytes", "B", "sent on the wire, headers included" + way},
               boundaries),
      of(&EvaluationFigures::forward_bytes));
  table.add_column(Integers({prefix + "tied_row_bytes", "B",
                             "token rows from the last stage to the first, on the wire" + way}),
                   of(&EvaluationFigures::tied_row_bytes));
  table.add_column(Integers({prefix + "collective_bytes", "B", "small sums over all ranks" + way}),
                   of(&EvaluationFigures::collective_bytes));
}

}  // namespace

Table<StepRecord> step_table(const TableWidths& widths) {
  using Record = StepRecord;
  Table<Record> table("steps");
  add_progress(table);
  table.add_column(Reals({"loss", "nat", "mean training loss of the step's tokens"}),
                   &Record::loss);
  table.add_column(Reals({"learning_rate", "1", "learning rate of the step"}),
                   &Record::learning_rate);
  table.add_column(Reals({"gradient_norm", "1", "global gradient norm before clipping"}),
                   &Record::gradient_norm);
  table.add_column(Reals({"tied_row_error", "1",
                          "relative RMS error of the token rows' codec; NaN: not measured"}),
                   &Record::tied_row_error);
  table.add_column(Reals({"tied_gradient_error", "1",
                          "relative RMS error of the codec of their gradients; NaN: not measured"}),
                   &Record::tied_gradient_error);
  table.add_column(Reals({"replica_error", "1",
                          "relative RMS error of what replicas sent for sums; NaN: not measured"}),
                   &Record::replica_error);
  table.add_column(Integers({"tokens", "1", "predicted tokens of the step, all replicas"}),
                   &Record::tokens);
  table.add_column(Integers({"samples", "1", "samples of the step, all replicas"}),
                   &Record::samples);
  table.add_column(
      Integers({"tied_row_bytes", "B", "values of shared embeddings between stages, on the wire"}),
      &Record::tied_row_bytes);
  table.add_column(Integers({"tied_gradient_bytes", "B",
                             "gradients of shared embeddings between stages, on the wire"}),
                   &Record::tied_gradient_bytes);
  table.add_column(
      Integers({"collective_bytes", "B", "sums over all ranks, as much as a tree or a ring sends"}),
      &Record::collective_bytes);
  add_direction(table, &Record::forward, "forward", widths.boundaries);
  add_direction(table, &Record::backward, "backward", widths.boundaries);
  for (std::size_t i = 0; i < kRankValues; ++i) {
    const bool is_real = is_seconds(static_cast<RankValue>(i));
    (is_real ? add_rank_value<double> : add_rank_value<std::uint64_t>)(table, i, widths.ranks);
  }
  return table;
}

Table<EvaluationRecord> evaluation_table(const TableWidths& widths,
                                         const RunAttributes& attributes) {
  Table<EvaluationRecord> table("evaluations");
  add_progress(table);
  table.add_column(Integers({"tokens", "1", "predicted tokens of the evaluation"}),
                   [codec = attributes.evaluates_codec](const EvaluationRecord& record) {
                     DELTAPIPE_ASSERT(codec || !record.codec,
                                      "a file without columns for this evaluation");
                     return record.tokens;
                   });
  add_figures(table, EvaluationMode::plain, "", "", widths.boundaries, attributes);
  if (attributes.evaluates_codec)
    add_figures(table, EvaluationMode::codec, "codec_", ", activations through the codecs",
                widths.boundaries, attributes);
  return table;
}

Table<CheckpointRecord> checkpoint_table() {
  using Record = CheckpointRecord;
  Table<Record> table("checkpoints");
  table.add_column(Integers({"step", "1", "steps that the checkpoint has"}), &Record::step);
  table.add_column(Integers({"bytes", "B", "of all ranks' files"}), &Record::bytes);
  table.add_column(Reals({"blocked_seconds", "s", "training waited, the rank that waited longest"}),
                   &Record::blocked_seconds);
  table.add_column(
      Reals({"seconds", "s", "from the step's end until all ranks' states were on the disk"}),
      &Record::seconds);
  return table;
}

RestartTable::RestartTable() : Table("restarts") {
  add_column(Integers({"step", "1", "step of the checkpoint that the run started from"}),
             &RestartRecord::step);
  add_column(Reals({"time", "s", "of the start, since 1970 (UTC)"}), &RestartRecord::time);
}

}  // namespace deltapipe
