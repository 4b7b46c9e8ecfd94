// SPDX-License-Identifier: BSD-3-Clause
#include "core/kernels/attention/relative_distances.hpp"

namespace deltapipe {

RelativeDistances::RelativeDistances(const RelativeBuckets& buckets, int most_tokens,
                                     const ViewAllocator& memory)
    : buckets_(buckets), most_tokens_(most_tokens) {
  const int distances = 2 * most_tokens - 1;
  row_ = memory.uninitialized<Vector<std::int32_t>>(MemoryUse::workspace,
                                                    "deltapipe::RelativeDistances::row", distances);
  begin_ = memory.uninitialized<Vector<std::int32_t>>(
      MemoryUse::workspace, "deltapipe::RelativeDistances::begin", buckets.rows() + 1);
  if (memory.only_counts()) return;
  const auto row = Kokkos::create_mirror_view(row_);
  const auto begin = Kokkos::create_mirror_view(begin_);
  int next = 0;  // the first row whose distances are not known yet
  for (int i = 0; i < distances; ++i) {
    row(i) = buckets.row(i - (most_tokens - 1));
    for (; next <= row(i); ++next) begin(next) = i - (most_tokens - 1);
  }
  for (; next <= buckets.rows(); ++next) begin(next) = most_tokens;
  const ExecSpace exec;
  Kokkos::deep_copy(exec, row_, row);
  Kokkos::deep_copy(exec, begin_, begin);
  exec.fence();
}

}  // namespace deltapipe
