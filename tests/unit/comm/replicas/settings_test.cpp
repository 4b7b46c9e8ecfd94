// SPDX-License-Identifier: BSD-3-Clause
// Steps that settings define: those of a warm-up, and those after which replicas agree.
#include "comm/replicas/settings.hpp"

#include <catch2/catch.hpp>

using namespace deltapipe;

TEST_CASE("a warm-up ends with the first step that is not part of it", "[replicas]") {
  ReplicaSettings settings;
  settings.codec = ReplicaCodec::adam_moment;
  for (const double epochs : {0.0, 0.07, 0.28, 0.5, 1.0, 1.1, 2.2, 3.0})
    for (const std::uint64_t all : {1u, 3u, 25u, 100u, 117u}) {
      settings.warmup_epochs = epochs;
      const std::uint64_t steps = settings.warmup_steps(all);
      const auto epoch_of = [all](std::uint64_t step) {
        return static_cast<double>(step) / static_cast<double>(all);
      };
      CAPTURE(epochs, all, steps);
      CHECK(settings.sums_moments(epoch_of(steps)));
      if (steps > 0) CHECK_FALSE(settings.sums_moments(epoch_of(steps - 1)));
    }
  settings.warmup_epochs = 0.07;
  CHECK(settings.warmup_steps(100) == 7);  // 0.07 x 100 is above 7 in binary
}

TEST_CASE("replicas agree after every outer step and after the last", "[replicas]") {
  ReplicaSettings settings;
  for (const int local_steps : {0, 1, 2, 3, 8})
    for (const std::uint64_t steps : {1u, 2u, 7u, 8u, 24u, 25u}) {
      settings.local_steps = local_steps;
      std::uint64_t sums = 0;
      CHECK(settings.sums_until(0, steps) == 0);
      for (std::uint64_t done = 0; done < steps; ++done) {
        CAPTURE(local_steps, steps, done);
        std::uint64_t next = done + 1;
        while (!settings.replicas_agree(next, steps)) ++next;
        CHECK(settings.steps_to_agreement(done, steps) == next - done);
        CHECK(next <= steps);
        if (settings.replicas_agree(done + 1, steps)) ++sums;
        CHECK(settings.sums_until(done + 1, steps) == sums);
      }
    }
}
