// SPDX-License-Identifier: BSD-3-Clause
// Texts that continue with kept keys and values: transformers' greedy texts and logits
// (tests/golden/make_gpt2_fixtures.py), and the logits of passing every text as a whole.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <memory>
#include <numeric>

#include "core/base/error.hpp"
#include "core/files/hdf5.hpp"
#include "core/kernels/gemm/blas.hpp"
#include "models/config_file.hpp"
#include "models/gpt2/gpt2_model.hpp"
#include "models/gpt2/gpt2_stage.hpp"
#include "models/partition.hpp"
#include "support/device_values.hpp"
#include "support/golden_values.hpp"
#include "support/text_batch.hpp"

using namespace deltapipe;
using deltapipe::test::read_all;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

using Tokens = std::vector<std::int32_t>;

const std::string kFixtures = std::string(DELTAPIPE_FIXTURES) + "/tiny_gpt2";
constexpr int kPositions = 24;

/// The fixtures' model in stages, which pass their activations on unchanged.
template <class Real>
class Text {
 public:
  explicit Text(const std::vector<int>& partition, int capacity = kPositions, bool keeps = true) {
    const Gpt2Config config = Gpt2Config::read(read_config_file(kFixtures + "/model"));
    for (int k = 0; k < static_cast<int>(partition.size()); ++k) {
      stages_.push_back(std::make_unique<Gpt2Stage<Real>>(config, stage_part(partition, k), false));
      StageCapacity sizes;
      sizes.tokens = capacity;
      sizes.embedding_rows = capacity;
      sizes.training = false;
      sizes.keeps_text = keeps;
      stages_.back()->reserve(sizes);
      load_weights(SafetensorsReader::open_directory(kFixtures + "/model"), gpt2_names(),
                   stages_.back()->parameters());
    }
  }

  /// Logits behind each of the tokens, which follow the first `kept` ones of the text.
  std::vector<std::vector<Real>> go_on(int kept, const Tokens& tokens) {
    return pass(tokens, [&](Gpt2Stage<Real>& stage, const MicroBatch& batch) {
      stage.text_continuation()->continue_text(exec_, batch, kept, 0);
    });
  }
  std::vector<std::vector<Real>> whole(const Tokens& tokens) {
    return pass(tokens, [&](Gpt2Stage<Real>& stage, const MicroBatch& batch) {
      stage.forward(exec_, batch, 0, false, false);
    });
  }
  Gpt2Stage<Real>& stage(int k) { return *stages_[k]; }

 private:
  template <class Pass>
  std::vector<std::vector<Real>> pass(const Tokens& tokens, const Pass& pass_stage) {
    const int count = static_cast<int>(tokens.size());
    const Vector<std::int32_t> rows = to_device(lend(tokens)), targets = to_device(tokens);
    const Vector<std::uint64_t> ids = to_device(std::vector<std::uint64_t>{3});
    const MicroBatch batch = test::text_batch(1, count, ids, rows, targets);
    for (std::size_t k = 0; k < stages_.size(); ++k) {
      if (k > 0) Kokkos::deep_copy(stages_[k]->input(0, count), stages_[k - 1]->output(0, count));
      pass_stage(*stages_[k], batch);
      exec_.fence();
    }
    std::vector<std::vector<Real>> logits;
    for (int row = 0; row < count; ++row) {
      logits.push_back(to_host(stages_.back()->logits(exec_, 0, row)));
      exec_.fence();
    }
    return logits;
  }

  /// Rows of the table or, where it is on another stage, of those that it lends.
  Tokens lend(const Tokens& tokens) {
    Gpt2Stage<Real>& first = *stages_.front();
    if (first.token_embedding()->wte() >= 0) return tokens;
    const auto table =
        stages_.back()->parameters().matrix(stages_.back()->token_embedding()->wte());
    Tokens rows(tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    for (std::size_t n = 0; n < tokens.size(); ++n)
      Kokkos::deep_copy(rows_of<Real>(first.token_embedding()->embedding_rows(kPositions), n, 1),
                        rows_of<Real>(table, tokens[n], 1));
    return rows;
  }

  ExecSpace exec_;
  std::vector<std::unique_ptr<Gpt2Stage<Real>>> stages_;
};

template <class Real, class Truth>
double difference(const std::vector<Real>& values, const Truth* truth) {
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double d = std::abs(static_cast<double>(values[i]) - static_cast<double>(truth[i]));
    if (!(d <= worst)) worst = std::isnan(d) ? INFINITY : d;
    largest = std::max(largest, std::abs(static_cast<double>(truth[i])));
  }
  return worst / largest;
}

template <class Real>
constexpr double kTolerance = std::is_same_v<Real, float> ? 1e-5 : 2e-6;  // stored with 20 bits
template <class Real>
constexpr double kRounding = std::is_same_v<Real, float> ? 2e-6 : 1e-14;

template <class Real>
std::int32_t likeliest(const std::vector<Real>& logits) {
  return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

Tokens some_tokens(int count) {
  Tokens tokens;
  for (int n = 0; n < count; ++n) tokens.push_back((n * n * 37 + 11 * n + 5) % 101);
  return tokens;
}

}  // namespace

TEMPLATE_TEST_CASE("Greedy texts and their logits are those of transformers",
                   "[models][golden][text]", float, double) {
  use_single_threaded_blas();
  const hdf5::File golden = hdf5::File::open_read_only(kFixtures + "/generation.h5");
  const auto partition = GENERATE(std::vector<int>{4}, std::vector<int>{1, 2, 1});
  Text<TestType> text(partition);
  REQUIRE(golden.names().size() == 5);
  for (const std::string& name : golden.names()) {
    CAPTURE(name);
    const hdf5::Group group = golden.open_group(name);
    const auto expected = read_all<std::int32_t>(group, "tokens");
    const auto logits = read_all<float>(group, "logits");
    const std::size_t vocabulary = group.open_dataset("logits").row_elements();
    REQUIRE(expected.size() == kPositions);
    const int prompt = kPositions - static_cast<int>(logits.size() / vocabulary);
    Tokens all(expected.begin(), expected.begin() + prompt), next = all;
    for (int n = prompt; n < kPositions; ++n) {
      const auto made = text.go_on(n - static_cast<int>(next.size()), next).back();
      CHECK(difference(made, logits.data() + (n - prompt) * vocabulary) < kTolerance<TestType>);
      next = {likeliest(made)};
      all.push_back(next.front());
    }
    CHECK(all == expected);
  }
}

TEMPLATE_TEST_CASE("However a text is cut, its logits are those of the whole", "[models][text]",
                   float, double) {
  use_single_threaded_blas();
  const auto partition = GENERATE(std::vector<int>{4}, std::vector<int>{2, 2});
  const int length = GENERATE(1, 2, 13, kPositions);
  CAPTURE(partition, length);
  const Tokens tokens = some_tokens(length);
  Text<TestType> text(partition), reference(partition, kPositions, false);
  const auto expected = reference.whole(tokens);
  text.go_on(0, some_tokens(kPositions));  // of a text before, which is of no account
  for (const std::vector<int>& cuts :
       {std::vector<int>{}, {1}, {1, 2}, {5, 6, 7, 12}, {12}, {23}}) {
    std::vector<int> ends;
    for (const int cut : cuts)
      if (cut < length) ends.push_back(cut);
    ends.push_back(length);
    int kept = 0;
    for (const int end : ends) {
      CAPTURE(kept, end);
      const auto made = text.go_on(kept, Tokens(tokens.begin() + kept, tokens.begin() + end));
      for (const auto& row : made)
        CHECK(difference(row, expected[kept++].data()) < kRounding<TestType>);
    }
  }
}

TEST_CASE("A stage keeps as many tokens as it was reserved for", "[models][text]") {
  Text<float> text({4}, 9);
  text.go_on(0, some_tokens(8));
  CHECK_NOTHROW(text.go_on(8, {1}));
  CHECK_THROWS_AS(text.go_on(9, {1}), InternalError);
  CHECK_THROWS_AS(text.go_on(0, some_tokens(10)), InternalError);
  Text<float> none({4}, 9, false);
  CHECK_THROWS_AS(none.go_on(0, {1}), InternalError);
}
