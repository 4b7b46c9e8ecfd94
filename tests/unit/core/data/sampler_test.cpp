// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/sampler.hpp"

#include <Random123/philox.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>
#include <set>

namespace deltapipe {
namespace {

std::vector<std::uint64_t> order_of(const Sampler& sampler, std::uint64_t epoch) {
  std::vector<std::uint64_t> order(sampler.size());
  for (std::uint64_t i = 0; i < order.size(); ++i) order[i] = sampler.at(epoch, i);
  return order;
}

bool is_permutation_of_all(std::vector<std::uint64_t> order) {
  std::sort(order.begin(), order.end());
  for (std::uint64_t i = 0; i < order.size(); ++i) {
    if (order[i] != i) return false;
  }
  return true;
}

TEST_CASE("An epoch visits every sample once", "[sampler]") {
  for (const std::uint64_t size :
       {1u, 2u, 3u, 4u, 5u, 7u, 15u, 16u, 17u, 64u, 65u, 255u, 1000u, 65537u}) {
    for (const std::uint64_t epoch : {0u, 1u, 9u}) {
      INFO("size " << size << " epoch " << epoch);
      CHECK(is_permutation_of_all(order_of(Sampler(size, 42, true), epoch)));
    }
  }
}

TEST_CASE("The order depends on seed and epoch and on nothing else", "[sampler]") {
  const Sampler sampler(1000, 42, true);
  CHECK(order_of(sampler, 3) == order_of(Sampler(1000, 42, true), 3));
  CHECK(order_of(sampler, 0) != order_of(sampler, 1));
  CHECK(order_of(sampler, 1) != order_of(sampler, std::uint64_t{1} << 32));
  CHECK(order_of(sampler, 0) != order_of(Sampler(1000, 43, true), 0));
  CHECK(order_of(sampler, 0) != order_of(Sampler(1000, 42 + (std::uint64_t{1} << 32), true), 0));
}

/// Twelve Feistel rounds with Random123's Philox, walked until they land inside the set.
std::uint64_t reference_at(std::uint64_t size, std::uint64_t seed, std::uint32_t stream,
                           std::uint64_t epoch, std::uint64_t position) {
  int half_bits = 1;
  while (half_bits < 32 && (std::uint64_t{1} << (2 * half_bits)) < size) ++half_bits;
  const std::uint64_t mask = (std::uint64_t{1} << half_bits) - 1;
  do {
    std::uint64_t left = position >> half_bits, right = position & mask;
    for (std::uint32_t round = 0; round < 12; ++round) {
      const r123::Philox4x32::ctr_type counter = {
          {static_cast<std::uint32_t>(right), round | stream << 8,
           static_cast<std::uint32_t>(epoch), static_cast<std::uint32_t>(epoch >> 32)}};
      const r123::Philox4x32::key_type key = {
          {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)}};
      const std::uint64_t mixed = left ^ (r123::Philox4x32()(counter, key)[0] & mask);
      left = right;
      right = mixed;
    }
    position = left << half_bits | right;
  } while (position >= size);
  return position;
}

TEST_CASE("The order is that of Random123's Philox in a Feistel network", "[sampler]") {
  const std::uint64_t large = (std::uint64_t{1} << 33) + 5;
  for (const std::uint64_t size : {std::uint64_t{1}, std::uint64_t{1000}, large})
    for (const std::uint64_t seed : {std::uint64_t{42}, 0x123456789abcdef0u})
      for (const std::uint64_t epoch : {std::uint64_t{0}, (std::uint64_t{7} << 32) + 1})
        for (const std::uint32_t stream : {0u, 5u}) {
          const Sampler sampler(size, seed, true, stream);
          for (std::uint64_t i = 0; i < std::min<std::uint64_t>(size, 50); ++i)
            REQUIRE(sampler.at(epoch, size - 1 - i) ==
                    reference_at(size, seed, stream, epoch, size - 1 - i));
        }
}

TEST_CASE("Without shuffle the order is that of the files", "[sampler]") {
  std::vector<std::uint64_t> ascending(17);
  std::iota(ascending.begin(), ascending.end(), 0);
  CHECK(order_of(Sampler(17, 42, false), 0) == ascending);
  CHECK(order_of(Sampler(17, 42, false), 5) == ascending);
}

TEST_CASE("Huge sets are permuted too", "[sampler]") {
  for (const std::uint64_t size : {(std::uint64_t{1} << 40) + 7, ~std::uint64_t{0}}) {
    const Sampler sampler(size, 1, true);
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < 1000; ++i) {
      const std::uint64_t id = sampler.at(0, size - 1 - i);
      CHECK(id < size);
      seen.insert(id);
    }
    CHECK(seen.size() == 1000);
  }
}

/// (chi^2 - degrees of freedom) / its standard deviation.
double chi_square_deviation(const std::vector<std::uint64_t>& counts, double expected) {
  double sum = 0;
  for (const std::uint64_t count : counts) {
    const double difference = static_cast<double>(count) - expected;
    sum += difference * difference / expected;
  }
  const double degrees = static_cast<double>(counts.size()) - 1;
  return (sum - degrees) / std::sqrt(2 * degrees);
}

TEST_CASE("Positions and neighbours are uniform over epochs", "[sampler]") {
  // 5 standard deviations are exceeded by chance less than once in a million draws.
  for (const std::uint64_t size : {2u, 3u, 5u, 10u, 37u}) {
    INFO("size " << size);
    const std::uint64_t epochs = 400 * size;
    std::vector<std::uint64_t> at_place(size * size, 0);
    std::vector<std::uint64_t> step(size - 1, 0);  // from a sample to the next one, modulo size
    const Sampler sampler(size, 7, true);
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      const auto order = order_of(sampler, epoch);
      for (std::uint64_t i = 0; i < size; ++i) ++at_place[i * size + order[i]];
      ++step[(order[1] + size - order[0]) % size - 1];
    }
    CHECK(std::abs(chi_square_deviation(at_place, 400)) < 5);
    if (size > 2) {
      const double expected = static_cast<double>(epochs) / static_cast<double>(size - 1);
      CHECK(std::abs(chi_square_deviation(step, expected)) < 5);
    }
  }
}

TEST_CASE("All orders of three and four samples are equally likely", "[sampler]") {
  for (const std::uint64_t size : {3u, 4u}) {
    std::vector<std::uint64_t> identity(size);
    std::iota(identity.begin(), identity.end(), 0);
    std::set<std::vector<std::uint64_t>> orders;
    do {
      orders.insert(identity);
    } while (std::next_permutation(identity.begin(), identity.end()));
    std::vector<std::uint64_t> counts(orders.size(), 0);
    const Sampler sampler(size, 11, true);
    for (std::uint64_t epoch = 0; epoch < 500 * counts.size(); ++epoch) {
      const auto found = orders.find(order_of(sampler, epoch));
      ++counts[static_cast<std::size_t>(std::distance(orders.begin(), found))];
    }
    INFO("size " << size);
    CHECK(std::abs(chi_square_deviation(counts, 500)) < 5);
  }
}

TEST_CASE("A large order has no trend", "[sampler]") {
  constexpr std::uint64_t kSize = 65537;
  const auto order = order_of(Sampler(kSize, 42, true), 0);
  // The correlation of position and sample, and of neighbours, is normal with 1/sqrt(n).
  const double mean = (kSize - 1) / 2.0;
  const double variance = (static_cast<double>(kSize) * kSize - 1) / 12;
  double with_position = 0;
  double with_next = 0;
  for (std::uint64_t i = 0; i < kSize; ++i) {
    const double here = static_cast<double>(order[i]) - mean;
    with_position += here * (static_cast<double>(i) - mean);
    with_next += here * (static_cast<double>(order[(i + 1) % kSize]) - mean);
  }
  const double scale = variance * std::sqrt(static_cast<double>(kSize));
  CHECK(std::abs(with_position / scale) < 5);
  CHECK(std::abs(with_next / scale) < 5);
}

TEST_CASE("Batches do not straddle epochs", "[sampler]") {
  const Sampler sampler(10, 3, true);
  CHECK(sampler.steps_per_epoch(4) == 3);
  CHECK(sampler.steps_per_epoch(5) == 2);
  CHECK(sampler.steps_per_epoch(100) == 1);
  for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::uint64_t> visited;
    for (std::uint64_t step = 0; step < 3; ++step) {
      const auto batch = sampler.batch(3 * epoch + step, 4);
      CHECK(batch.size() == (step < 2 ? 4u : 2u));
      visited.insert(visited.end(), batch.begin(), batch.end());
    }
    CHECK(visited == order_of(sampler, epoch));
  }
  CHECK(sampler.batch(1, 100) == order_of(sampler, 1));
}

}  // namespace
}  // namespace deltapipe
