// SPDX-License-Identifier: BSD-3-Clause
// Disentangled attention against its formula, with fewer tokens than reserved, and with several
// threads. Gradients are compared with slopes in models/blocks/block_gradients_test.cpp.
#include "core/kernels/attention/disentangled_attention.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "core/kernels/gemm/blas.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using test::random_values;
using test::to_device;
using test::to_host;

namespace {

constexpr int kSamples = 3, kHeads = 5, kWidth = 4, kChannels = kHeads * kWidth;
constexpr RelativeBuckets kBuckets{4, 7};

struct Made {
  std::vector<double> out, log_sum, dqkv, dpositions;
  bool operator==(const Made&) const = default;
};

/// Inputs of samples of `tokens` tokens.
struct Inputs {
  int tokens;
  std::vector<double> qkv, positions, dout;
  std::vector<std::int32_t> lengths;

  explicit Inputs(int T) : tokens(T) {
    const RelativeRows rows = RelativeRows::of(kBuckets, T);
    qkv = random_values(std::size_t(kSamples) * T * 3 * kChannels, 1);
    positions = random_values(std::size_t(rows.count) * 2 * kChannels, 2);
    dout = random_values(std::size_t(kSamples) * T * kChannels, 3);
    lengths = {T, std::max(1, T / 2), std::max(1, T - 1)};
  }
};

/// Runs both passes with memory for `most_tokens` tokens.
Made attend(const Inputs& in, int most_tokens, int heads, int concurrent) {
  const ExecSpace exec;
  const AttentionShape shape{kSamples, in.tokens, kHeads, kWidth, false};
  const int rows = RelativeRows::of(kBuckets, in.tokens).count;
  const RelativeDistances distances(kBuckets, most_tokens, ViewAllocator());
  const auto memory = [](const char* label, std::size_t size) {
    return Vector<double>(std::string("deltapipe::Test::") + label, size);
  };
  const std::size_t groups = std::size_t(heads) * concurrent * in.tokens;
  const Vector<double> scores = memory("scores", groups * in.tokens),
                       dscores = memory("dscores", groups * in.tokens),
                       by_query = memory("byQuery", groups * rows),
                       by_key = memory("byKey", groups * rows);
  const DisentangledWorkspace<double> workspace{scores, dscores, by_query,
                                                by_key, heads,   concurrent};
  const Vector<double> qkv = to_device(in.qkv), positions = to_device(in.positions),
                       dout = to_device(in.dout);
  const Vector<std::int32_t> lengths = to_device(in.lengths);
  const std::size_t N = std::size_t(kSamples) * in.tokens;
  const Vector<double> out = memory("out", N * kChannels), dqkv = memory("dqkv", 3 * N * kChannels),
                       log_sum = memory("logSum", N * kHeads),
                       dpositions = memory("dpositions", in.positions.size());
  const auto columns = [&](const Vector<double>& x, int first) {
    return strided_matrix(x.data() + first, rows, kChannels, 2 * kChannels);
  };
  const auto matrix = [&](const Vector<double>& x, int width) {
    return MatrixRef<double>(x.data(), N, width);
  };
  Dropout dropout;
  dropout.tokens = in.tokens;
  const RelativeOperands<const double> relative{columns(positions, 0),
                                                columns(positions, kChannels)};
  disentangled_attention_forward<double>(exec, shape, distances, matrix(qkv, 3 * kChannels),
                                         relative, dropout, workspace, matrix(out, kChannels),
                                         log_sum, {}, lengths);
  disentangled_attention_backward<double>(
      exec, shape, distances, matrix(qkv, 3 * kChannels), relative, dropout, workspace,
      matrix(out, kChannels), log_sum, matrix(dout, kChannels), matrix(dqkv, 3 * kChannels),
      {columns(dpositions, 0), columns(dpositions, kChannels)}, {}, lengths);
  exec.fence();
  return {to_host(out), to_host(log_sum), to_host(dqkv), to_host(dpositions)};
}

/// Returns the attention's output by its formula.
std::vector<double> formula(const Inputs& in) {
  const int T = in.tokens, first = RelativeRows::of(kBuckets, T).first;
  std::vector<double> out(std::size_t(kSamples) * T * kChannels);
  const auto qkv = [&](int b, int t, int part, int c) {
    return in.qkv[(std::size_t(b) * T + t) * 3 * kChannels + part * kChannels + c];
  };
  const auto position = [&](int row, int part, int c) {
    return in.positions[std::size_t(row - first) * 2 * kChannels + part * kChannels + c];
  };
  for (int b = 0; b < kSamples; ++b)
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < T; ++i) {
        std::vector<double> p(in.lengths[b]);
        double sum = 0;
        for (int j = 0; j < in.lengths[b]; ++j) {
          const int row = kBuckets.row(i - j);
          double score = 0;
          for (int c = h * kWidth; c < (h + 1) * kWidth; ++c)
            score += qkv(b, i, 0, c) * (qkv(b, j, 1, c) + position(row, 1, c)) +
                     qkv(b, j, 1, c) * position(row, 0, c);
          sum += p[j] = std::exp(score / std::sqrt(3.0 * kWidth));
        }
        for (int c = h * kWidth; c < (h + 1) * kWidth; ++c)
          for (int j = 0; j < in.lengths[b]; ++j)
            out[(std::size_t(b) * T + i) * kChannels + c] += p[j] / sum * qkv(b, j, 2, c);
      }
  return out;
}

}  // namespace

TEST_CASE("Disentangled attention is its formula, whatever the memory is reserved for",
          "[kernels][attention]") {
  use_single_threaded_blas();
  const Inputs in(GENERATE(1, 2, 6, 13));
  const Made made = attend(in, in.tokens, 1, 1);
  const std::vector<double> expected = formula(in);
  double error = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    error = std::max(error, std::abs(made.out[i] - expected[i]));
  CHECK(error < 1e-13);
  CHECK(attend(in, 20, 1, 1) == made);
  CHECK(attend(in, in.tokens, 2, 1) == made);
  CHECK(attend(in, in.tokens, kHeads, 1) == made);
}

TEST_CASE("Several threads share the heads of disentangled attention, with the same bits",
          "[kernels][attention][threads]") {
  if (!kTeamExecution) return;
  use_single_threaded_blas();
  HostTeam& team = HostTeam::instance();
  const int before = team.size();
  const Inputs in(13);
  const Made one = attend(in, 13, 1, 1);
  for (const int threads : {2, 4, 16}) {
    team.resize(threads);
    const Made made = attend(in, 13, 1, std::min(threads, kHeads));
    CHECK(made.out == one.out);
    CHECK(made.log_sum == one.log_sum);
    CHECK(made.dqkv == one.dqkv);
    CHECK(made.dpositions == one.dpositions);
  }
  team.resize(before);
}
