// SPDX-License-Identifier: BSD-3-Clause
// Which samples a step visits: each once an epoch, at the same replica in all of them.
#include "comm/pipeline/step_plan.hpp"

#include <catch2/catch.hpp>
#include <numeric>
#include <set>

#include "core/data/token_store.hpp"

namespace deltapipe {
namespace {

using Ids = std::vector<std::uint64_t>;

/// Samples of 1, 2, 3, 1, 2, 3 ... tokens.
TokenDataset dataset(std::uint64_t size) {
  auto store = std::make_shared<TokenStore>(100);
  store->append(std::vector<std::int32_t>(4, 1));
  std::vector<TokenWindow> windows;
  for (std::uint64_t id = 0; id < size; ++id)
    windows.push_back({0, static_cast<std::int32_t>(1 + id % 3)});
  return TokenDataset(store, windows, 3, 0);
}

Ids all_of(const StepPlan& plan) {
  Ids ids;
  for (const Ids& micro_batch : plan.micro_batches)
    ids.insert(ids.end(), micro_batch.begin(), micro_batch.end());
  return ids;
}

TEST_CASE("A run has the deck's steps or its epochs'", "[step_plan]") {
  CHECK(total_steps(0, 2.5, 4) == 10);
  CHECK(total_steps(0, 2.5, 3) == 8);
  CHECK(total_steps(0, 0.001, 3) == 1);
  CHECK(total_steps(7, 0.001, 3) == 7);
}

TEST_CASE("An epoch visits every sample once, whatever the layout", "[step_plan]") {
  for (const std::uint64_t size : {1u, 2u, 5u, 12u, 13u, 100u})
    for (const int replicas : {1, 2, 3, 7})
      for (const auto& [micro_batch, micro_batches] : {std::pair{1, 1}, {2, 3}, {4, 1}}) {
        CAPTURE(size, replicas, micro_batch, micro_batches);
        const TokenDataset data = dataset(size);
        const StepPlanner planner(data, 42, true, {micro_batch, micro_batches, replicas});
        const std::uint64_t steps = planner.steps_per_epoch();
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
          Ids seen;
          for (std::uint64_t s = epoch * steps; s < (epoch + 1) * steps; ++s) {
            std::uint64_t samples = 0, tokens = 0;
            for (int r = 0; r < replicas; ++r) {
              const StepPlan plan = planner.plan(s, r);
              CHECK(plan.step == s);
              CHECK(plan.epoch == Approx(static_cast<double>(s) / static_cast<double>(steps)));
              CHECK(plan.micro_batches.size() <= static_cast<std::size_t>(micro_batches));
              for (const Ids& ids : plan.micro_batches) {
                CHECK_FALSE(ids.empty());
                CHECK(ids.size() <= static_cast<std::size_t>(micro_batch));
              }
              const Ids ids = all_of(plan);
              CHECK(ids == planner.samples(s, r));
              for (const std::uint64_t id : ids) {
                CHECK(id % static_cast<std::uint64_t>(replicas) == static_cast<std::uint64_t>(r));
                tokens += 1 + id % 3;
              }
              samples += ids.size();
              seen.insert(seen.end(), ids.begin(), ids.end());
            }
            // Every replica divides by the tokens of all.
            for (int r = 0; r < replicas; ++r) {
              CHECK(planner.plan(s, r).samples == samples);
              CHECK(planner.plan(s, r).targets == tokens);
            }
            CHECK(samples > 0);
          }
          std::sort(seen.begin(), seen.end());
          Ids expected(size);
          std::iota(expected.begin(), expected.end(), 0);
          CHECK(seen == expected);
        }
      }
}

TEST_CASE("Without shuffling a step's samples do not depend on the replicas", "[step_plan]") {
  for (const std::uint64_t size : {12u, 13u, 17u}) {
    const TokenDataset data = dataset(size);
    const StepPlanner one(data, 1, false, {2, 6, 1});
    for (const int replicas : {2, 3, 6}) {
      const StepPlanner planner(data, 1, false, {2, 6 / replicas, replicas});
      REQUIRE(planner.steps_per_epoch() == one.steps_per_epoch());
      for (std::uint64_t s = 0; s < 2 * one.steps_per_epoch(); ++s) {
        Ids ids;
        for (int r = 0; r < replicas; ++r)
          for (const std::uint64_t id : planner.samples(s, r)) ids.push_back(id);
        std::sort(ids.begin(), ids.end());
        CHECK(ids == one.samples(s, 0));
      }
    }
  }
}

TEST_CASE("Replicas, seeds and epochs have orders of their own", "[step_plan]") {
  const TokenDataset data = dataset(400);
  std::set<Ids> orders;
  std::size_t count = 0;
  for (std::uint64_t seed = 40; seed < 44; ++seed) {
    const StepPlanner planner(data, seed, true, {100, 1, 4});
    for (int r = 0; r < 4; ++r)
      for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
        Ids positions = planner.samples(epoch, r);
        for (std::uint64_t& id : positions) id /= 4;
        orders.insert(positions);
        ++count;
      }
  }
  CHECK(orders.size() == count);
}

}  // namespace
}  // namespace deltapipe
