// SPDX-License-Identifier: BSD-3-Clause
// The codec of docs/adding_a_codec.md. No deck has its kind.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "core/codec/quantizer/half_rows.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_sums.hpp"
#include "support/codec_link.hpp"

namespace deltapipe::codec {
std::unique_ptr<Codec> make_e5m2(const CodecSettings& settings, const CodecShape& shape);
}

#include "docs/examples/e5m2_codec.cpp"

using namespace deltapipe;
using namespace deltapipe::test;

TEST_CASE("the documents' example codec does what they say", "[codec][docs]") {
  const CodecShape shape{2, 3, 77};
  CodecLink link(codec::make_e5m2({}, shape), codec::make_e5m2({}, shape), shape);
  std::vector<float> x(2 * 3 * 77);
  for (std::size_t i = 0; i < x.size(); ++i)
    x[i] = std::sin(static_cast<float>(i * i)) * std::exp2(static_cast<float>(i / 77 * 20) - 90.0f);
  const std::vector<float> seen = link.cross({4, 2}, {3, 2}, x);  // the last token is padding
  CHECK(link.sent_bytes.size() == (3 * 79 + 3) / 4 * 4 + (2 * 79 + 3) / 4 * 4);
  for (int row = 0; row < 6; ++row) {
    float largest = 0;
    for (int c = 0; c < 77; ++c) largest = std::max(largest, std::abs(x[row * 77 + c]));
    for (int c = 0; c < 77; ++c) {
      const float value = x[row * 77 + c];
      // Two fraction bits, and fp16's least step for values that are tiny beside the token's
      // largest.
      if (row < 5)
        REQUIRE(std::abs(seen[row * 77 + c] - value) <= std::abs(value) / 8 + largest * 0x1p-31f);
      else
        REQUIRE(seen[row * 77 + c] == 0);
    }
  }
  CHECK_FALSE(link.sender->lost_values());
  x[5] = std::numeric_limits<float>::infinity();
  for (const float value : link.cross({4, 2}, {3, 2}, x)) REQUIRE(std::isfinite(value));
  CHECK(link.sender->lost_values());
}
