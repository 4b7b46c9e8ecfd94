// SPDX-License-Identifier: BSD-3-Clause
// A shared embedding's rows and gradients cross as a plain host computation has them: for steps of
// any number of micro-batches, with tokens that repeat, and with groups that nothing crosses for.
#include "comm/pipeline/embedding_exchange.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <optional>

#include "core/kernels/layers/embedding.hpp"
#include "mpi_test.hpp"
#include "support/device_values.hpp"

namespace deltapipe {
namespace {

using test::to_device;
using test::to_host;
using Tokens = std::vector<std::int32_t>;

constexpr int kVocabulary = 23, kChannels = 5;

/// The first stage's part: rows that arrive, and gradients of every stored row.
class FakeEmbedding final : public TokenEmbedding<float> {
 public:
  explicit FakeEmbedding(int stored_rows)
      : rows_("deltapipe::Test::rows", kVocabulary, kChannels),
        sums_("deltapipe::Test::sums", kVocabulary, kChannels),
        gradient_("deltapipe::Test::gradient", stored_rows, kChannels) {}

  bool shared() const override { return true; }
  int embedding_channels() const override { return kChannels; }
  int wte() const override { return -1; }
  MatrixRef<float> embedding_rows(int rows) override { return part(rows_, rows); }
  MatrixRef<float> embedding_gradient(const ExecSpace& exec,
                                      const VectorRef<const std::int32_t>& first_of_U,
                                      const VectorRef<const std::int32_t>& row_of,
                                      int rows) override {
    token_gradient<float>(exec, MatrixRef<const float>(gradient_), first_of_U, row_of,
                          part(sums_, rows));
    return part(sums_, rows);
  }
  /// A micro-batch's backward pass.
  void set_gradient(std::size_t first_row, const std::vector<float>& values) {
    test::copy_to_device<float>(
        values, VectorRef<float>(gradient_.data() + first_row * kChannels, values.size()));
  }

 private:
  static MatrixRef<float> part(const Matrix<float>& all, int rows) {
    return MatrixRef<float>(all.data(), rows, kChannels);
  }
  Matrix<float> rows_, sums_, gradient_;
};

float table_value(int token, int channel, int step) {
  return static_cast<float>(1 + token) + 0.125f * static_cast<float>(channel) +
         0.25f * static_cast<float>(step * (token % 3));
}

/// Small integers: every order of summation gives the same sum.
float gradient_value(std::size_t stored_row, int channel, int step) {
  return static_cast<float>(static_cast<int>((stored_row * 7 + channel * 3 + step) % 11) - 5);
}

/// Micro-batches of at most `rows` tokens; the last one may be incomplete.
std::vector<Tokens> tokens_of(int micro_batches, int rows, int kinds, int step) {
  std::vector<Tokens> all(micro_batches);
  std::uint32_t random = 77u * micro_batches + 13u * rows + kinds + 1000u * step;
  for (int m = 0; m < micro_batches; ++m)
    for (int n = 0; n < (m + 1 == micro_batches ? (rows + 1) / 2 : rows); ++n) {
      random = random * 1664525u + 1013904223u;
      all[m].push_back(static_cast<std::int32_t>((random >> 10) % kinds));
    }
  return all;
}

/// Runs both ends' instructions for steps of these tokens and compares with the host's sums.
class Exchange {
 public:
  Exchange(const ProcessGrid& grid, ProgressThread& progress, const PipelineOptions& options,
           int micro_batches, int rows)
      : grid_(grid),
        rows_(rows),
        lossless_(options.forward.kind == CodecKind::none),
        index_(kVocabulary, micro_batches * rows, micro_batches),
        embedding_(micro_batches * rows) {
    const EmbeddingExchangeShape shape{kVocabulary, rows, micro_batches, kChannels, true};
    if (grid.first() || grid.last())
      exchange_.emplace(plan_embedding_exchange(options, shape, grid.stages(), grid.last()), grid,
                        progress, std::make_shared<EmulatedLink>(LinkSettings{}));
  }

  void run(const std::vector<Tokens>& tokens, int step) {
    if (!exchange_) return;
    index_.clear();
    for (std::size_t m = 0; m < tokens.size(); ++m)
      index_.add(tokens[m], static_cast<std::int32_t>(m) * rows_);
    index_.finish(exec_);
    exec_.fence();
    Crossing crossing;
    crossing.step = step;
    const int M = static_cast<int>(tokens.size());
    if (grid_.last()) {
      send_rows(crossing, M, step);
      receive_gradients(crossing, tokens, step);
    } else {
      receive_rows(crossing, tokens, step);
      send_gradients(crossing, tokens, step);
    }
  }

 private:
  void send_rows(const Crossing& crossing, int M, int step) {
    std::vector<float> table;
    for (int v = 0; v < kVocabulary; ++v)
      for (int c = 0; c < kChannels; ++c) table.push_back(table_value(v, c, step));
    const Matrix<float> table_VC = to_device(table, kChannels);
    for (int m = 0; m < M; ++m)
      if (row_group(m, M).begin < row_group(m, M).end)
        exchange_->send_rows(exec_, crossing, index_, m, table_VC);
    exec_.fence();
  }

  void receive_rows(const Crossing& crossing, const std::vector<Tokens>& tokens, int step) {
    const int M = static_cast<int>(tokens.size());
    for (int m = 0; m < M; ++m) {
      if (row_group(m, M).begin < row_group(m, M).end)
        exchange_->receive_rows(exec_, crossing, index_, m, embedding_);
      exec_.fence();
      // The rows of a micro-batch arrive before its forward pass.
      const auto rows = to_host(embedding_.embedding_rows(index_.size()));
      for (const std::int32_t token : tokens[m])
        for (int c = 0; c < kChannels; ++c)
          check(rows[index_.row_of_token(token) * kChannels + c], table_value(token, c, step),
                kVocabulary);
    }
  }

  void send_gradients(const Crossing& crossing, const std::vector<Tokens>& tokens, int step) {
    const int M = static_cast<int>(tokens.size());
    for (int m = 0; m < M; ++m) {
      std::vector<float> values;
      const std::size_t first = static_cast<std::size_t>(m) * rows_;
      for (std::size_t n = 0; n < tokens[m].size(); ++n)
        for (int c = 0; c < kChannels; ++c) values.push_back(gradient_value(first + n, c, step));
      embedding_.set_gradient(first, values);
      if (gradient_group(m, M).begin < gradient_group(m, M).end)
        exchange_->send_gradients(exec_, crossing, index_, m, embedding_);
      exec_.fence();
    }
  }

  void receive_gradients(const Crossing& crossing, const std::vector<Tokens>& tokens, int step) {
    const int M = static_cast<int>(tokens.size());
    for (int m = 0; m < M; ++m)
      if (gradient_group(m, M).begin < gradient_group(m, M).end)
        exchange_->receive_gradients(exec_, crossing, index_, m);
    std::map<std::int32_t, std::vector<float>> expected;
    for (std::size_t m = 0; m < tokens.size(); ++m)
      for (std::size_t n = 0; n < tokens[m].size(); ++n) {
        std::vector<float>& sum = expected[tokens[m][n]];
        sum.resize(kChannels);
        for (int c = 0; c < kChannels; ++c) sum[c] += gradient_value(m * rows_ + n, c, step);
      }
    // Added to a table as Pipeline does: each token's row once.
    const Matrix<float> table("deltapipe::Test::table", kVocabulary, kChannels);
    add_rows<float>(exec_, index_.token_by_last_use_U(), exchange_->gradients(index_), table);
    exec_.fence();
    const auto sums = to_host(MatrixRef<const float>(table));
    float largest = 0;
    for (const auto& [token, sum] : expected)
      for (const float value : sum) largest = std::max(largest, std::abs(value));
    for (int v = 0; v < kVocabulary; ++v)
      for (int c = 0; c < kChannels; ++c)
        check(sums[v * kChannels + c], expected.contains(v) ? expected[v][c] : 0.0f, largest);
  }

  /// Codes of 8 bits err by at most half a step of the largest value.
  void check(float value, float expected, float largest) const {
    if (lossless_)
      CHECK(value == expected);
    else
      CHECK(std::abs(value - expected) <= largest / 127);
  }

  const ProcessGrid& grid_;
  int rows_;  ///< from one micro-batch to the next
  bool lossless_;
  ExecSpace exec_;
  TokenIndex index_;
  FakeEmbedding embedding_;
  std::optional<EmbeddingExchange> exchange_;
};

int world_size() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}

TEST_CASE("A shared embedding's rows and gradients cross as the host sums them",
          "[token_exchange]") {
  const int stages = world_size();
  if (stages == 1) return;  // nothing crosses
  const ProcessGrid grid(MPI_COMM_WORLD, stages, 1);
  PipelineOptions options;
  const bool lossless = GENERATE(true, false);
  if (!lossless) {
    options.forward.kind = CodecKind::aqsgd;
    options.backward.kind = CodecKind::directq;
  }
  options.cache.verify_every = 1;
  constexpr int kRows = 7;
  for (const int micro_batches : {1, 2, 3, 4, 5, 8, 9, 17}) {
    ProgressThread progress(MPI_COMM_WORLD);
    Exchange exchange(grid, progress, options, micro_batches, kRows);
    int step = 0;
    // 1 kind of token: only the first group of rows and the last one of gradients hold any.
    for (const int kinds : {1, 3, kVocabulary})
      for (const int rows : {1, 2, kRows}) {
        CAPTURE(lossless, micro_batches, rows, kinds);
        exchange.run(tokens_of(micro_batches, rows, kinds, step), step);
        ++step;
        exchange.run(tokens_of(micro_batches, rows, kinds, step), step);
        ++step;
        // An incomplete step, one of a single micro-batch, and one without samples.
        for (const int fewer : {(micro_batches + 1) / 2, 1, 0}) {
          exchange.run(tokens_of(fewer, rows, kinds, step), step);
          ++step;
        }
      }
    barrier(progress, MPI_COMM_WORLD);
  }
}

}  // namespace
}  // namespace deltapipe
