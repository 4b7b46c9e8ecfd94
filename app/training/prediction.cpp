// SPDX-License-Identifier: BSD-3-Clause
#include "app/training/prediction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

namespace {

/// Bytes of a rank's predictions that travel to rank 0 together.
constexpr std::size_t kGathered = std::size_t{1} << 18;

std::string bytes_of(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// Returns what all ranks gathered in steps [begin, end), sorted by sample.
Predictions sorted_predictions(const StepPlanner& planner, const ProcessGrid& grid,
                               std::uint64_t begin, std::uint64_t end, std::size_t classes,
                               const std::vector<std::string>& parts) {
  Predictions predictions;
  // Replicas visit an unshuffled set in turns, so that whole steps cover a range of samples.
  predictions.first = planner.samples(begin, 0).front();
  for (int replica = 0; replica < grid.replicas(); ++replica) {
    const std::string& part =
        parts[static_cast<std::size_t>(grid.rank_of(grid.stages() - 1, replica))];
    std::size_t offset = 0;
    const std::size_t row_bytes = classes * sizeof(float);
    for (std::uint64_t step = begin; step < end; ++step)
      for (const std::uint64_t id : planner.samples(step, replica)) {
        DELTAPIPE_ASSERT(id >= predictions.first && offset + row_bytes <= part.size(),
                         fmt::format("sample {}", id));
        std::vector<float>& all = predictions.probabilities;
        const std::size_t row = (id - predictions.first) * classes;
        if (all.size() < row + classes) all.resize(row + classes, std::nanf(""));
        std::memcpy(all.data() + row, part.data() + offset, row_bytes);
        offset += row_bytes;
      }
    DELTAPIPE_ASSERT(offset == part.size(), fmt::format("{} bytes", part.size()));
  }
  return predictions;
}

}  // namespace

void predict(const EvaluationContext& context, const Dataset& data, EvaluationMode mode,
             int classes, const std::function<void(const Predictions&)>& take) {
  const StepPlanner planner(data, 0, false, context.layout);
  const std::size_t step_bytes = static_cast<std::size_t>(context.layout.micro_batch_size) *
                                 static_cast<std::size_t>(context.layout.micro_batches) *
                                 static_cast<std::size_t>(classes) * sizeof(float);
  const std::uint64_t together = std::max<std::uint64_t>(1, kGathered / step_bytes);
  const std::uint64_t steps = planner.steps_per_epoch();
  for (std::uint64_t begin = 0; begin < steps; begin += together) {
    const std::uint64_t end = std::min(steps, begin + together);
    std::vector<float> own;
    for (std::uint64_t step = begin; step < end; ++step) {
      context.progress.check();
      context.pipeline.evaluate_step(data, planner.plan(step, context.grid.replica()), mode,
                                     nullptr, RowScore::probabilities);
      const std::vector<float> scores = context.pipeline.row_scores();
      own.insert(own.end(), scores.begin(), scores.end());
    }
    const std::vector<std::string> parts =
        gather(context.progress, context.grid.world(), bytes_of(own), 0);
    if (parts.empty()) continue;  // not rank 0
    const Predictions predictions = sorted_predictions(planner, context.grid, begin, end,
                                                       static_cast<std::size_t>(classes), parts);
    const std::vector<float>& all = predictions.probabilities;
    const auto wrong = std::ranges::find_if(all, [](float p) { return !std::isfinite(p); });
    if (wrong != all.end())
      throw UserError(
          {.what = fmt::format(
               "a probability of sample {} is not finite",
               predictions.first + static_cast<std::uint64_t>((wrong - all.begin()) / classes)),
           .remedy = "use weights from before the training diverged"});
    take(predictions);
  }
}

}  // namespace deltapipe
