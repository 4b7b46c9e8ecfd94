// SPDX-License-Identifier: BSD-3-Clause
#include "app/training/run_totals.hpp"

#include <cstddef>
#include <numeric>

namespace deltapipe {

namespace {

StateItem rank_sums(const std::vector<RankRecord>& ranks) {
  return {"stages", StateType::f64, {ranks.size(), kRankValues}};
}

}  // namespace

std::uint64_t wire_bytes(const StepRecord& record) {
  const auto sum = [](const std::vector<std::uint64_t>& bytes) {
    return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
  };
  std::uint64_t bytes = sum(record.forward.bytes) + sum(record.backward.bytes) +
                        record.tied_row_bytes + record.tied_gradient_bytes +
                        record.collective_bytes;
  for (const RankRecord& rank : record.ranks)
    bytes += static_cast<std::uint64_t>(rank[static_cast<std::size_t>(RankValue::replica_bytes)]);
  return bytes;
}

void RunTotals::add(const StepRecord& record) {
  bytes += wire_bytes(record);
  samples += record.samples;
  tokens += record.tokens;
  last_loss = record.loss;
  steps = record.step;
  for (std::size_t r = 0; r < record.ranks.size(); ++r)
    for (std::size_t i = 0; i < kRankValues; ++i) ranks[r][i] += record.ranks[r][i];
}

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

}  // namespace deltapipe
