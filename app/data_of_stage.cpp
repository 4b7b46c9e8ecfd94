// SPDX-License-Identifier: BSD-3-Clause
#include "app/data_of_stage.hpp"

#include <string>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

/// fingerprint, sequence length, padding, number of runs of equal lengths, their counts and
/// lengths.
void put_outline(const TokenDataset& set, std::vector<std::uint64_t>& numbers) {
  numbers.push_back(set.fingerprint());
  numbers.push_back(static_cast<std::uint64_t>(set.sequence_length()));
  numbers.push_back(static_cast<std::uint64_t>(set.padding()));
  const std::size_t runs = numbers.size();
  numbers.push_back(0);
  for (std::uint64_t id = 0; id < set.size(); ++id) {
    const auto length = static_cast<std::uint64_t>(set.length(id));
    if (id == 0 || length != numbers.back()) {
      numbers.push_back(0);
      numbers.push_back(length);
      ++numbers[runs];
    }
    ++numbers[numbers.size() - 2];
  }
}

TokenDataset take_outline(std::span<const std::uint64_t>& numbers) {
  DELTAPIPE_ASSERT(numbers.size() >= 4 && (numbers.size() - 4) / 2 >= numbers[3],
                   std::to_string(numbers.size()) + " numbers");
  const std::uint64_t runs = numbers[3];
  std::vector<std::int32_t> lengths;
  for (std::uint64_t run = 0; run < runs; ++run)
    lengths.insert(lengths.end(), numbers[4 + 2 * run],
                   static_cast<std::int32_t>(numbers[5 + 2 * run]));
  const TokenDataset set = TokenDataset::outline(lengths, static_cast<int>(numbers[1]),
                                                 static_cast<std::int32_t>(numbers[2]), numbers[0]);
  numbers = numbers.subspan(4 + 2 * runs);
  return set;
}

DataSplit load_data(const DataSettings& settings, const ModelPlan& plan, const ProcessGrid& grid,
                    ProgressThread& progress) {
  const bool reads = grid.first() || grid.last();
  DataSplit data;
  if (reads) data = load_data(settings, plan.vocabulary(), plan.tokens);
  if (grid.pipeline_ranks() < 3) return data;
  std::vector<std::uint64_t> numbers;
  if (grid.first()) {
    put_outline(data.train, numbers);
    put_outline(data.validation, numbers);
  }
  broadcast(progress, grid.pipeline_comm(), numbers, 0);
  if (reads) return data;
  std::span<const std::uint64_t> rest(numbers);
  data.train = take_outline(rest);
  data.validation = take_outline(rest);
  return data;
}

}  // namespace deltapipe
