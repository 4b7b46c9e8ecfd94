// SPDX-License-Identifier: BSD-3-Clause
// Samples that are shortened to the longest one of a micro-batch.
#include "comm/pipeline/step_samples.hpp"

#include <catch2/catch.hpp>

#include "core/kernels/sample_rows.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

constexpr int kTokens = 5;

/// Sample n has the tokens 10 n, 10 n + 1 ... and the label n.
class Numbers final : public Dataset {
 public:
  std::uint64_t size() const override { return 9; }
  int sequence_length() const override { return kTokens; }
  FieldSizes fields() const override {
    FieldSizes sizes;
    sizes[Field::tokens] = kTokens;
    sizes[Field::label] = 1;
    return sizes;
  }
  int length(std::uint64_t) const override { return kTokens; }
  int targets(std::uint64_t) const override { return 1; }
  std::uint64_t all_targets() const override { return size(); }
  std::uint64_t fingerprint() const override { return 0; }
  void read(std::uint64_t id, const SampleVisit&, const SampleSpans& fields) const override {
    const auto n = static_cast<std::int32_t>(id);
    const auto tokens = fields.integers(Field::tokens);
    for (std::size_t t = 0; t < tokens.size(); ++t)
      tokens[t] = 10 * n + static_cast<std::int32_t>(t);
    if (!fields.integers(Field::label).empty()) fields.integers(Field::label)[0] = n;
  }
};

}  // namespace

TEST_CASE("A micro-batch is shortened to its longest sample", "[comm][step_samples]") {
  const int tokens = GENERATE(1, 3, kTokens);
  const Numbers data;
  StepSamples samples(data.fields(), 3, 2, true, true);
  const std::vector<std::uint64_t> ids = {4, 7};
  samples.read(data, 1, ids, {});
  samples.set(1, ids, std::vector<int>{1, tokens});
  samples.shorten(1, ids.size(), kTokens, tokens);
  samples.copy(ExecSpace());
  MicroBatch batch;
  batch.index = 1;
  batch.samples = 2;
  batch.tokens = tokens;
  samples.fill(batch);
  const std::vector<std::int32_t> made = to_host(batch.fields.integers(Field::tokens));
  for (int t = 0; t < tokens; ++t) {
    CHECK(made[t] == 40 + t);
    CHECK(made[tokens + t] == 70 + t);
  }
  CHECK(to_host(batch.fields.integers(Field::label)) == std::vector<std::int32_t>{4, 7});
}

TEST_CASE("Rows of samples move between numbers of tokens", "[kernels][sample_rows]") {
  const auto [from, to] = GENERATE(std::pair(3, 5), std::pair(5, 3), std::pair(1, 1));
  constexpr int kSamples = 4, kChannels = 7;
  const auto x = random_values<float>(kSamples * from * kChannels, 1);
  const Matrix<float> y("test::rows", kSamples * to, kChannels);
  Kokkos::deep_copy(y, -1.0f);
  const Vector<float> in = to_device(x);
  copy_sample_rows<float>(ExecSpace(), kSamples,
                          MatrixRef<const float>(in.data(), kSamples * from, kChannels), from, y,
                          to);
  const auto made = to_host(VectorRef<float>(y.data(), y.size()));
  for (int b = 0; b < kSamples; ++b)
    for (int t = 0; t < to; ++t)
      for (int c = 0; c < kChannels; ++c)
        CHECK(made[(b * to + t) * kChannels + c] ==
              (t < from ? x[(b * from + t) * kChannels + c] : -1.0f));
}
