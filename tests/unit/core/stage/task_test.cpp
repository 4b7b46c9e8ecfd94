// SPDX-License-Identifier: BSD-3-Clause
// Metrics against values worked out by hand and those of scikit-learn 1.2 (f1_score,
// matthews_corrcoef), and their sums over parts.
#include "core/stage/task.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "core/base/error.hpp"

namespace deltapipe {
namespace {

using Values = std::vector<double>;

struct Samples {
  std::vector<std::int32_t> labels;
  std::vector<int> predictions;
  std::vector<int> likelier;  ///< classes that are likelier than the label
};

/// The sums of samples [first, end), whose losses are 0.5, 1.5, 2.5 ...
Values sums_of(const Task& task, const Samples& all, std::size_t first, std::size_t end) {
  std::vector<float> scores;
  for (std::size_t i = first; i < end; ++i) scores.push_back(static_cast<float>(i) + 0.5f);
  for (std::size_t i = first; i < end; ++i)
    scores.push_back(static_cast<float>(all.predictions[i]));
  for (std::size_t i = first; i < end; ++i) scores.push_back(static_cast<float>(all.likelier[i]));
  Values sums(task.sums(), 0);
  task.add(scores, std::span(all.labels).subspan(first, end - first), sums);
  return sums;
}

Values metrics_of(const Task& task, const Samples& all) {
  const std::size_t count = all.labels.size();
  return task.values(sums_of(task, all, 0, count), count);
}

}  // namespace

TEST_CASE("Perplexity is exp of the mean loss", "[task]") {
  const Task& task = language_model_task();
  REQUIRE(task.sums() == 1);
  REQUIRE(task.metrics().size() == 1);
  CHECK(std::string(task.metrics().front().name) == "perplexity");
  Values sums(1, 0);
  task.add(std::vector<float>{1, 2.5, 0}, std::vector<std::int32_t>{3, 4, -1}, sums);
  CHECK(sums[0] == 3.5);
  CHECK(task.values(sums, 2) == Values{std::exp(1.75)});
}

TEST_CASE("Metrics of two classes are those of the confusion matrix", "[task]") {
  const auto task = make_task("classification", 2);
  // TP 3, FP 2, FN 1, TN 4.
  const Samples samples{{1, 1, 1, 1, 0, 0, 0, 0, 0, 0},
                        {1, 1, 1, 0, 1, 1, 0, 0, 0, 0},
                        {0, 0, 0, 1, 1, 1, 0, 0, 0, 0}};
  const Values made = metrics_of(*task, samples);
  REQUIRE(made.size() == 4);
  CHECK(made[0] == 0.7);
  CHECK(made[1] == 1);  // of two classes, all are among the five likeliest
  CHECK(made[2] == Approx(2 * 3.0 / (2 * 3 + 2 + 1)).epsilon(1e-14));
  CHECK(made[3] == Approx((3.0 * 4 - 2 * 1) / std::sqrt(5.0 * 4 * 6 * 5)).epsilon(1e-14));
  CHECK(sums_of(*task, samples, 0, 10)[0] == 50);
}

TEST_CASE("Metrics of several classes are scikit-learn's", "[task]") {
  const auto task = make_task("classification", 7);
  const Samples samples{
      {0, 1, 2, 2, 1, 0, 3, 3, 6}, {0, 2, 2, 2, 1, 1, 3, 0, 6}, {0, 4, 0, 0, 0, 5, 0, 6, 0}};
  const Values made = metrics_of(*task, samples);
  CHECK(made[0] == Approx(6.0 / 9));
  CHECK(made[1] == Approx(7.0 / 9));
  // By class: 1/2, 1/2, 4/5, 2/3, 1; classes 4 and 5 do not occur.
  CHECK(made[2] == Approx((0.5 + 0.5 + 0.8 + 2.0 / 3 + 1) / 5).epsilon(1e-14));
  // R_K with 6 hits of 9; predictions (2 2 3 1 0 0 1), labels (2 2 2 2 0 0 1).
  const double both = 4 + 4 + 6 + 2 + 1, predictions = 4 + 4 + 9 + 1 + 1, labels = 4 * 4 + 1;
  CHECK(made[3] ==
        Approx((6 * 9 - both) / std::sqrt((81 - predictions) * (81 - labels))).epsilon(1e-14));
}

TEST_CASE("Metrics that have no denominator are 0", "[task]") {
  const auto task = make_task("classification", 2);
  const Values one_label = metrics_of(*task, {{0, 0}, {0, 0}, {0, 0}});
  CHECK(one_label == Values{1, 1, 0, 0});
  const Values one_prediction = metrics_of(*task, {{0, 1}, {1, 1}, {1, 0}});
  CHECK(one_prediction[3] == 0);
}

TEST_CASE("Sums of parts add to those of the whole", "[task]") {
  const auto task = make_task("classification", 3);
  const Samples samples{{0, 1, 2, 2, 1, 0, 1}, {0, 2, 2, 1, 1, 1, 1}, {0, 1, 0, 2, 0, 1, 0}};
  const Values whole = sums_of(*task, samples, 0, 7);
  for (std::size_t cut = 0; cut <= 7; ++cut) {
    Values parts = sums_of(*task, samples, 0, cut);
    const Values rest = sums_of(*task, samples, cut, 7);
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] += rest[i];
    CHECK(parts == whole);
  }
}

TEST_CASE("A loss that is not a number is not hidden; labels beyond the classes are an error",
          "[task]") {
  const auto task = make_task("classification", 2);
  Values sums(task->sums(), 0);
  task->add(std::vector<float>{NAN, 0, 0}, std::vector<std::int32_t>{0}, sums);
  CHECK(std::isnan(sums[0]));
  CHECK_THROWS_AS(task->add(std::vector<float>{0, 0, 0}, std::vector<std::int32_t>{2}, sums),
                  InternalError);
  CHECK_THROWS_AS(task->add(std::vector<float>{0, 0, 0}, std::vector<std::int32_t>{-1}, sums),
                  InternalError);
  CHECK_THROWS_AS(make_task("regression"), InternalError);
  for (const TaskType& type : task_types()) CHECK(type.make(2)->name() == std::string(type.name));
}

}  // namespace deltapipe
