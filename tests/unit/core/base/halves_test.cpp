// SPDX-License-Identifier: BSD-3-Clause
// Values held in halves: the nearest bf16 and the lower half of the bits.
#include "core/kernels/halves.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/kernels/layers/embedding.hpp"
#include "core/kernels/optimizers/adamw.hpp"
#include "core/stage/parameters.hpp"
#include "support/device_values.hpp"
#include "support/finite_differences.hpp"
#include "support/memory_state_reader.hpp"

using namespace deltapipe;
using deltapipe::test::random_values;
using deltapipe::test::to_device;
using deltapipe::test::to_host;

namespace {

struct HeldInHalves {
  explicit HeldInHalves(const std::vector<float>& values)
      : rounded("test::rounded", values.size()), lower("test::lower", values.size()) {
    const Vector<float> x = to_device(values);
    split_into_halves(ExecSpace(), x, halves());
  }
  VectorHalves halves() const { return {rounded, lower}; }
  std::vector<float> values() const {
    const Vector<float> x("test::joined", rounded.extent(0));
    join_halves(ExecSpace(), halves(), x);
    return to_host(x);
  }

  Vector<Bf16> rounded;
  Vector<std::uint16_t> lower;
};

std::vector<std::uint32_t> bits_of_all(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits;
  for (const float x : values) bits.push_back(bits_of(x));
  return bits;
}

}  // namespace

TEST_CASE("Halves are the nearest bf16 and come back to the bit", "[kernels][halves]") {
  std::uint64_t wrong = 0, not_nearest = 0;
  // All upper halves with lower halves around the middle and the ends.
  for (std::uint32_t upper = 0; upper < 0x10000u; ++upper)
    for (const std::uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x5a3cu}) {
      const float x = float_of(upper << 16 | lower);
      const Halves halves = halves_of(x);
      if (std::isnan(x)) {
        wrong += !std::isnan(joined(halves)) || !std::isnan(float_of_bfloat(halves.rounded));
        continue;
      }
      wrong += bits_of(joined(halves)) != bits_of(x);
      if (!std::isfinite(x)) {
        wrong += bits_of(float_of_bfloat(halves.rounded)) != bits_of(x);
        continue;
      }
      // Beside the other bf16 that x lies next to; 2^128 stands for infinity.
      const auto distance = [&](std::uint32_t of) {
        const float near = float_of(of << 16);
        return std::abs(double(x) - (std::isinf(near) ? std::copysign(0x1p128, near) : near));
      };
      const double ours = distance(halves.rounded), low = distance(upper),
                   high = distance(upper + 1);
      not_nearest += ours > std::min(low, high);
      // A tie goes away from zero.
      not_nearest += low == high && halves.rounded != static_cast<std::uint16_t>(upper + 1);
    }
  CHECK(wrong == 0);
  CHECK(not_nearest == 0);
}

TEST_CASE("Vectors are split and joined on the device", "[kernels][halves]") {
  const std::size_t count = GENERATE(0, 1, 37, 4096, 9001);
  std::vector<float> values = random_values<float>(count, 1);
  const float special[] = {0.0f,
                           -0.0f,
                           INFINITY,
                           -INFINITY,
                           std::numeric_limits<float>::max(),
                           std::numeric_limits<float>::denorm_min(),
                           -std::numeric_limits<float>::min(),
                           1.00390625f};
  for (std::size_t i = 0; i < values.size() && i < std::size(special); ++i) values[i] = special[i];
  const HeldInHalves held(values);
  CHECK(bits_of_all(held.values()) == bits_of_all(values));
  const std::vector<Bf16> rounded = to_host(held.rounded);
  for (std::size_t i = 0; i < count; ++i) REQUIRE(rounded[i] == halves_of(values[i]).rounded);
}

TEST_CASE("Values in halves pass through a device's staging memory", "[kernels][halves]") {
  const std::size_t count = GENERATE(1, 16, 37, 64);
  const std::vector<float> values = random_values<float>(count, 1);
  const Vector<float> staging("test::staging", 16);
  const HeldInHalves held(std::vector<float>(count, 3.0f));
  copy_into_halves<true>(ExecSpace(), values, held.halves(), staging);
  CHECK(held.values() == values);
  std::vector<float> back(count);
  copy_out_of_halves<true>(ExecSpace(), held.halves(), back, staging);
  CHECK(back == values);
}

TEST_CASE("AdamW changes parameters in halves as it does others", "[kernels][adamw][halves]") {
  const std::size_t count = GENERATE(1, 37, 4096, 5001);
  const auto before = random_values<float>(count, 1);
  const Vector<float> plain = to_device(before);
  const HeldInHalves held(before);
  struct Moments {
    Vector<float> first, second;
  };
  const auto zeros = [&] {
    return Moments{Vector<float>("test::moment1", count), Vector<float>("test::moment2", count)};
  };
  const Moments a = zeros(), b = zeros();
  for (int step = 1; step <= 3; ++step) {
    const Vector<float> gradient = to_device(random_values<float>(count, 10 + step));
    const AdamWStep adamw = AdamWStep::at(step, 1e-3, 0.9, 0.999, 1e-8, 0.01, 0.5);
    adamw_pass<float>(ExecSpace(), adamw, gradient, MutableValues<float>{plain.data()}, a.first,
                      a.second);
    adamw_pass<float>(ExecSpace(), adamw, gradient, mutable_halves(held.halves()), b.first,
                      b.second);
  }
  CHECK(to_host(plain) != before);
  CHECK(held.values() == to_host(plain));
  CHECK(to_host(b.first) == to_host(a.first));
  CHECK(to_host(b.second) == to_host(a.second));
}

TEST_CASE("AdamW in halves: what is not finite shows", "[kernels][adamw][halves]") {
  const HeldInHalves held({2, 2});
  const Vector<float> m("test::moment1", 2), v("test::moment2", 2);
  adamw_pass<float>(ExecSpace(), AdamWStep::at(1, 0.1, 0.9, 0.999, 1e-8, 0, 1),
                    to_device(std::vector<float>{NAN, 0}), mutable_halves(held.halves()), m, v);
  CHECK(std::isnan(held.values()[0]));
  CHECK(std::isnan(float_of_bfloat(to_host(held.rounded)[0])));
  CHECK(held.values()[1] == 2);
}

TEST_CASE("Rows come out of tables in halves as they do of others",
          "[kernels][embedding][halves]") {
  const int C = GENERATE(1, 16, 19);
  const int V = 9, T = 5;
  const auto table = random_values<float>(std::size_t(V) * C, 1);
  const Matrix<float> positions = to_device(random_values<float>(std::size_t(8) * C, 2), C);
  const HeldInHalves held(table);
  const RowTable<float> halves(MatrixRef<const Bf16>(held.rounded.data(), V, C),
                               MatrixRef<const std::uint16_t>(held.lower.data(), V, C));
  const Matrix<float> values = to_device(table, C);
  const auto tokens = to_device(std::vector<std::int32_t>{3, 1, 3, 8, 0, 1, 1, 1, 0, 3});
  const auto embedded = [&](const RowTable<float>& from) {
    const Matrix<float> x("test::x", 10, C);
    embedding_forward<float>(ExecSpace(), tokens, T, from, positions, x);
    return to_host(x);
  };
  CHECK(embedded(halves) == embedded(values));
  const Matrix<float> rows("test::rows", 10, C);
  gather_rows<float>(ExecSpace(), halves, tokens, rows);
  const auto gathered = to_host(rows);
  for (int c = 0; c < C; ++c) CHECK(gathered[3 * C + c] == table[8 * C + c]);
}

namespace {

/// "table" and "last" are operands, "bias" and "positions" are not.
ParameterArena<float> arena(ProductPrecision products) {
  ParameterArena<float> made({"last"});
  made.add("positions", {4, 5}, false, 0);
  const int table = made.add("table", {3, 5}, true, 1);
  made.add("bias", {7}, false, 1);
  const int last = made.add("last", {2, 7}, true, 2);
  made.set_operands({table, last});
  made.allocate(true, products);
  return made;
}

void fill(const ParameterArena<float>& parameters, std::uint64_t seed) {
  for (int i = 0; i < 4; ++i)
    parameters.copy_in(ExecSpace(), i, 0,
                       random_values<float>(parameters.info()[i].size, seed + i));
}

std::vector<float> all_values(const ParameterArena<float>& parameters) {
  std::vector<float> all;
  for (int i = 0; i < 4; ++i) {
    std::vector<float> values(parameters.info()[i].size);
    parameters.copy_out(ExecSpace(), i, 0, values);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

}  // namespace

TEST_CASE("An arena holds operands of products in bf16 in halves", "[stage][halves]") {
  const ParameterArena<float> plain = arena(ProductPrecision::fp32),
                              held = arena(ProductPrecision::bf16);
  for (int i = 0; i < 4; ++i) {
    CHECK(!plain.in_halves(i));
    CHECK(held.in_halves(i) == (i == 1 || i == 3));
    CHECK(plain.value_bytes(i).size() == 1);
    CHECK(held.value_bytes(i).size() == (i % 2 == 1 ? 2u : 1u));
  }
  fill(plain, 1);
  fill(held, 1);
  CHECK(all_values(held) == all_values(plain));
  CHECK(to_host(held.value(2)) == to_host(plain.value(2)));

  // A part of a parameter, and nothing beside it.
  const std::vector<float> part = {10, 20, 30};
  held.copy_in(ExecSpace(), 1, 4, part);
  plain.copy_in(ExecSpace(), 1, 4, part);
  CHECK(all_values(held) == all_values(plain));
  std::vector<float> back(3);
  held.copy_out(ExecSpace(), 1, 5, back);
  CHECK(back[0] == 20);
  CHECK(back[1] == 30);

  ParameterArena<double> in_double;
  in_double.set_operands({in_double.add("a", {2, 3}, true, 0)});
  in_double.allocate(true, ProductPrecision::bf16);
  CHECK(!in_double.in_halves(0));
}

TEST_CASE("A state of halves has more pieces than one", "[state][stage][halves]") {
  ParameterArena<float> large;
  const std::uint64_t rows = 3, columns = 400'003;  // more than 2^20 together
  large.set_operands({large.add("large", {rows, columns}, true, 0)});
  large.allocate(false, ProductPrecision::bf16);
  const std::vector<float> values = random_values<float>(rows * columns, 1);
  large.copy_in(ExecSpace(), 0, 0, values);
  const std::vector<StatePart> parts = {parameter_state(ExecSpace(), large)};
  const StateContent content = state_in_memory(parts);
  std::vector<float> stored(values.size());
  const auto& bytes = content.parts.at(0).items.at(0).bytes;
  REQUIRE(bytes.size() == values.size() * sizeof(float));
  std::memcpy(stored.data(), bytes.data(), bytes.size());
  CHECK((stored == values));
  large.copy_in(ExecSpace(), 0, 0, std::vector<float>(values.size(), 1.0f));
  MemoryStateReader reader(content);
  read_state(parts, reader);
  large.copy_out(ExecSpace(), 0, 0, stored);
  CHECK((stored == values));
}

TEST_CASE("States are of values, however they are held", "[state][stage][halves]") {
  const auto precision = [](bool halves) {
    return halves ? ProductPrecision::bf16 : ProductPrecision::fp32;
  };
  const bool from_halves = GENERATE(false, true), to_halves = GENERATE(false, true);
  const ParameterArena<float> written = arena(precision(from_halves)),
                              read = arena(precision(to_halves));
  fill(written, 1);
  fill(read, 20);
  const std::vector<StatePart> from = {parameter_state(ExecSpace(), written)},
                               to = {parameter_state(ExecSpace(), read)};
  const StateContent content = state_in_memory(from);
  MemoryStateReader reader(content);
  read_state(to, reader);
  CHECK(all_values(read) == all_values(written));
}
