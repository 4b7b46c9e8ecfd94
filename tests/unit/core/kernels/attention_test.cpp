// SPDX-License-Identifier: BSD-3-Clause
// Attention against the formula that materialises everything, in double.
#include "core/kernels/attention/attention.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"
#include "support/kernel_labels.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::relative_difference;
using deltapipe::test::slope_error;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

struct Case {
  AttentionShape shape;
  double probability = 0;
  std::vector<std::int32_t> lengths = {};  ///< valid tokens of each sample; empty: all

  /// Returns the number of keys that a query sees.
  int visible(int sample, int query) const {
    if (shape.causal) return query + 1;
    return lengths.empty() ? shape.tokens : lengths[sample];
  }
  int rows() const { return shape.samples * shape.tokens; }
  Dropout dropout(const Vector<std::uint64_t>& ids) const {
    Dropout d;
    d.probability = static_cast<float>(probability);
    d.stream = RandomStream(1, 2, 3);
    d.sample_id_B = ids;
    d.tokens = shape.tokens;
    return d;
  }
};

std::vector<std::uint64_t> sample_ids(int samples) {
  std::vector<std::uint64_t> ids;
  for (int b = 0; b < samples; ++b) ids.push_back(11 + 5 * b);
  return ids;
}

template <class Real>
struct Made {
  std::vector<Real> out, log_sum, dqkv;
};

/// A plan and, if products are to take them, memory for addresses, which begins as rubbish.
struct Plan {
  AttentionGrouping grouping;
  Vector<std::uintptr_t> addresses;

  Plan(const Case& c, const AttentionGrouping& grouping_in, bool by_addresses)
      : grouping(grouping_in) {
    if (by_addresses || needs_attention_addresses(grouping))
      addresses = to_device(std::vector<std::uintptr_t>(attention_addresses(c.shape, grouping), 8));
  }
  /// As this build computes.
  explicit Plan(const Case& c) : Plan(c, attention_grouping(c.shape), false) {}
  /// As it computes in bf16.
  static Plan of_bf16(const Case& c) {
    return kHostExecution ? Plan(c, AttentionGrouping::of_host(c.shape, false), false) : Plan(c);
  }
  operator AttentionPlan() const { return {grouping, addresses}; }  // NOLINT
};

/// Forward and, with dout, backward. Workspaces and results start as NaN.
template <class Real>
Made<Real> attend(const Case& c, const std::vector<Real>& qkv, const std::vector<Real>& dout,
                  const Plan& plan) {
  const ExecSpace exec;
  const int C = c.shape.channels();
  const Real nan = std::numeric_limits<Real>::quiet_NaN();
  const Vector<std::uint64_t> ids = to_device(sample_ids(c.shape.samples));
  const std::vector<Real> unset(attention_workspace(c.shape, plan.grouping), nan);
  const Vector<Real> scores = to_device(unset), scores2 = to_device(unset);
  const Matrix<Real> in = to_device(qkv, 3 * C);
  const Matrix<Real> out = to_device(std::vector<Real>(c.rows() * C, nan), C);
  const Vector<Real> log_sum = to_device(std::vector<Real>(c.rows() * c.shape.heads, nan));
  const HeadProducts<Real, Real> product{RealGemm(ViewAllocator())};
  const Vector<std::int32_t> lengths = to_device(c.lengths);
  attention_forward<Real, Real>(exec, c.shape, plan, in, c.dropout(ids), {scores, scores}, out,
                                log_sum, product, lengths);
  Made<Real> made{to_host(out), to_host(log_sum), {}};
  if (dout.empty()) return made;
  const Matrix<Real> dqkv = to_device(std::vector<Real>(c.rows() * 3 * C, nan), 3 * C);
  const Matrix<Real> dout_NC = to_device(dout, C);
  attention_backward<Real, Real>(exec, c.shape, plan, in, c.dropout(ids), out, log_sum, dout_NC,
                                 dout_NC, {scores, scores}, {scores2, scores2}, dqkv, product,
                                 lengths);
  made.dqkv = to_host(dqkv);
  return made;
}

template <class Real>
Made<Real> attend(const Case& c, const std::vector<Real>& qkv, const std::vector<Real>& dout = {}) {
  return attend(c, qkv, dout, Plan(c));
}

std::vector<float> single(const std::vector<double>& values) {
  return std::vector<float>(values.begin(), values.end());
}

std::vector<Bf16> rounded(const std::vector<double>& values) {
  std::vector<Bf16> made;
  for (const double value : values) made.push_back(bfloat_of(static_cast<float>(value)));
  return made;
}

std::vector<double> widened(const std::vector<Bf16>& values) {
  std::vector<double> made;
  for (const Bf16 value : values) made.push_back(float_of_bfloat(value));
  return made;
}

/// attend() with products in bf16 of what is rounded already.
Made<float> attend_in_bf16(const Case& c, const std::vector<Bf16>& qkv,
                           const std::vector<Bf16>& dout, const Bf16Gemm& gemm, const Plan& plan) {
  const ExecSpace exec;
  const int C = c.shape.channels();
  const Vector<std::uint64_t> ids = to_device(sample_ids(c.shape.samples));
  const std::size_t elements = attention_workspace(c.shape, plan.grouping);
  const auto scores = [&] { return to_device(std::vector<float>(elements, NAN)); };
  const auto factors = [&] { return to_device(std::vector<Bf16>(elements, bfloat_of(NAN))); };
  const Vector<float> scores1 = scores(), scores2 = scores();
  const Vector<Bf16> factors1 = factors(), factors2 = factors();
  const Matrix<Bf16> in = to_device(qkv, 3 * C), dout_factors = to_device(dout, C);
  const Matrix<float> dout_values = to_device(single(widened(dout)), C);
  const Matrix<float> out = to_device(std::vector<float>(c.rows() * C, NAN), C);
  const Matrix<float> dqkv = to_device(std::vector<float>(c.rows() * 3 * C, NAN), 3 * C);
  const Vector<float> log_sum = to_device(std::vector<float>(c.rows() * c.shape.heads, NAN));
  const HeadProducts<float, Bf16> product(gemm);
  const Vector<std::int32_t> lengths = to_device(c.lengths);
  attention_forward<float, Bf16>(exec, c.shape, plan, in, c.dropout(ids), {scores1, factors1}, out,
                                 log_sum, product, lengths);
  attention_backward<float, Bf16>(exec, c.shape, plan, in, c.dropout(ids), out, log_sum,
                                  dout_values, dout_factors, {scores1, factors1},
                                  {scores2, factors2}, dqkv, product, lengths);
  return {to_host(out), to_host(log_sum), to_host(dqkv)};
}

/// Dropout's factor of one probability, asked for one at a time.
double factor_of(const Case& c, int sample, int head, int query, int key) {
  if (c.probability == 0) return 1;
  const std::uint32_t blocks_a_row = (c.shape.tokens + 3) / 4;
  std::uint32_t bits[4];
  RandomStream(1, 2, 3).draw(sample_ids(c.shape.samples)[sample],
                             (head * c.shape.tokens + query) * blocks_a_row + key / 4, bits);
  return (bits[key % 4] >> 8) / 16777216.0 < static_cast<float>(c.probability)
             ? 0
             : 1 / (1 - c.probability);
}

/// out and, for dL/dout = dout, dqkv, by the textbook.
Made<double> formula(const Case& c, const std::vector<double>& qkv,
                     const std::vector<double>& dout) {
  const int T = c.shape.tokens, H = c.shape.heads, D = c.shape.head_width, C = c.shape.channels();
  const double scale = 1 / std::sqrt(static_cast<double>(D));
  Made<double> made{std::vector<double>(c.rows() * C), std::vector<double>(c.rows() * H),
                    std::vector<double>(c.rows() * 3 * C)};
  for (int b = 0; b < c.shape.samples; ++b)
    for (int h = 0; h < H; ++h)
      for (int i = 0; i < T; ++i) {
        const auto at = [&](int t, int part) { return (b * T + t) * 3 * C + part * C + h * D; };
        const int o = (b * T + i) * C + h * D;
        const int visible = c.visible(b, i);
        std::vector<double> p(visible), dp(visible);
        double sum = 0, mean = 0;
        for (int j = 0; j < visible; ++j) {
          double score = 0;
          for (int d = 0; d < D; ++d) score += qkv[at(i, 0) + d] * qkv[at(j, 1) + d];
          sum += p[j] = std::exp(score * scale);
        }
        made.log_sum[b * H * T + h * T + i] = std::log(sum);
        for (int j = 0; j < visible; ++j) {
          p[j] /= sum;
          const double factor = factor_of(c, b, h, i, j);
          for (int d = 0; d < D; ++d) {
            made.out[o + d] += factor * p[j] * qkv[at(j, 2) + d];
            dp[j] += factor * dout[o + d] * qkv[at(j, 2) + d];
            made.dqkv[at(j, 2) + d] += factor * p[j] * dout[o + d];
          }
          mean += p[j] * dp[j];
        }
        for (int j = 0; j < visible; ++j) {
          const double ds = p[j] * (dp[j] - mean) * scale;
          for (int d = 0; d < D; ++d) {
            made.dqkv[at(i, 0) + d] += ds * qkv[at(j, 1) + d];
            made.dqkv[at(j, 1) + d] += ds * qkv[at(i, 0) + d];
          }
        }
      }
  return made;
}

/// Checks outputs and gradients in both precisions; returns those in double.
Made<double> check_formula(const Case& c, const std::vector<double>& qkv,
                           const std::vector<double>& dout, const Made<double>& truth,
                           const Plan& plan) {
  const Made<double> made = attend(c, qkv, dout, plan);
  CHECK(relative_difference(made.out, truth.out) < 1e-7);  // 1/(1-p) has the digits of a float
  CHECK(relative_difference(made.dqkv, truth.dqkv, 1e-3) < 1e-7);
  const Made<float> in_single = attend(c, single(qkv), single(dout), plan);
  CHECK(relative_difference(in_single.out, truth.out) < 1e-5);
  CHECK(relative_difference(in_single.dqkv, truth.dqkv, 1e-2) < 1e-5);
  return made;
}

}  // namespace

TEST_CASE("Attention, forwards and backwards, is the formula", "[kernels][attention]") {
  const bool in_tiles = GENERATE(false, true);
  if (in_tiles && !kTeamExecution) return;
  const AttentionShape shape = GENERATE(AttentionShape{1, 1, 1, 1}, AttentionShape{2, 1, 3, 5},
                                        AttentionShape{2, 2, 2, 3}, AttentionShape{3, 17, 3, 12},
                                        AttentionShape{1, 64, 2, 3}, AttentionShape{2, 65, 1, 4},
                                        AttentionShape{1, 127, 1, 4}, AttentionShape{2, 129, 2, 5},
                                        AttentionShape{1, 300, 2, 8}, AttentionShape{1, 513, 1, 3});
  const Case c{shape, GENERATE(0.0, 0.35)};
  INFO("B " << shape.samples << " T " << shape.tokens << " H " << shape.heads << " D "
            << shape.head_width << " dropout " << c.probability);
  const auto qkv = random_values(c.rows() * 3 * shape.channels(), 1, 2);
  const auto dout = random_values(c.rows() * shape.channels(), 2);
  const Made<double> truth = formula(c, qkv, dout);
  const Plan plan =
      kHostExecution ? Plan(c, AttentionGrouping::of_host(shape, in_tiles), false) : Plan(c);
  const Made<double> made = check_formula(c, qkv, dout, truth, plan);
  CHECK(relative_difference(made.log_sum, truth.log_sum) < 1e-12);
}

TEST_CASE("Attention with products in bf16 is the formula but for rounding",
          "[kernels][attention][bf16]") {
  const AttentionShape shape =
      GENERATE(AttentionShape{1, 1, 1, 1}, AttentionShape{2, 2, 2, 3}, AttentionShape{3, 17, 3, 12},
               AttentionShape{2, 65, 1, 64}, AttentionShape{2, 129, 2, 5});
  const Case c{shape, GENERATE(0.0, 0.35)};
  INFO("B " << shape.samples << " T " << shape.tokens << " H " << shape.heads << " D "
            << shape.head_width << " dropout " << c.probability);
  const auto qkv = rounded(random_values(c.rows() * 3 * shape.channels(), 1, 2));
  const auto dout = rounded(random_values(c.rows() * shape.channels(), 2));
  const Made<double> truth = formula(c, widened(qkv), widened(dout));
  std::vector<Bf16Gemm> gemms;
  if (HostTeam::instance().size() == 1) gemms.push_back(Bf16Gemm({}, true));
  if (has_fast_bf16_gemm()) gemms.emplace_back(ViewAllocator());
  for (const Bf16Gemm& gemm : gemms) {
    const Made<float> made = attend_in_bf16(c, qkv, dout, gemm, Plan::of_bf16(c));
    const double half_a_step = std::ldexp(1.0, -8);  // of a number just above a power of two
    CHECK(relative_difference(made.log_sum, truth.log_sum) < 1e-5);  // of sums, which stay fp32
    CHECK(relative_difference(made.out, truth.out) < half_a_step);
    CHECK(relative_difference(made.dqkv, truth.dqkv, 1e-2) < 2 * half_a_step);
  }
}

namespace {

/// Ways to group a case's samples and heads: all of them at once, as many samples as fit with some
/// left over, some heads with some left over; blocks of a device's and of few rows.
std::vector<AttentionGrouping> groupings_of(const AttentionShape& shape) {
  const auto of_two = [&](int heads) {
    AttentionGrouping grouping = AttentionGrouping::of_device(
        shape, std::size_t{2} * heads * std::min(shape.tokens, 128) * shape.tokens);
    CHECK(grouping.samples == (heads < shape.heads ? 1 : std::min(2, shape.samples)));
    CHECK(grouping.heads == std::min(shape.heads, heads < shape.heads ? 2 : heads));
    return grouping;
  };
  std::vector<AttentionGrouping> all = {AttentionGrouping::of_device(shape), of_two(shape.heads),
                                        of_two(1)};
  CHECK(all[0].samples == shape.samples);
  CHECK(all[0].heads == shape.heads);
  all.push_back({7, shape.heads, shape.samples});
  return all;
}

const std::vector<AttentionShape> kGroupedShapes = {{1, 1, 1, 1},  {3, 1, 3, 5},   {5, 17, 3, 12},
                                                    {3, 65, 2, 4}, {2, 129, 3, 5}, {3, 300, 2, 8}};

}  // namespace

TEST_CASE("Attention of all heads and samples at once is the formula", "[kernels][attention]") {
  const Case c{GENERATE(from_range(kGroupedShapes)), GENERATE(0.0, 0.35)};
  const auto qkv = random_values(c.rows() * 3 * c.shape.channels(), 1, 2);
  const auto dout = random_values(c.rows() * c.shape.channels(), 2);
  const Made<double> truth = formula(c, qkv, dout);
  for (const AttentionGrouping& grouping : groupings_of(c.shape))
    for (const bool by_addresses : {false, true}) {
      INFO("B " << c.shape.samples << " T " << c.shape.tokens << " H " << c.shape.heads
                << " dropout " << c.probability << ", " << grouping.samples << " samples, "
                << grouping.heads << " heads, " << grouping.rows << " rows, addresses "
                << by_addresses);
      const Plan plan(c, grouping, by_addresses);
      const Made<double> made = attend(c, qkv, dout, plan);
      CHECK(relative_difference(made.out, truth.out) < 1e-7);
      CHECK(relative_difference(made.log_sum, truth.log_sum) < 1e-12);
      CHECK(relative_difference(made.dqkv, truth.dqkv, 1e-3) < 1e-7);
      const Made<float> in_single = attend(c, single(qkv), single(dout), plan);
      CHECK(relative_difference(in_single.out, truth.out) < 1e-5);
      CHECK(relative_difference(in_single.dqkv, truth.dqkv, 1e-2) < 1e-5);
      // Sums are the same ones: of one thread and in the same blocks they are the same bits.
      if (!kHostExecution || HostTeam::instance().size() > 1) continue;
      const Plan by_head(c, {grouping.rows, 1, 1}, false);
      const Made<float> one_by_one = attend(c, single(qkv), single(dout), by_head);
      CHECK(in_single.out == one_by_one.out);
      CHECK(in_single.log_sum == one_by_one.log_sum);
      CHECK(in_single.dqkv == one_by_one.dqkv);
    }
}

TEST_CASE("Attention in bf16 of all heads and samples at once is the formula but for rounding",
          "[kernels][attention][bf16]") {
  const Case c{GENERATE(from_range(kGroupedShapes)), GENERATE(0.0, 0.35)};
  const auto qkv = rounded(random_values(c.rows() * 3 * c.shape.channels(), 1, 2));
  const auto dout = rounded(random_values(c.rows() * c.shape.channels(), 2));
  const Made<double> truth = formula(c, widened(qkv), widened(dout));
  std::vector<Bf16Gemm> gemms;
  if (HostTeam::instance().size() == 1) gemms.push_back(Bf16Gemm({}, true));
  if (has_fast_bf16_gemm()) gemms.emplace_back(ViewAllocator());
  for (const Bf16Gemm& gemm : gemms)
    for (const AttentionGrouping& grouping : groupings_of(c.shape))
      for (const bool by_addresses : {false, true}) {
        INFO("B " << c.shape.samples << " T " << c.shape.tokens << " H " << c.shape.heads
                  << " dropout " << c.probability << ", " << grouping.samples << " samples, "
                  << grouping.heads << " heads, " << grouping.rows << " rows");
        const Made<float> made =
            attend_in_bf16(c, qkv, dout, gemm, Plan(c, grouping, by_addresses));
        const double half_a_step = std::ldexp(1.0, -8);
        CHECK(relative_difference(made.log_sum, truth.log_sum) < 1e-5);
        CHECK(relative_difference(made.out, truth.out) < half_a_step);
        CHECK(relative_difference(made.dqkv, truth.dqkv, 1e-2) < 2 * half_a_step);
      }
}

TEST_CASE("A device's probabilities take no more than their bound", "[kernels][attention]") {
  for (const int samples : {1, 2, 3, 64, 1000})
    for (const int tokens : {1, 100, 128, 129, 1024, 8192})
      for (const int heads : {1, 3, 12, 25}) {
        const AttentionShape shape{samples, tokens, heads, 64};
        const AttentionGrouping grouping = AttentionGrouping::of_device(shape);
        INFO("B " << samples << " T " << tokens << " H " << heads);
        CHECK(AttentionPasses{shape, grouping}.elements() <= AttentionGrouping::kMostElements);
        CHECK((grouping.samples == 1 || grouping.heads == heads));
        CHECK((grouping.samples >= 1 && grouping.heads >= 1));
        // Memory reserved for a micro-batch is enough for smaller ones.
        for (const AttentionShape& less : {AttentionShape{(samples + 1) / 2, tokens, heads, 64},
                                           {samples, (tokens + 1) / 2, heads, 64}}) {
          CHECK(attention_workspace(less, grouping) <= attention_workspace(shape, grouping));
          CHECK(attention_addresses(less, grouping) <= attention_addresses(shape, grouping));
          for (const bool in_tiles : {false, true})
            CHECK(attention_workspace(less, AttentionGrouping::of_host(less, in_tiles)) <=
                  attention_workspace(shape, AttentionGrouping::of_host(shape, in_tiles)));
        }
      }
  // A head that has more by itself is computed alone.
  const AttentionGrouping alone = AttentionGrouping::of_device({4, 1 << 20, 12, 64});
  CHECK(alone.heads == 1);
  CHECK(alone.samples == 1);
}

TEST_CASE("What all keys and values have in common leaves gradients of bf16 as exact",
          "[kernels][attention][bf16]") {
  const Case c{{1, 65, 1, 32}, GENERATE(0.0, 0.35)};
  const double common = GENERATE(0.0, 3.0);
  auto values = random_values(c.rows() * 3 * c.shape.channels(), 1, 0.5);
  for (std::size_t i = 0; i < values.size(); ++i)
    if (i % 96 >= 32) values[i] += common * (i % 2 == 0 ? 1 : -1);
  const auto qkv = rounded(values);
  const auto dout = rounded(random_values(c.rows() * c.shape.channels(), 2));
  const Made<double> truth = formula(c, widened(qkv), widened(dout));
  std::vector<Bf16Gemm> gemms;
  if (HostTeam::instance().size() == 1) gemms.push_back(Bf16Gemm({}, true));
  if (has_fast_bf16_gemm()) gemms.emplace_back(ViewAllocator());
  for (const Bf16Gemm& gemm : gemms) {
    const Made<float> made = attend_in_bf16(c, qkv, dout, gemm, Plan::of_bf16(c));
    // Gradients of queries, which see the common part of keys times the sum of a row's gradients.
    double error = 0, square = 0;
    for (std::size_t i = 0; i < truth.dqkv.size(); ++i) {
      if (i % 96 >= 32) continue;
      error += std::pow(made.dqkv[i] - truth.dqkv[i], 2);
      square += std::pow(truth.dqkv[i], 2);
    }
    CHECK(std::sqrt(error / square) < 0.03);
  }
}

namespace {

/// Labels of the kernels that the calling thread launches.
class Launches : private test::LaunchObserver {
 public:
  Launches() { test::observe_launches(this); }
  ~Launches() override { test::observe_launches(nullptr); }
  const std::vector<std::string>& labels() const { return labels_; }

 private:
  void kernel(const char* label, std::uint32_t) override { labels_.emplace_back(label); }
  void fence(const char*, std::uint32_t) override {}

  std::vector<std::string> labels_;
};

}  // namespace

TEST_CASE("Several threads share attention by samples and heads, with the same bits",
          "[kernels][attention][threads]") {
  if (!kTeamExecution) return;
  HostTeam& team = HostTeam::instance();
  const int before = team.size();
  const Case c{{3, GENERATE(70, 205), 3, 16}, GENERATE(0.0, 0.35)};  // up to four blocks
  const bool in_tiles = GENERATE(false, true);
  const AttentionGrouping grouping = AttentionGrouping::of_host(c.shape, in_tiles);
  const auto qkv = single(random_values(c.rows() * 3 * c.shape.channels(), 1, 2));
  const auto dout = single(random_values(c.rows() * c.shape.channels(), 2));
  const Plan plan(c, grouping, false);
  team.resize(1);
  const Made<float> one = attend(c, qkv, dout, plan);
  for (const int threads : {2, 4, 16}) {
    team.resize(threads);
    // A block of one head and, in tiles, its packed keys behind whole lines.
    const int T = c.shape.tokens;
    const std::size_t of_head =
        in_tiles ? (std::min(T, 96) * T + 15) / 16 * 16 + causal::packed_elements(T, 16) : 64 * T;
    CHECK(attention_workspace(c.shape, grouping) == std::min(threads, 9) * of_head);
    const Launches launches;
    const Made<float> made = attend(c, qkv, dout, plan);
    CHECK(made.out == one.out);
    CHECK(made.log_sum == one.log_sum);
    CHECK(made.dqkv == one.dqkv);
    // One kernel each: what is in it is the threads' own.
    int kernels = 0;
    for (const std::string& label : launches.labels())
      kernels += label.find("::Attention::") != std::string::npos ? 1 : 0;
    CHECK(kernels == 2);
  }
  team.resize(before);
}

TEST_CASE("Attention's gradient is its slope", "[kernels][attention]") {
  const Case c{{2, 5, 2, 3}, GENERATE(0.0, 0.4)};
  const auto qkv = random_values(c.rows() * 18, 1, 2), dout = random_values(c.rows() * 6, 2);
  const auto loss = [&](const std::vector<double>& x) { return test::dot(dout, attend(c, x).out); };
  CHECK(slope_error(loss, qkv, attend(c, qkv, dout).dqkv) < 1e-8);
}

namespace {

/// The whole sample, one token, a part of it, and no token at all.
std::vector<std::int32_t> some_lengths(const AttentionShape& shape) {
  std::vector<std::int32_t> lengths;
  for (int b = 0; b < shape.samples; ++b) {
    const int choices[] = {shape.tokens, 1, (shape.tokens + 1) / 2, 0};
    lengths.push_back(choices[b % 4]);
  }
  return lengths;
}

const std::vector<AttentionShape> kAllKeysShapes = {{1, 1, 1, 1, false},   {4, 2, 2, 3, false},
                                                    {5, 17, 3, 12, false}, {4, 65, 2, 4, false},
                                                    {2, 129, 3, 5, false}, {1, 300, 2, 8, false}};

}  // namespace

TEST_CASE("Attention over all valid tokens is the formula", "[kernels][attention]") {
  const AttentionShape shape = GENERATE(from_range(kAllKeysShapes));
  const Case c{shape, GENERATE(0.0, 0.35),
               GENERATE(false, true) ? some_lengths(shape) : std::vector<std::int32_t>()};
  const auto qkv = random_values(c.rows() * 3 * shape.channels(), 1, 2);
  const auto dout = random_values(c.rows() * shape.channels(), 2);
  const Made<double> truth = formula(c, qkv, dout);
  std::vector<AttentionGrouping> groupings = {attention_grouping(shape), {7, 1, 1}};
  groupings.push_back(AttentionGrouping::of_host(shape, true));
  CHECK(!groupings.back().in_tiles);  // tiles are causal
  if (shape.samples > 1) groupings.push_back({7, shape.heads, 2});
  for (const AttentionGrouping& grouping : groupings)
    for (const bool by_addresses : {false, true}) {
      INFO("B " << shape.samples << " T " << shape.tokens << " H " << shape.heads << " dropout "
                << c.probability << ", " << c.lengths.size() << " lengths, " << grouping.rows
                << " rows");
      check_formula(c, qkv, dout, truth, Plan(c, grouping, by_addresses));
    }
}

TEST_CASE("Attention over all valid tokens in bf16 is the formula but for rounding",
          "[kernels][attention][bf16]") {
  const AttentionShape shape = GENERATE(from_range(kAllKeysShapes));
  const Case c{shape, GENERATE(0.0, 0.35), some_lengths(shape)};
  const auto qkv = rounded(random_values(c.rows() * 3 * shape.channels(), 1, 2));
  const auto dout = rounded(random_values(c.rows() * shape.channels(), 2));
  const Made<double> truth = formula(c, widened(qkv), widened(dout));
  std::vector<Bf16Gemm> gemms;
  if (HostTeam::instance().size() == 1) gemms.push_back(Bf16Gemm({}, true));
  if (has_fast_bf16_gemm()) gemms.emplace_back(ViewAllocator());
  for (const Bf16Gemm& gemm : gemms) {
    const Made<float> made = attend_in_bf16(c, qkv, dout, gemm, Plan::of_bf16(c));
    const double half_a_step = std::ldexp(1.0, -8);
    CHECK(relative_difference(made.out, truth.out) < half_a_step);
    CHECK(relative_difference(made.dqkv, truth.dqkv, 1e-2) < 2 * half_a_step);
  }
}

TEST_CASE("The gradient of attention over all valid tokens is its slope", "[kernels][attention]") {
  const Case c{{3, 5, 2, 3, false}, GENERATE(0.0, 0.4), {5, 1, 3}};
  const auto qkv = random_values(c.rows() * 18, 1, 2), dout = random_values(c.rows() * 6, 2);
  const auto loss = [&](const std::vector<double>& x) { return test::dot(dout, attend(c, x).out); };
  CHECK(slope_error(loss, qkv, attend(c, qkv, dout).dqkv) < 1e-8);
}

TEST_CASE("Padding changes no valid token", "[kernels][attention]") {
  const Case c{{2, 20, 2, 4, false}, 0, {13, 20}};
  auto qkv = random_values<float>(2 * 20 * 24, 1);
  auto dout = random_values<float>(2 * 20 * 8, 2);
  for (int i = 13 * 8; i < 20 * 8; ++i) dout[i] = 0;  // no loss depends on padding
  const Made<float> before = attend(c, qkv, dout);
  for (int i = 13 * 24; i < 20 * 24; ++i) qkv[i] = 50 - qkv[i];
  const Made<float> after = attend(c, qkv, dout);
  CHECK(std::equal(before.out.begin(), before.out.begin() + 13 * 8, after.out.begin()));
  CHECK(std::equal(before.out.begin() + 20 * 8, before.out.end(), after.out.begin() + 20 * 8));
  CHECK(before.dqkv == after.dqkv);
  CHECK(std::all_of(after.dqkv.begin() + 13 * 24, after.dqkv.begin() + 20 * 24,
                    [](float value) { return value == 0; }));
}

TEST_CASE("A token sees no later token", "[kernels][attention]") {
  const Case c{{1, 140, 2, 4}, 0};
  auto qkv = random_values<float>(140 * 24, 1);
  const auto before = attend(c, qkv).out;
  for (std::size_t i = 133 * 24; i < qkv.size(); ++i) qkv[i] = 50 - qkv[i];
  const auto after = attend(c, qkv).out;
  CHECK(std::equal(before.begin(), before.begin() + 133 * 8, after.begin()));
  CHECK(before != after);
}

TEST_CASE("Attention with huge scores stays finite; NaN shows where it is seen",
          "[kernels][attention]") {
  const Case c{{1, 20, 1, 4}, 0};
  const auto dout = random_values<float>(80, 3);
  const auto huge = attend(c, random_values<float>(240, 1, 1e4), dout);
  for (const float value : huge.out) CHECK((std::isfinite(value) && std::abs(value) <= 1e4f));
  for (const float value : huge.dqkv) CHECK(std::isfinite(value));
  for (const float value : attend(c, std::vector<float>(240, 0.0f), dout).out) CHECK(value == 0);

  auto later = random_values<float>(240, 1);
  std::fill_n(later.begin() + 19 * 12, 4, 0.0f);       // the query of the last token
  std::fill_n(later.begin() + 19 * 12 + 4, 4, 1e20f);  // its key, which no other token sees
  for (const float value : attend(c, later, dout).dqkv) CHECK(std::isfinite(value));

  auto bad = random_values<float>(240, 1);
  bad[10 * 12] = NAN;  // the query of token 10
  const auto out = attend(c, bad, dout).out;
  for (int i = 0; i < 80; ++i) CHECK(std::isnan(out[i]) == (i / 4 == 10));
}
