// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/training_state.hpp"

#include <utility>

namespace deltapipe {

namespace {

StateItem rank_sums(const std::vector<RankRecord>& ranks) {
  return {"stages", StateType::f64, {ranks.size(), kRankValues}};
}

}  // namespace

StatePart RunTotals::state() {
  const auto write = [this](StateWriter& writer) {
    write_scalar(writer, "seed", seed);
    write_scalar(writer, "data_fingerprint", data_fingerprint);
    write_scalar(writer, "steps", steps);
    write_scalar(writer, "evaluated", evaluated);
    write_scalar(writer, "bytes", bytes);
    write_scalar(writer, "evaluation_bytes_plain", evaluation_bytes[0]);
    write_scalar(writer, "evaluation_bytes_codec", evaluation_bytes[1]);
    write_scalar(writer, "samples", samples);
    write_scalar(writer, "tokens", tokens);
    write_scalar(writer, "seconds", seconds);
    write_scalar(writer, "last_loss", last_loss);
    writer.begin_item(rank_sums(ranks));
    for (const RankRecord& rank : ranks) writer.append(rank.data(), sizeof rank);
  };
  const auto read = [this](StateReader& reader) {
    expect_scalar(reader, "seed", seed);
    expect_scalar(reader, "data_fingerprint", data_fingerprint);
    steps = read_scalar<std::uint64_t>(reader, "steps");
    evaluated = read_scalar<std::uint64_t>(reader, "evaluated");
    bytes = read_scalar<std::uint64_t>(reader, "bytes");
    evaluation_bytes[0] = read_scalar<std::uint64_t>(reader, "evaluation_bytes_plain");
    evaluation_bytes[1] = read_scalar<std::uint64_t>(reader, "evaluation_bytes_codec");
    samples = read_scalar<std::uint64_t>(reader, "samples");
    tokens = read_scalar<std::uint64_t>(reader, "tokens");
    seconds = read_scalar<double>(reader, "seconds");
    last_loss = read_scalar<double>(reader, "last_loss");
    reader.begin_item(rank_sums(ranks));
    for (RankRecord& rank : ranks) reader.take(rank.data(), sizeof rank);
  };
  return {"run", write, read};
}

std::vector<StatePart> training_state(Pipeline& pipeline,
                                      const std::vector<Optimizer<float>>& optimizers,
                                      RunTotals& totals) {
  std::vector<std::vector<StatePart>> lists = {pipeline.state()};
  for (const Optimizer<float>& optimizer : optimizers)
    lists.push_back(optimizer.state(pipeline.exec()));
  lists.push_back({totals.state()});
  return merged_parts(std::move(lists));
}

}  // namespace deltapipe
