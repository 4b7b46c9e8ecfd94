// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/floating_point.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>

#include "core/base/parallel/host_team.hpp"
#include "models/optimizer.hpp"
#include "support/denormals.hpp"
#include "support/device_values.hpp"

using namespace deltapipe;
using deltapipe::test::denormals_vanish;

namespace {

#if defined(__SSE__) || defined(__aarch64__)
constexpr bool kCanFlush = true;
#else
constexpr bool kCanFlush = false;
#endif

/// In how many parts of a run they vanish.
int vanishing_parts(HostTeam& team, int parts) {
  std::atomic<int> vanishing{0};
  team.run(parts, [&](int) { vanishing += denormals_vanish() ? 1 : 0; });
  return vanishing;
}

}  // namespace

TEST_CASE("Denormal numbers vanish in a scope, in all parts of its runs", "[threads]") {
  constexpr int kParts = 100;
  HostTeam team;
  team.resize(GENERATE(1, 3));
  const FloatingPointMode usual = floating_point_mode();
  CHECK_FALSE(denormals_vanish());
  for (int round = 0; round < 20; ++round) {
    {
      const FlushedDenormals flushed;
      CHECK(denormals_vanish() == kCanFlush);
      CHECK(vanishing_parts(team, kParts) == (kCanFlush ? kParts : 0));
      {
        const FloatingPointScope as_before(usual);
        CHECK_FALSE(denormals_vanish());
        CHECK(vanishing_parts(team, kParts) == 0);
      }
      CHECK(denormals_vanish() == kCanFlush);
    }
    CHECK_FALSE(denormals_vanish());
    CHECK(vanishing_parts(team, kParts) == 0);
  }
  const auto throws = [&] {
    const FlushedDenormals flushed;
    team.run(3, [](int) { throw std::runtime_error("part"); });
  };
  CHECK_THROWS(throws());
  CHECK_FALSE(denormals_vanish());
  CHECK(vanishing_parts(team, kParts) == 0);
}

TEST_CASE("Moments without gradients come to zero", "[optimizer]") {
  if (!kCanFlush || !kHostExecution) return;
  ParameterArena<float> parameters;
  parameters.add("weight", {100}, true, 0);
  parameters.allocate(true, ProductPrecision::fp32, ViewAllocator());
  const ExecSpace exec;
  // 0.9 of the smallest number is the smallest number, where denormal numbers are rounded.
  Kokkos::deep_copy(exec, parameters.moment1(0), 1e-39f);
  Kokkos::deep_copy(exec, parameters.gradient(0), 0.0f);
  Optimizer<float> optimizer({}, parameters);
  optimizer.update(exec, 0, 1e-3, 1);
  for (const float moment : test::to_host(VectorRef<const float>(parameters.moment1(0))))
    REQUIRE(moment == 0);
  CHECK_FALSE(denormals_vanish());
}
