// SPDX-License-Identifier: BSD-3-Clause
// EF-mixed (arXiv 2401.07788): error feedback with TopK in which half of the k positions are those
// of the largest values |x| and the others those of the largest errors |e| elsewhere. If one half
// has too few nonzero values, the other gets its positions. x + e is sent at all of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/base/observe/memory_ledger.hpp"
#include "core/codec/topk/sparse_rows.hpp"
#include "core/codec/topk/topk_selection.hpp"

namespace deltapipe::codec {

/// The part of the k positions that a selection may find: all or, for EF-mixed, the values' share
/// or those that are not found yet.
enum class Share { all, values, rest };

struct MakeGroups {
  SparseArguments s;
  Share share;
  const std::uint32_t* found_B;  ///< rest: number of positions found so far
  TopKGroup* group_B;

  KOKKOS_INLINE_FUNCTION void operator()(const int b) const {
    const std::uint32_t size = s.follows(b) ? 0 : s.size_of(b);
    std::uint32_t most = size > 0 ? count_of_part(s.part, size) : 0;
    // Without errors yet, values have all positions.
    if (share == Share::values && s.uses_memory(b)) most -= most / 2;
    if (share == Share::rest) most = s.uses_memory(b) ? most - found_B[b] : 0;
    group_B[b] = {s.first_of(b), size, most};
  }
};

inline void make_groups(const ExecSpace& exec, const SparseArguments& s, Share share,
                        const Positions* found, TopKGroup* group_B) {
  for_range("deltapipe::TopKCodec::groups", exec, s.a.sample_count,
            MakeGroups{s, share, found == nullptr ? nullptr : found->count_G, group_B});
}

/// Sets `offered` to x or e for samples whose groups may find positions, or to 0 if x + e, which
/// would be sent, is not a value that topk sends.
template <class M>
struct OfferShare {
  SparseArguments s;
  const TopKGroup* group_B;
  bool errors;
  const float* sum;  ///< x + e
  float* offered;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const int n = s.a.channels;
    const int b = index / s.a.tokens;
    if (group_B[b].most == 0 || index % s.a.tokens >= s.a.samples[b].tokens) return;
    const RowBuffers buffers = RowBuffers::of(team, n);
    const std::size_t first = static_cast<std::size_t>(index) * n;
    if (errors) load_scaled<M>(team, row_of(s.a, index), buffers.work, buffers.codes);
    const float* from = errors ? buffers.work : s.a.x + first;
    const float* both = sum + first;
    float* to = offered + first;
    row_for(team, n, [=](int c) { to[c] = magnitude_key(both[c]) == 0 ? 0.0f : from[c]; });
  }
};

/// Sets y to 0 at the chosen positions of samples whose groups may find others.
struct DropChosen {
  SparseArguments s;
  const TopKGroup* group_B;
  Positions chosen;
  float* y;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int b = team.league_rank();
    if (group_B[b].most == 0) return;
    const std::uint32_t* position = chosen.of(b);
    float* values = y + s.first_of(b);
    row_for(team, static_cast<int>(chosen.count_G[b]), [=](int i) { values[position[i]] = 0.0f; });
  }
};

/// Merges the positions of two disjoint lists.
struct MergePositions {
  Positions a, b, merged;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int g = team.league_rank();
    const std::uint32_t of_a = a.count_G[g], of_b = b.count_G[g];
    const std::uint32_t *from_a = a.of(g), *from_b = b.of(g);
    std::uint32_t* to = merged.of(g);
    row_for(team, static_cast<int>(of_a),
            [=](int i) { to[i + places_below(from_b, of_b, from_a[i])] = from_a[i]; });
    row_for(team, static_cast<int>(of_b),
            [=](int i) { to[i + places_below(from_a, of_a, from_b[i])] = from_b[i]; });
    row_once(team, [&]() { merged.count_G[g] = of_a + of_b; });
  }
};

/// Chooses the positions. Only senders have one.
class MixedSelection {
 public:
  MixedSelection(const CodecShape& shape, std::size_t most)
      : row_bytes_(RowBuffers::bytes(shape.channels)),
        offered_(uninitialized("deltapipe::MixedSelection::offered"),
                 static_cast<std::size_t>(shape.max_samples) * shape.tokens * shape.channels),
        others_(shape.max_samples, most),
        both_(shape.max_samples, most) {}

  std::size_t memory_bytes() const {
    return bytes_of_view(offered_) + others_.memory_bytes() + both_.memory_bytes();
  }

  /// Sets s.chosen to the largest values, the largest errors elsewhere and, while these are fewer
  /// than k, the next values, in one ascending list per sample. M is the type of the errors' rows;
  /// `sum` is x + e.
  template <class M>
  void choose(const ExecSpace& exec, const SparseArguments& s, TopKSelection& selection,
              TopKGroup* group_B, const float* sum) {
    const int samples = s.a.sample_count;
    // Finds the share's largest values or errors at positions that are not in `found`.
    const auto find = [&](Share share, const Positions* found, bool errors,
                          const Positions& chosen) {
      make_groups(exec, s, share, found, group_B);
      for_rows("deltapipe::MixedSelection::offer_share",
               row_policy(exec, samples * s.a.tokens, row_bytes_),
               OfferShare<M>{s, group_B, errors, sum, offered_.data()});
      if (found != nullptr)
        for_rows("deltapipe::MixedSelection::drop_chosen", row_policy(exec, samples),
                 DropChosen{s, group_B, *found, offered_.data()});
      selection.select(exec, samples, group_B, offered_.data(), chosen);
    };
    const auto merge = [&](const MergePositions& lists) {
      for_rows("deltapipe::MixedSelection::merge_positions", row_policy(exec, samples), lists);
    };
    const Positions others = others_.view(), both = both_.view();
    find(Share::values, nullptr, false, s.chosen);
    find(Share::rest, &s.chosen, true, others);
    merge({s.chosen, others, both});
    find(Share::rest, &both, false, others);
    merge({both, others, s.chosen});
  }

 private:
  std::size_t row_bytes_;
  Vector<float> offered_;  ///< to the current selection
  PositionLists others_, both_;
};

}  // namespace deltapipe::codec
