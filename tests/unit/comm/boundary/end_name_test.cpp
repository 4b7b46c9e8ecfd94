// SPDX-License-Identifier: BSD-3-Clause
#include "comm/boundary/end_name.hpp"

#include <catch2/catch.hpp>
#include <string>

using namespace deltapipe;

TEST_CASE("An end is found by the name of its part", "[end_name]") {
  CHECK(EndName{.boundary = 12}.link() == "boundary 12 forward");
  CHECK(EndName{.boundary = 2, .backward = true, .side = BoundarySide::receiver}.part() ==
        "boundary 2 backward receiver");
  CHECK(EndName{}.part() == "token rows sender");
  for (const std::string part :
       {"boundary 0 forward sender", "boundary 12 forward receiver", "boundary 3 backward sender",
        "boundary 3 backward receiver", "token rows sender", "token rows receiver"}) {
    const std::optional<EndName> end = EndName::of_part(part);
    REQUIRE(end);
    CHECK(end->part() == part);
    CHECK(end->boundary.has_value() == part.starts_with("boundary"));
  }
  for (const char* const part :
       {"parameters", "run", "boundary", "boundary x forward sender", "boundary 2 sideways sender",
        "boundary 2 forward sender 2", "token row gradients sender",
        "target of boundary 2 forward sender"})
    CHECK_FALSE(EndName::of_part(part));
}

TEST_CASE("Spill files are found by their names", "[end_name]") {
  const std::string name = spill_file_name(1, 12, true, BoundarySide::receiver);
  CHECK(name == "cache-replica1-boundary12-backward-receiver.h5");
  CHECK(is_spill_file_name(name));
  for (const char* const other : {"run.h5", "cache-replica1-boundary12-backward-receiver",
                                  "cache-replica1-boundary-backward-receiver.h5",
                                  "cache-replica1-boundary12-backward-receiver-former.h5"})
    CHECK_FALSE(is_spill_file_name(other));
}
