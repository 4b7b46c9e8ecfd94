// SPDX-License-Identifier: BSD-3-Clause
// Each block and each end against finite differences, in double.
#include <catch2/catch.hpp>
#include <numeric>
#include <optional>

#include "core/kernels/gemm/blas.hpp"
#include "models/blocks/classification_head.hpp"
#include "models/blocks/convolved_block.hpp"
#include "models/blocks/disentangled_self_attention.hpp"
#include "models/blocks/language_head.hpp"
#include "models/blocks/post_norm_block.hpp"
#include "models/blocks/text_embedding.hpp"
#include "models/blocks/transformer_block.hpp"
#include "support/values_input.hpp"
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

AttentionOptions attention_options(bool causal, double dropout) {
  return {.channels = kChannels,
          .heads = 2,
          .causal = causal,
          .attention_dropout = dropout,
          .dropout = dropout};
}

MlpOptions mlp_options(Activation activation, double dropout) {
  return {.channels = kChannels,
          .hidden = kHidden,
          .activation = activation,
          .dropout = dropout,
          .dropout_site = 2};
}

PostNormNames post_norm_names(const std::string& block) {
  return {block + "out", block + "n1", {block + "n2", block + "up", block + "down"}};
}

}  // namespace

TEST_CASE("A transformer block's gradients are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  const double dropout = GENERATE(0.0, 0.3);
  const bool causal = GENERATE(true, false);
  const auto build = [=](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    const AttentionOptions attention = attention_options(causal, dropout);
    const MlpOptions mlp =
        mlp_options(causal ? Activation::gelu_tanh : Activation::gelu_erf, dropout);
    parts.blocks.push_back({std::make_unique<TransformerBlock<double>>(
                                parameters, AttentionNames{"n1", "qkv", "out"}, attention,
                                MlpNames{"n2", "up", "down"}, mlp, 0),
                            0});
    return parts;
  };
  const std::vector<std::int32_t> lengths = {2, kTokens};
  test::check_gradients(build, kTokens, any_kind(), false, false,
                        causal ? std::vector<std::int32_t>() : lengths);
}

TEST_CASE("A post-norm block's gradients are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  const double dropout = GENERATE(0.0, 0.3);
  const auto build = [=](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    AttentionOptions attention = attention_options(false, dropout);
    MlpOptions mlp = mlp_options(Activation::gelu_erf, dropout);
    attention.layout = mlp.layout = WeightLayout::outputs_inputs;
    for (int i = 0; i < 2; ++i) {
      const std::string b = "b" + std::to_string(i);
      parts.blocks.push_back(
          {std::make_unique<PostNormBlock<double>>(
               parameters,
               std::make_unique<DotProductAttention<double>>(parameters, b + "qkv", attention, i),
               post_norm_names(b), attention, mlp, i),
           i});
    }
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), false, false, {2, kTokens});
}

TEST_CASE("The gradients of blocks with disentangled attention are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  constexpr int kLonger = 5;
  const double dropout = GENERATE(0.0, 0.3);
  const bool shared = GENERATE(true, false), as_on_device = GENERATE(false, true);
  const bool trains_relative = GENERATE(true, false);
  const auto [c2p, p2c] =
      GENERATE(std::pair(true, true), std::pair(true, false), std::pair(false, true));
  CAPTURE(dropout, shared, c2p, p2c, as_on_device, trains_relative);
  const auto build = [=, c2p = c2p, p2c = p2c](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    AttentionOptions attention = attention_options(false, dropout);
    MlpOptions mlp = mlp_options(Activation::gelu_erf, dropout);
    attention.layout = mlp.layout = WeightLayout::outputs_inputs;
    const auto relative = std::make_shared<RelativeEmbedding<double>>(
        parameters, RelativeEmbeddingNames{"relative", shared ? "norm" : ""}, RelativeBuckets{4, 7},
        kChannels, 1e-5, true, 0);
    if (trains_relative) parts.common = relative;
    std::unique_ptr<Block<double>> block = std::make_unique<PostNormBlock<double>>(
        parameters,
        std::make_unique<DisentangledSelfAttention<double>>(
            parameters, DisentangledNames{"qkv", shared ? "" : "positions"},
            DisentangledOptions{attention, c2p, p2c, 9}, relative, 1),
        post_norm_names(""), attention, mlp, 1);
    if (shared)
      block = std::make_unique<ConvolvedBlock<double>>(
          parameters, std::move(block), "convolution", "n3",
          TextConvolutionOptions{
              .channels = kChannels, .width = 3, .dropout = dropout, .dropout_site = 11},
          1);
    parts.blocks.push_back({std::move(block), 1});
    return parts;
  };
  PassKind kind = any_kind();
  kind.as_on_device = as_on_device;
  if (!trains_relative) kind.frozen = {"relative.weight", "norm.weight", "norm.bias"};
  test::check_gradients(build, kLonger, kind, false, false, {3, kLonger});
}

TEST_CASE("An MLP block's gradients are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  const double dropout = GENERATE(0.0, 0.3);
  const Activation activation = GENERATE(Activation::gelu_tanh, Activation::relu);
  const auto build = [=](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    parts.blocks.push_back(
        {std::make_unique<MlpBlock<double>>(parameters, MlpNames{"norm", "up", "down"},
                                            MlpOptions{.channels = kChannels,
                                                       .hidden = kHidden,
                                                       .activation = activation,
                                                       .dropout = dropout},
                                            0),
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

TEST_CASE("A classification head's gradients are slopes", "[models][blocks]") {
  use_single_threaded_blas();
  const Pooling pooling = GENERATE(Pooling::first, Pooling::mean, Pooling::last);
  const std::string dense = GENERATE("dense", "");
  const Bias bias = dense.empty() ? GENERATE(Bias::yes, Bias::no) : Bias::yes;
  std::optional<Activation> activation;
  if (!dense.empty() && pooling == Pooling::first) activation = Activation::gelu_erf;
  const double dropout = GENERATE(0.0, 0.3);
  const auto build = [=](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    parts.last = std::make_unique<ClassificationHead<double>>(
        parameters, ClassificationNames{dense, "output"},
        ClassificationOptions{
            .channels = kChannels,
            .classes = 5,
            .pooling = pooling,
            .activation = activation,
            .layout = dense.empty() ? WeightLayout::inputs_outputs : WeightLayout::outputs_inputs,
            .output_bias = bias,
            .dropout = dropout,
            .dropout_site = 3},
        0);
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), false, true, {2, kTokens});
}

TEST_CASE("A classification head scores samples", "[models][blocks]") {
  const auto build = [](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    parts.last = std::make_unique<ClassificationHead<double>>(
        parameters, ClassificationNames{"", "output"},
        ClassificationOptions{.channels = kChannels, .classes = 5, .pooling = Pooling::mean}, 0);
    return parts;
  };
  test::StageHarness h(build, kTokens, {false, false});
  h.set_lengths({1, 2});
  // The logit of class v is channel v; that of class 4 is 0.
  std::vector<double> weight(kChannels * 5, 0);
  for (int c = 0; c < kChannels; ++c) weight[c * 5 + c] = 1;
  h.set_parameter(0, weight);
  h.set_parameter(1, std::vector<double>(5, 0));
  // The mean of the valid rows: (3 1 0 2) with the label 3, (0 1 1 0) with the label 1.
  const std::vector<double> x = {3, 1, 0, 2, 9,  9,  9, 9, 9, 9, 9, 9,
                                 1, 3, 2, 0, -1, -1, 0, 0, 9, 9, 9, 9};
  test::fill(h.input(), x);
  h.batch.score = RowScore::prediction;
  h.stage.forward(h.exec, h.batch, 1, false, false);
  const std::vector<double> scores = test::to_host(h.stage.scores(0, 6));
  const auto loss = [](const std::vector<double>& logits, int label) {
    double sum = 0;
    for (const double z : logits) sum += std::exp(z);
    return std::log(sum) - logits[label];
  };
  CHECK(scores[0] == Approx(loss({3, 1, 0, 2, 0}, 3)).epsilon(1e-12));
  CHECK(scores[1] == Approx(loss({0, 1, 1, 0, 0}, 1)).epsilon(1e-12));
  CHECK(std::vector<double>(scores.begin() + 2, scores.end()) == std::vector<double>{0, 1, 1, 0});
  h.batch.score = RowScore::probabilities;
  h.stage.forward(h.exec, h.batch, 1, false, false);
  const std::vector<double> p = test::to_host(h.stage.scores(0, 10));
  CHECK(-std::log(p[3]) == Approx(scores[0]).epsilon(1e-12));
  CHECK(-std::log(p[5 + 1]) == Approx(scores[1]).epsilon(1e-12));
  CHECK(std::accumulate(p.begin() + 5, p.end(), 0.0) == Approx(1).epsilon(1e-12));
  h.batch.score = RowScore::prediction;
  // NaN shows in the loss and the prediction.
  std::vector<double> bad = x;
  bad[0] = NAN;
  test::fill(h.input(), bad);
  h.stage.forward(h.exec, h.batch, 1, false, false);
  const std::vector<double> spoiled = test::to_host(h.stage.scores(0, 6));
  CHECK(std::isnan(spoiled[0]));
  CHECK(std::isnan(spoiled[4]));
  CHECK(spoiled[1] == scores[1]);
}

TEST_CASE("An input of values has slopes as gradients", "[models][blocks]") {
  use_single_threaded_blas();
  const auto build = [](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    parts.first =
        std::make_unique<test::ValuesInput<double>>(parameters, "in", test::kValues, kChannels, 0);
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), true, false);
}

TEST_CASE("A BERT embedding's gradients are slopes", "[models][blocks][bert]") {
  const double dropout = GENERATE(0.0, 0.3);
  const auto build = [dropout](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    const auto tokens =
        std::make_shared<TokenTable<double>>(parameters, "tokens", 5, kChannels, false);
    const int positions = parameters.add("positions", {kTokens + 1, kChannels}, false, 0);
    const int segments = parameters.add("segments", {3, kChannels}, false, 0);
    const NormLayer<double> norm(parameters, "norm", kChannels, 1e-5, 0);
    tokens->declare(1);
    parts.first = std::make_unique<TextEmbedding<double>>(
        parameters, EmbeddingTables{positions, segments}, norm, tokens, dropout, 7, 0);
    parts.token_embedding = tokens;
    return parts;
  };
  test::check_gradients(build, kTokens, any_kind(), true, false);
}

TEST_CASE("An embedding's gradients are slopes", "[models][blocks]") {
  const double dropout = GENERATE(0.0, 0.3);
  const auto build = [dropout](ParameterArena<double>& parameters) {
    StageParts<double> parts = parts_of_channels();
    const auto tokens =
        std::make_shared<TokenTable<double>>(parameters, "tokens", 5, kChannels, false);
    const int positions = parameters.add("positions", {kTokens + 1, kChannels}, false, 0);
    tokens->declare(1);
    parts.first = std::make_unique<TextEmbedding<double>>(parameters, EmbeddingTables{positions},
                                                          std::nullopt, tokens, dropout, 7, 0);
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
