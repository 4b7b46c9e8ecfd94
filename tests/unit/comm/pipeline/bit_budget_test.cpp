// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/bit_budget.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <random>

#include "comm/boundary/rank_links.hpp"
#include "core/base/error.hpp"

using namespace deltapipe;

namespace {

using List = std::vector<double>;

double mean(const List& list) {
  return std::accumulate(list.begin(), list.end(), 0.0) / static_cast<double>(list.size());
}

void check_near(const List& shares, const List& expected) {
  REQUIRE(shares.size() == expected.size());
  for (std::size_t i = 0; i < shares.size(); ++i) CHECK(shares[i] == Approx(expected[i]));
}

}  // namespace

TEST_CASE("links share a budget so that they take equally long", "[budget]") {
  check_near(shares_of_time(3, List{1e8, 1e8, 1e8}), {3, 3, 3});
  check_near(shares_of_time(3, List{1e8, 2e8}), {2, 4});
  check_near(shares_of_time(3, List{2e8, 5e7, 2e8}), {3.75, 1.5, 3.75});
  check_near(shares_of_time(3, List{1e8, 9e9, 1e8}), {1.5, 6, 1.5});
  check_near(shares_of_time(3, List{1e8, 1e10}), {1.5, 4.5});
  // Links of any speed take what is left, up to the most.
  check_near(shares_of_time(3, List{1e8, 0}), {1.5, 4.5});
  check_near(shares_of_time(4, List{1e8, 0, 3e8}), {1.5, 6, 4.5});
  check_near(shares_of_time(3, List{0, 0}), {3, 3});
  // Means out of the range are for all.
  check_near(shares_of_time(1, List{1e8, 2e8}), {1, 1});
  check_near(shares_of_time(8, List{1e8, 2e8}), {8, 8});
  CHECK(shares_of_time(3, List{}).empty());
}

TEST_CASE("no link takes longer than others unless it has the least", "[budget]") {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(6, 11), bits(1.6, 5.9);
  for (int round = 0; round < 500; ++round) {
    List speeds(1 + random() % 7);
    for (double& speed : speeds)
      speed = random() % 6 == 0 ? 0 : std::pow(10.0, round % 2 == 0 ? exponent(random) : 8.0);
    const double wanted = bits(random);
    const List shares = shares_of_time(wanted, speeds);
    REQUIRE(shares.size() == speeds.size());
    CHECK(mean(shares) == Approx(wanted).epsilon(1e-9));
    double longest = 0;  // of those that could have less
    for (std::size_t i = 0; i < shares.size(); ++i) {
      CHECK(shares[i] >= kLeastSharedBits * (1 - 1e-9));
      CHECK(shares[i] <= kMostSharedBits * (1 + 1e-9));
      if (speeds[i] > 0 && shares[i] > kLeastSharedBits * (1 + 1e-9))
        longest = std::max(longest, shares[i] / speeds[i]);
    }
    // One that is done earlier could not have more.
    for (std::size_t i = 0; i < shares.size(); ++i)
      if (speeds[i] > 0 && shares[i] / speeds[i] < longest * (1 - 1e-9))
        CHECK(shares[i] == Approx(kMostSharedBits));
    if (longest > 0)
      for (std::size_t i = 0; i < shares.size(); ++i)
        if (speeds[i] == 0) CHECK(shares[i] == Approx(kMostSharedBits));
  }
}

TEST_CASE("each boundary and direction has its target", "[budget]") {
  PipelineOptions options;
  options.pipeline.stages = 4;
  options.micro_batches = 5;
  options.forward.kind = CodecKind::aqsgd;
  options.forward.rms_step = 1;
  options.forward.entropy_coding = true;
  options.backward = options.forward;
  options.backward.kind = CodecKind::directq;
  CHECK_FALSE(step_target(options, 10, 0, false).is_set());

  options.forward_rate.target_bits = {2.5};
  options.backward_rate.target_bits = {3, 0, 4};
  for (int i = 0; i < 3; ++i) {
    CHECK(step_target(options, 10, i, false) ==
          StepTarget{.bits = 2.5, .messages = 50, .messages_per_step = 5});
    CHECK(step_target(options, 10, i, true).bits == options.backward_rate.target_bits[i]);
  }
  CHECK_FALSE(step_target(options, 10, 1, true).is_set());
  CHECK(step_target(options, 10, 0, false).largest_step == 2.5);
  options.forward.rounding = Rounding::stochastic;
  CHECK(step_target(options, 10, 0, false).largest_step == 1.9);
  options.forward.rounding = Rounding::nearest;

  options.network.forward = {{2e8, 0}, {1e8, 0}, {2e8, 0}};
  options.network.backward = {{1e6, 0}};
  options.forward_rate.budget = BudgetSharing::time;
  check_near(target_bits(options, false), {3, 1.5, 3});
  options.backward_rate = {{3}, BudgetSharing::time, 0};
  check_near(target_bits(options, true), {3, 3, 3});

  // Wires of ranks: the slower one of a boundary's two.
  options.network = {};
  options.network.wire = WireSharing::rank;
  options.network.ranks = {{4e8, 0}, {2e8, 0}, {0, 0}, {1e8, 0}};
  CHECK(link_speeds(options, false) == List{2e8, 2e8, 1e8});
  CHECK(link_speeds(options, true) == List{2e8, 2e8, 1e8});

  options.forward_rate = {{}, BudgetSharing::equal, 0.05};
  CHECK(step_target(options, 0, 2, false) == StepTarget{0, 0.05, 0, 2.5, 5});
  // A codec that was turned off, or has other steps.
  options.forward.kind = CodecKind::none;
  CHECK_FALSE(step_target(options, 0, 2, false).is_set());
}

TEST_CASE("boundaries between the same ranks share a link", "[budget]") {
  PipelineOptions options;
  options.pipeline.stages = 6;
  options.pipeline.stages_per_rank = 2;
  options.network.forward = {{8e6, 0}};
  options.network.backward = {{2e6, 0}};
  // Ranks 0 to 1, 1 to 2, 2 to 0, 0 to 1, 1 to 2.
  CHECK(link_speeds(options, false) == List{4e6, 4e6, 8e6, 4e6, 4e6});
  CHECK(link_speeds(options, true) == List{1e6, 1e6, 2e6, 1e6, 1e6});
  options.network.backward = {};
  CHECK(link_speeds(options, false) == List{4e6, 4e6, 8e6, 4e6, 4e6});
  CHECK(link_speeds(options, true) == List{0, 0, 0, 0, 0});
  options.network.forward = {{8e6, 0}, {4e6, 0}, {1e6, 0}};
  CHECK(link_speeds(options, false) == List{4e6, 2e6, 1e6, 4e6, 2e6});

  // With two ranks, activations of every other boundary go back.
  options.pipeline.stages = 4;
  options.network.forward = {{8e6, 0}};
  options.network.backward = {{2e6, 0}};
  CHECK(link_speeds(options, false) == List{4e6, 2e6, 4e6});
  CHECK(link_speeds(options, true) == List{1e6, 8e6, 1e6});
}

TEST_CASE("links between ranks are those of the deck", "[budget]") {
  NetworkSettings network;
  network.forward = {{8e6, 0}};
  network.backward = {{2e6, 1}};
  const LinkSettings forward{8e6, 0}, backward{2e6, 1};
  for (const bool is_ring : {false, true}) {
    CHECK(link_between(network, 0, 1, {3, is_ring}) == forward);
    CHECK(link_between(network, 2, 1, {3, is_ring}) == backward);
    CHECK(link_between(network, 2, 0, {3, is_ring}) == (is_ring ? forward : backward));
    CHECK(link_between(network, 0, 2, {3, is_ring}) == (is_ring ? backward : forward));
    CHECK(link_between(network, 1, 0, {2, is_ring}) == backward);
  }
  CHECK_THROWS_AS(link_between(network, 0, 2, {4, true}), InternalError);
  RankLinks links(network, 2, {3, true});
  CHECK(links.to(0) == links.to(0));
  CHECK(links.to(0) != links.to(1));
  CHECK_FALSE(links.wire());
}
