// SPDX-License-Identifier: BSD-3-Clause
#include "core/stage/task.hpp"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

class LanguageModelTask final : public Task {
 public:
  const char* name() const override { return "language_model"; }
  const char* target_name() const override { return "tokens"; }
  Field targets() const override { return Field::next_tokens; }
  RowScore score() const override { return RowScore::loss; }
  std::span<const Metric> metrics() const override {
    static constexpr std::array metrics = {Metric{"perplexity", "1", "exp(loss)", 4}};
    return metrics;
  }
  std::size_t sums() const override { return 1; }
  void add(std::span<const float> scores, std::span<const std::int32_t>,
           std::span<double> sums) const override {
    for (const float loss : scores) sums[0] += loss;
  }
  std::vector<double> values(std::span<const double> sums, std::uint64_t count) const override {
    return {std::exp(sums[0] / static_cast<double>(count))};
  }
};

/// Sums: loss, samples whose label is among the five likeliest classes, and for each class the
/// samples that have it as label and prediction, as prediction, and as label. These are the
/// diagonal and the margins of the confusion matrix, which determine all metrics below.
class ClassificationTask final : public Task {
 public:
  explicit ClassificationTask(int classes) : classes_(static_cast<std::size_t>(classes)) {
    DELTAPIPE_ASSERT(classes >= 2, fmt::format("{} classes", classes));
  }

  const char* name() const override { return "classification"; }
  const char* target_name() const override { return "labels"; }
  Field targets() const override { return Field::label; }
  RowScore score() const override { return RowScore::prediction; }
  std::span<const Metric> metrics() const override {
    static constexpr std::array metrics = {
        Metric{"accuracy", "1", "share of the samples whose label is the likeliest class", 4},
        Metric{"top5_accuracy", "1",
               "share of the samples whose label is among the five likeliest classes", 4},
        Metric{"f1", "1",
               "F1 of class 1 or, with more than two classes, mean F1 of those that occur", 4},
        Metric{"matthews", "1", "Matthews correlation of labels and predictions", 4}};
    return metrics;
  }
  std::size_t sums() const override { return kFirst + 3 * classes_; }

  void add(std::span<const float> scores, std::span<const std::int32_t> targets,
           std::span<double> sums) const override {
    const std::size_t rows = targets.size();
    for (std::size_t b = 0; b < rows; ++b) {
      const auto label = static_cast<std::size_t>(targets[b]);
      const auto prediction = static_cast<std::size_t>(scores[rows + b]);
      const float likelier = scores[2 * rows + b];
      DELTAPIPE_ASSERT(label < classes_ && prediction < classes_,
                       fmt::format("{} and {}", targets[b], prediction));
      sums[0] += scores[b];
      if (likelier < 5) sums[kTop5] += 1;
      if (prediction == label) sums[hit(label)] += 1;
      sums[predicted(prediction)] += 1;
      sums[labelled(label)] += 1;
    }
  }

  std::vector<double> values(std::span<const double> sums, std::uint64_t count) const override {
    double hits = 0;
    for (std::size_t c = 0; c < classes_; ++c) hits += sums[hit(c)];
    const auto samples = static_cast<double>(count);
    return {hits / samples, sums[kTop5] / samples, f1(sums), matthews(sums, hits, samples)};
  }

 private:
  static constexpr std::size_t kTop5 = 1, kFirst = 2;
  std::size_t hit(std::size_t c) const { return kFirst + c; }
  std::size_t predicted(std::size_t c) const { return kFirst + classes_ + c; }
  std::size_t labelled(std::size_t c) const { return kFirst + 2 * classes_ + c; }

  /// 2 TP / (2 TP + FP + FN); of several classes the mean over those that occur in labels or
  /// predictions, as scikit-learn's average="macro".
  double f1(std::span<const double> sums) const {
    const auto of_class = [&](std::size_t c) {
      const double both = sums[predicted(c)] + sums[labelled(c)];
      return both > 0 ? 2 * sums[hit(c)] / both : 0;
    };
    if (classes_ == 2) return of_class(1);
    double sum = 0, occurring = 0;
    for (std::size_t c = 0; c < classes_; ++c) {
      sum += of_class(c);
      if (sums[predicted(c)] + sums[labelled(c)] > 0) ++occurring;
    }
    return occurring > 0 ? sum / occurring : 0;
  }

  /// The generalisation to several classes (Gorodkin 2004, R_K); 0 if all samples have one label or
  /// one prediction, as scikit-learn.
  double matthews(std::span<const double> sums, double hits, double samples) const {
    double both = 0, predictions = 0, labels = 0;
    for (std::size_t c = 0; c < classes_; ++c) {
      both += sums[predicted(c)] * sums[labelled(c)];
      predictions += sums[predicted(c)] * sums[predicted(c)];
      labels += sums[labelled(c)] * sums[labelled(c)];
    }
    const double all = samples * samples;
    const double scale = (all - predictions) * (all - labels);
    return scale > 0 ? (hits * samples - both) / std::sqrt(scale) : 0;
  }

  std::size_t classes_;
};

std::unique_ptr<Task> make_language_model(int) {
  return std::make_unique<LanguageModelTask>();
}
std::unique_ptr<Task> make_classification(int classes) {
  return std::make_unique<ClassificationTask>(classes);
}

constexpr std::array kTaskTypes = {
    TaskType{"language_model", make_language_model},
    TaskType{"classification", make_classification},
};

}  // namespace

const Task& language_model_task() {
  static const LanguageModelTask task;
  return task;
}

std::span<const TaskType> task_types() {
  return kTaskTypes;
}

std::unique_ptr<Task> make_task(const char* name, int classes) {
  for (const TaskType& type : kTaskTypes)
    if (std::string(type.name) == name) return type.make(classes);
  DELTAPIPE_ASSERT(false, name);
  return nullptr;
}

}  // namespace deltapipe
