// SPDX-License-Identifier: BSD-3-Clause
// Tables of run.h5: steps, evaluations, checkpoints and restarts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "app/output/run_columns.hpp"
#include "app/output/run_content.hpp"
#include "app/training/evaluation_record.hpp"
#include "comm/pipeline/step_record.hpp"
#include "core/files/hdf5.hpp"

namespace deltapipe {

/// A group of columns, one for each value of a record: creates it, adds the waiting rows to it, and
/// copies those of another file.
template <typename Record>
class Table {
 public:
  explicit Table(const char* name) : name_(name) {}

  /// `value`: a member of the record, or a function of it.
  template <typename T, typename Value>
  void add_column(Column<T> column, Value value) {
    columns_.push_back(Source<T>{std::move(column), [value](const Record& record, Column<T>& to) {
                                   to.add(std::invoke(value, record));
                                 }});
  }

  void add(const Record& record) {
    for (auto& column : columns_)
      std::visit([&](auto& source) { source.add(record, source.column); }, column);
    ++waiting_;
  }
  void create(hdf5::File& file) const {
    hdf5::Group group = file.create_group(name_);
    each([&](const auto& column) { column.create(group); });
  }
  /// Stays as it is, since the file that has the rows now may fail to reach the disk.
  void store(hdf5::File& file) const {
    if (waiting_ == 0) return;
    if (!file.exists(name_)) create(file);
    hdf5::Group group = file.open_group(name_);
    each([&](const auto& column) { column.store(group, waiting_); });
  }
  void clear() {
    waiting_ = 0;
    for (auto& column : columns_) std::visit([](auto& source) { source.column.clear(); }, column);
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    each([&](const auto& column) { sum += column.bytes(); });
    return sum;
  }
  std::uint64_t room(std::uint64_t others) const {
    std::uint64_t sum = 0;
    each([&](const auto& column) { sum += column.room(others); });
    return sum;
  }
  void load(hdf5::File& file, const hdf5::Group& former, std::uint64_t rows) const {
    hdf5::Group group = file.open_group(name_);
    each([&](const auto& column) { column.load(group, former, rows); });
  }

 protected:
  const char* name_;
  std::uint64_t waiting_ = 0;

 private:
  template <typename T>
  struct Source {
    Column<T> column;
    std::function<void(const Record&, Column<T>&)> add;
  };

  template <typename Use>
  void each(const Use& use) const {
    for (const auto& column : columns_)
      std::visit([&](const auto& source) { use(source.column); }, column);
  }

  std::vector<std::variant<Source<std::uint64_t>, Source<double>>> columns_;
};

Table<StepRecord> step_table(const TableWidths& widths);
Table<EvaluationRecord> evaluation_table(const TableWidths& widths,
                                         const RunAttributes& attributes);
Table<CheckpointRecord> checkpoint_table();

/// Most bytes of text in an attribute.
inline constexpr std::size_t kLongestList = 60000;

class RestartTable : public Table<RestartRecord> {
 public:
  RestartTable();
  void add(const RestartRecord& record) {
    Table::add(record);
    revisions_ += (revisions_.empty() ? "" : "\n") + record.revision;
    changes_ += (times_++ == 0 ? "" : "\n") + record.changes;
  }
  void store(hdf5::File& file) const {
    if (waiting_ == 0) return;
    Table::store(file);
    hdf5::Group group = file.open_group(name_);
    group.write_fixed_attribute("revisions", revisions_.substr(0, kLongestList));
    group.write_fixed_attribute("changes", changes_.substr(0, kLongestList));
  }

 private:
  std::string revisions_, changes_;  ///< a line each
  std::size_t times_ = 0;            ///< lines
};

/// Rows that wait to be written. Copies belong to checkpoints.
struct Rows {
  Rows(const TableWidths& widths, const RunAttributes& attributes)
      : steps(step_table(widths)), evaluations(evaluation_table(widths, attributes)) {}

  void store(hdf5::File& file) const {
    each([&](const auto& table) { table.store(file); });
    if (!best) return;
    file.write_attribute("best_step", best->step);
    file.write_attribute("best_loss", best->loss);
  }
  /// The best evaluation stays.
  void clear() {
    steps.clear();
    evaluations.clear();
    checkpoints.clear();
    restarts.clear();
  }
  std::uint64_t bytes() const {
    std::uint64_t sum = 0;
    each([&](const auto& table) { sum += table.bytes(); });
    return sum;
  }
  /// The most that a file grows by with these rows, `others` of an earlier file, and attributes.
  std::uint64_t room(std::uint64_t others = 0) const {
    std::uint64_t sum = std::uint64_t{256} << 10;
    each([&](const auto& table) { sum += table.room(others); });
    return sum;
  }
  template <typename Use>
  void each(const Use& use) const {
    use(steps);
    use(evaluations);
    use(checkpoints);
    use(restarts);
  }

  Table<StepRecord> steps;
  Table<EvaluationRecord> evaluations;
  Table<CheckpointRecord> checkpoints = checkpoint_table();
  RestartTable restarts;
  std::optional<EvaluationLoss> best;
};
}  // namespace deltapipe
