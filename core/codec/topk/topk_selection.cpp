// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/topk/topk_selection.hpp"

#include "core/base/error.hpp"
#include "core/base/observe/memory_ledger.hpp"
#include "core/codec/topk/selection_candidates.hpp"
#include "core/codec/topk/selection_choice.hpp"

namespace deltapipe::codec {

using namespace selection;

TopKSelection::TopKSelection(int max_groups, std::size_t max_size)
    : max_size_(max_size), max_chunks_(static_cast<int>((max_size + kChunk - 1) / kChunk)) {
  DELTAPIPE_ASSERT(max_size > 0 && max_size < (std::size_t{1} << 31),
                   "positions are counted in 31 bits");
  const auto groups = static_cast<std::size_t>(max_groups);
  histogram_GB_ = Vector<std::uint32_t>("deltapipe::TopK::histogram", groups * kBins);
  state_G_ = Vector<GroupState>("deltapipe::TopK::groups", groups);
  candidates_ =
      Vector<std::uint16_t>(uninitialized("deltapipe::TopK::candidates"), groups * max_size);
  keys_ = Vector<std::uint32_t>(uninitialized("deltapipe::TopK::keys"), groups * max_size);
  undecided_ =
      Vector<std::uint16_t>(uninitialized("deltapipe::TopK::undecided"), groups * max_size);
  counts_GC_ = Vector<ChunkCounts>("deltapipe::TopK::chunk_counts", groups * max_chunks_);
  nonfinite_G_ = Vector<std::uint32_t>("deltapipe::TopK::nonfinite", groups);
  largest_G_ = Vector<std::uint32_t>("deltapipe::TopK::largest", groups);
}

std::size_t TopKSelection::memory_bytes() const {
  return bytes_of_view(histogram_GB_) + bytes_of_view(state_G_) + bytes_of_view(candidates_) +
         bytes_of_view(keys_) + bytes_of_view(undecided_) + bytes_of_view(counts_GC_) +
         bytes_of_view(nonfinite_G_) + bytes_of_view(largest_G_);
}

void TopKSelection::select(const ExecSpace& exec, int groups, const TopKGroup* group_G,
                           const float* values, const Positions& chosen, float* chosen_values) {
  if (groups == 0) return;
  const Selection s{group_G,
                    values,
                    chosen,
                    max_size_,
                    max_chunks_,
                    histogram_GB_.data(),
                    state_G_.data(),
                    chosen_values,
                    candidates_.data(),
                    keys_.data(),
                    undecided_.data(),
                    counts_GC_.data(),
                    nonfinite_G_.data(),
                    largest_G_.data()};
  const RowPolicy by_chunk = row_policy(exec, groups * max_chunks_);
  const RowPolicy counting = row_policy(exec, groups * max_chunks_, kHistogramBytes);
  const RowPolicy by_group = row_policy(exec, groups);
  for_rows("deltapipe::TopK::sample", counting, Sample{s});
  for_rows("deltapipe::TopK::find_least", by_group, FindLeast{s});
  for_rows("deltapipe::TopK::collect", counting, Collect{s});
  for_rows("deltapipe::TopK::upper_bits", by_group, FindBin{s, 0});
  for_rows("deltapipe::TopK::collect_again", counting, Collect{s, true});
  for_rows("deltapipe::TopK::upper_bits_again", by_group, FindBin{s, 0, true});
  for_rows("deltapipe::TopK::divide", counting, Divide{s});
  for_rows("deltapipe::TopK::middle_bits", by_group, FindBin{s, 1});
  for_rows("deltapipe::TopK::count_last_bits", counting, CountLastBits{s});
  for_rows("deltapipe::TopK::last_bits", by_group, FindBin{s, 2});
  for_rows("deltapipe::TopK::count_larger", by_chunk, CountLarger{s});
  for_rows("deltapipe::TopK::place_chunks", by_group, PlaceChunks{s});
  for_rows("deltapipe::TopK::write_chosen", by_chunk, WriteChosen{s});
}

}  // namespace deltapipe::codec
