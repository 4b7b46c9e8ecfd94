// SPDX-License-Identifier: BSD-3-Clause
// Which rows of the token embedding a step exchanges, and in which groups.
#include "comm/pipeline/token_index.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "comm/pipeline/embedding_exchange.hpp"
#include "support/device_values.hpp"

namespace deltapipe {
namespace {

using test::to_host;

using Tokens = std::vector<std::int32_t>;

std::vector<Tokens> random_step(int vocabulary, int rows, int micro_batches, unsigned seed) {
  std::vector<Tokens> step(micro_batches);
  std::uint32_t state = seed * 2654435761u + 1;
  for (Tokens& tokens : step)
    for (int n = 0; n < rows; ++n) {
      state = state * 1664525u + 1013904223u;
      tokens.push_back(static_cast<std::int32_t>((state >> 8) % vocabulary));
    }
  return step;
}

/// A micro-batch's rows are `stride` apart, as when the last one is incomplete.
void load(TokenIndex& index, const std::vector<Tokens>& step, int stride) {
  index.clear();
  for (std::size_t m = 0; m < step.size(); ++m)
    index.add(step[m], static_cast<std::int32_t>(m) * stride);
  index.finish(ExecSpace());
}

void check(const TokenIndex& index, const std::vector<Tokens>& step, int stride) {
  std::map<std::int32_t, std::size_t> first, last;
  std::map<std::int32_t, Tokens> rows;
  for (std::size_t m = 0; m < step.size(); ++m)
    for (std::size_t n = 0; n < step[m].size(); ++n) {
      const std::int32_t token = step[m][n];
      first.emplace(token, m);
      last[token] = m;
      rows[token].push_back(static_cast<std::int32_t>(m * stride + n));
    }
  REQUIRE(index.size() == static_cast<int>(rows.size()));
  REQUIRE(index.micro_batches() == static_cast<int>(step.size()));
  const Tokens used = to_host(index.token_U()), finals = to_host(index.token_by_last_use_U());
  CHECK(used == Tokens(index.tokens().begin(), index.tokens().end()));
  CHECK(finals == Tokens(index.tokens_by_last_use().begin(), index.tokens_by_last_use().end()));
  CHECK(std::set<std::int32_t>(finals.begin(), finals.end()).size() == rows.size());
  const Tokens starts = to_host(index.first_of_U()), row_of = to_host(index.row_of());
  REQUIRE(starts.size() == rows.size() + 1);
  CHECK(starts.back() == static_cast<int>(row_of.size()));
  for (int u = 0; u < index.size(); ++u) {
    CHECK(index.row_of_token(used[u]) == u);
    CHECK(Tokens(row_of.begin() + starts[u], row_of.begin() + starts[u + 1]) == rows[finals[u]]);
    for (int m = 0; m <= index.micro_batches(); ++m) {
      CHECK((u < index.needed_before(m)) == (static_cast<int>(first[used[u]]) < m));
      CHECK((u < index.final_before(m)) == (static_cast<int>(last[finals[u]]) < m));
    }
  }
}

TEST_CASE("Tokens are sorted by first and by last use", "[app][token_index]") {
  TokenIndex index(11, 4 * 9, 4);
  for (const int rows : {1, 3, 9})
    for (const int micro_batches : {1, 2, 3, 4}) {
      const auto step = random_step(rows == 3 ? 4 : 11, rows, micro_batches, rows + micro_batches);
      CAPTURE(rows, micro_batches);
      load(index, step, 9);
      check(index, step, 9);
    }
  load(index, {}, 9);
  CHECK(index.size() == 0);
  CHECK(index.micro_batches() == 0);
}

/// Ends of groups, which follow one another without gaps.
std::vector<int> ends_of(MicroBatchGroup (*group_at)(int, int), int micro_batches) {
  std::vector<int> ends;
  for (int m = 0, begin = 0; m < micro_batches; ++m) {
    const MicroBatchGroup group = group_at(m, micro_batches);
    if (group.begin == group.end) continue;
    CHECK(group.begin == begin);
    ends.push_back(begin = group.end);
  }
  return ends;
}

std::vector<int> row_groups(int micro_batches) {
  return ends_of(row_group, micro_batches);
}
std::vector<int> gradient_groups(int micro_batches) {
  return ends_of(gradient_group, micro_batches);
}

TEST_CASE("Groups of token rows grow away from the moment that waits", "[app][token_index]") {
  CHECK(row_groups(0).empty());
  CHECK(gradient_groups(0).empty());
  CHECK(row_groups(1) == std::vector<int>{1});
  CHECK(gradient_groups(1) == std::vector<int>{1});
  CHECK(row_groups(6) == std::vector<int>{1, 2, 4, 6});
  CHECK(gradient_groups(6) == std::vector<int>{2, 4, 5, 6});
  CHECK(row_groups(16) == std::vector<int>{1, 2, 4, 8, 16});
  CHECK(gradient_groups(16) == std::vector<int>{8, 12, 14, 15, 16});
}

}  // namespace
}  // namespace deltapipe
