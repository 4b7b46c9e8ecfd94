// SPDX-License-Identifier: BSD-3-Clause
#include "app/session/data_of_stage.hpp"

#include <fmt/format.h>

#include <utility>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/data/images.hpp"
#include "core/data/labelled_text.hpp"

namespace deltapipe {

/// fingerprint, sequence length, number of runs of equal samples, their counts, lengths and first
/// targets.
void put_outline(const Dataset& set, std::vector<std::uint64_t>& numbers) {
  numbers.push_back(set.fingerprint());
  numbers.push_back(static_cast<std::uint64_t>(set.sequence_length()));
  const std::size_t runs = numbers.size();
  numbers.push_back(0);
  for (std::uint64_t id = 0; id < set.size(); ++id) {
    const auto length = static_cast<std::uint64_t>(set.length(id));
    const auto first_target = static_cast<std::uint64_t>(set.length(id) - set.targets(id));
    if (id == 0 || length != numbers[numbers.size() - 2] || first_target != numbers.back()) {
      numbers.insert(numbers.end(), {0, length, first_target});
      ++numbers[runs];
    }
    ++numbers[numbers.size() - 3];
  }
}

TokenDataset take_outline(std::span<const std::uint64_t>& numbers) {
  DELTAPIPE_ASSERT(numbers.size() >= 3 && (numbers.size() - 3) / 3 >= numbers[2],
                   fmt::format("{} numbers", numbers.size()));
  const std::uint64_t runs = numbers[2];
  std::vector<TokenWindow> windows;
  for (std::uint64_t run = 0; run < runs; ++run) {
    const auto of_run = numbers.subspan(3 + 3 * run, 3);
    windows.insert(windows.end(), of_run[0],
                   {0, static_cast<std::int32_t>(of_run[1]), static_cast<std::int32_t>(of_run[2])});
  }
  TokenDataset set =
      TokenDataset::outline(std::move(windows), static_cast<int>(numbers[1]), 0, numbers[0]);
  numbers = numbers.subspan(3 + 3 * runs);
  return set;
}

DataSplit read_samples(const DataSettings& settings, const Model& model,
                       const Vocabulary& vocabulary, int tokens) {
  switch (settings.kind) {
    case DataKind::text:
      return load_data(settings, vocabulary, tokens);
    case DataKind::labelled_text:
      return load_labelled_texts(settings, vocabulary, model.class_names(), tokens);
    case DataKind::images:
      return load_images(settings, model.shape().image, model.class_names(), tokens);
  }
  return {};
}

DataSplit load_data(const DataSettings& settings, const ModelPlan& plan, const ProcessGrid& grid,
                    ProgressThread& progress) {
  const bool reads = grid.first() || grid.last();
  DataSplit data;
  if (reads) data = read_samples(settings, *plan.model, plan.vocabulary(), plan.tokens);
  if (grid.pipeline_ranks() < 3) return data;
  std::vector<std::uint64_t> numbers;
  if (grid.first())
    for (const Dataset* set :
         {data.train.get(), data.validation.get(), static_cast<const Dataset*>(&data.answers)})
      put_outline(*set, numbers);
  broadcast(progress, grid.pipeline_comm(), numbers, 0);
  if (reads) return data;
  std::span<const std::uint64_t> rest(numbers);
  data.train = std::make_shared<TokenDataset>(take_outline(rest));
  data.validation = std::make_shared<TokenDataset>(take_outline(rest));
  data.answers = take_outline(rest);
  return data;
}

}  // namespace deltapipe
