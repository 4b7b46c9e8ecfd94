// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/nearest.hpp"

#include <algorithm>
#include <numeric>
#include <vector>

namespace deltapipe::deck {

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row[b.size()];
}

namespace {

constexpr std::size_t kShortestPart = 3;  ///< of a name, that says which one is meant

/// The candidate that contains the word where only one does, or all others begin with it; or "".
std::string only_with(std::string_view word, std::span<const std::string> candidates) {
  if (word.size() < kShortestPart) return "";
  std::string found;
  for (const std::string& candidate : candidates) {
    if (candidate.find(word) == std::string::npos) continue;
    if (found.empty() || found.starts_with(candidate))
      found = candidate;
    else if (!candidate.starts_with(found))
      return "";
  }
  return found;
}

}  // namespace

std::string nearest(std::string_view word, std::span<const std::string> candidates) {
  std::size_t smallest = std::max<std::size_t>(2, word.size() / 3) + 1;
  std::string best;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance >= smallest || distance >= candidate.size()) continue;
    smallest = distance;
    best = candidate;
  }
  return best.empty() ? only_with(word, candidates) : best;
}

}  // namespace deltapipe::deck
