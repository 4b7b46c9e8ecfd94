// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/message.hpp"

#include <catch2/catch.hpp>

using namespace deltapipe;

TEST_CASE("a header says what its crossing is", "[message]") {
  Crossing crossing;
  crossing.step = (std::uint64_t{1} << 40) + 3;
  crossing.micro_batch = 5;
  crossing.boundary = 7;
  crossing.sample_ids = {4, 2};
  crossing.tokens = {1, 1};
  const auto [kind, direction] =
      GENERATE(std::pair{CrossingKind::activation, Direction::forward},
               std::pair{CrossingKind::gradient, Direction::backward},
               std::pair{CrossingKind::tied_rows, Direction::backward},
               std::pair{CrossingKind::tied_gradients, Direction::forward});
  crossing.kind = kind;
  CHECK(crossing.direction() == direction);
  const MessageHeader header = header_of(crossing, 99, 77);
  CHECK(header.kind == kind);
  CHECK(header.direction == direction);
  CHECK(header.step == crossing.step);
  CHECK(header.micro_batch == 5);
  CHECK(header.boundary == 7);
  CHECK(header.sample_count == 2);
  CHECK(header.codec_id == 99);
  CHECK(header.state_hash == 77);
  crossing.sample_ids = {2, 4};
  CHECK(header_of(crossing, 99).sample_hash != header.sample_hash);
  crossing.sample_ids = {4, 2};
  CHECK(header_of(crossing, 99).sample_hash == header.sample_hash);
}
