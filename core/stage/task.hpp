// SPDX-License-Identifier: BSD-3-Clause
// Tasks that models are trained for: the loss and the metrics of an evaluation. To add one, derive
// a class from Task and add a line to the table of task_types().
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/base/sample_fields.hpp"
#include "core/stage/stage.hpp"

namespace deltapipe {

struct Metric {
  const char* name;  ///< also of its column in run.h5
  const char* unit;
  const char* description;
  int digits;  ///< in reports, after the decimal point
};

/// Metrics are functions of sums over samples. The sums add over micro-batches, replicas and ranks,
/// so that metrics do not depend on the layout. The first sum is that of the losses.
class Task {
 public:
  virtual ~Task() = default;

  virtual const char* name() const = 0;
  /// Returns the plural of what the loss is a mean over, such as "tokens".
  virtual const char* target_name() const = 0;
  /// Returns the field of the targets, which has an element for each scored row.
  virtual Field targets() const = 0;
  /// Returns what evaluations ask of the last stage.
  virtual RowScore score() const = 0;
  virtual std::span<const Metric> metrics() const = 0;
  virtual std::size_t sums() const = 0;
  /// Adds rows to sums(): their scores, as Stage::scores() returns them, and their targets.
  virtual void add(std::span<const float> scores, std::span<const std::int32_t> targets,
                   std::span<double> sums) const = 0;
  /// Returns metrics(), in their order, from the sums over `count` targets, at least one.
  virtual std::vector<double> values(std::span<const double> sums, std::uint64_t count) const = 0;
};

/// Perplexity: exp of the mean loss per token.
const Task& language_model_task();

struct TaskType {
  const char* name;
  /// `classes`: of the labels; ignored by tasks without labels.
  std::unique_ptr<Task> (*make)(int classes);
};
/// Returns all tasks: "language_model" and "classification".
std::span<const TaskType> task_types();
/// Makes the task of that name. InternalError for an unknown one.
std::unique_ptr<Task> make_task(const char* name, int classes = 0);

}  // namespace deltapipe
