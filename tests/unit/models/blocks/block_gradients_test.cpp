// SPDX-License-Identifier: BSD-3-Clause
// Each block and each end against finite differences, in double.
#include <catch2/catch.hpp>

#include "core/kernels/gemm/blas.hpp"
#include "models/blocks/language_head.hpp"
#include "models/blocks/token_embedding.hpp"
#include "models/blocks/transformer_block.hpp"
#include "tests/unit/models/blocks/stage_harness.hpp"

using namespace deltapipe;
using test::PassKind;

namespace {

constexpr int kChannels = 4, kHidden = 6, kTokens = 3;

StageParts<double> parts_of_channels() {
  StageParts<double> parts;
  parts.input_shape = [](int tokens) { return BoundaryShape{tokens, kChannels}; };
  return parts;
}

PassKind any_kind() {
  return GENERATE(PassKind{false, false}, PassKind{true, false}, PassKind{false, true});
}

}  // namespace

TEST_CASE("A transformer block's gradients are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  const double dropout = GENERATE(0.0, 0.3);
  const auto build = [dropout](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    parts.blocks.push_back(
        {std::make_unique<TransformerBlock<double>>(
             parameters, AttentionNames{"n1", "qkv", "out"},
             AttentionOptions{kChannels, 2, 1e-5, dropout, dropout, 0},
             MlpNames{"n2", "up", "down"}, MlpOptions{kChannels, kHidden, 1e-5, dropout, 2}, 0),
         0});
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), false, false);
}

TEST_CASE("An MLP block's gradients are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  const double dropout = GENERATE(0.0, 0.3);
  const auto build = [dropout](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    parts.blocks.push_back(
        {std::make_unique<MlpBlock<double>>(parameters, MlpNames{"norm", "up", "down"},
                                            MlpOptions{kChannels, kHidden, 1e-5, dropout, 0}, 0),
         0});
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), false, false);
}

TEST_CASE("A language head's gradients are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  const auto build = [](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    const NormLayer<double> norm(parameters, "norm", kChannels, 1e-5, 0);
    const int matrix = parameters.add("head", {5, kChannels}, true, 1);
    parts.last =
        std::make_unique<LanguageHead<double>>(parameters, norm, matrix, std::vector<int>{1, 0});
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), false, true);
}

TEST_CASE("An embedding's gradients are slopes", "[models][blocks]") {
  const double dropout = GENERATE(0.0, 0.3);
  const auto build = [dropout](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    const auto tokens =
        std::make_shared<TokenTable<double>>(parameters, "tokens", 5, kChannels, false);
    const int positions = parameters.add("positions", {kTokens + 1, kChannels}, false, 0);
    tokens->declare(1);
    parts.first =
        std::make_unique<TokenPositionEmbedding<double>>(parameters, positions, tokens, dropout, 7);
    parts.token_embedding = tokens;
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), true, false);

  // The table's gradient is collected by embedding_gradient(), over all rows here.
  test::StageHarness h(build, kTokens, {false, false});
  TokenEmbedding<double>& table = *h.stage.token_embedding();
  const std::vector<double> u = test::random_values(h.output().size(), 2);
  const std::vector<double> start = h.parameter(table.wte());
  const auto value = [&](const std::vector<double>& at) {
    h.set_parameter(table.wte(), at);
    h.forward();
    return test::dot(test::to_host(h.output()), u);
  };
  value(start);
  test::fill(h.output_gradient(), u);
  h.backward();
  std::vector<std::int32_t> first = {0}, rows;
  const std::vector<std::int32_t> row_of_n = test::to_host(h.batch.fields.integers(Field::tokens));
  for (int token = 0; token < 5; ++token) {
    for (int n = 0; n < h.batch.rows(); ++n)
      if (row_of_n[n] == token) rows.push_back(n);
    first.push_back(static_cast<std::int32_t>(rows.size()));
  }
  const auto gradient =
      table.embedding_gradient(h.exec, test::to_device(first), test::to_device(rows), 5);
  CHECK(test::slope_error(value, start, test::to_host(gradient)) < 1e-8);
}
