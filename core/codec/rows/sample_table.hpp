// SPDX-License-Identifier: BSD-3-Clause
// Tables with an entry for each sample of a crossing, in device memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <vector>

#include "core/base/observe/memory_ledger.hpp"
#include "core/base/parallel/views.hpp"

namespace deltapipe::codec {

/// A table that the host writes without waiting for the device until kSlots uploads are under way.
template <class Entry>
class SampleTable {
 public:
  explicit SampleTable(int max_samples)
      : max_samples_(max_samples),
        entries_(uninitialized("deltapipe::Codec::samples"), kSlots * max_samples),
        staging_(Kokkos::create_mirror_view(StagingSpace(), entries_)) {}

  /// Returns the entries, valid for kernels launched on exec until kSlots more uploads.
  const Entry* upload(const ExecSpace& exec, const std::vector<Entry>& entries) {
    const std::size_t first = static_cast<std::size_t>(next_) * max_samples_;
    if (users_[next_]) users_[next_]->fence();
    users_[next_] = exec;
    next_ = (next_ + 1) % kSlots;
    std::copy(entries.begin(), entries.end(), staging_.data() + first);
    if constexpr (!std::is_same_v<MemSpace, StagingSpace>) {
      const auto range = Kokkos::make_pair(first, first + entries.size());
      Kokkos::deep_copy(exec, Kokkos::subview(entries_, range), Kokkos::subview(staging_, range));
    }
    return entries_.data() + first;
  }
  std::size_t memory_bytes() const { return bytes_of_view(entries_); }

 private:
  static constexpr int kSlots = 4;
  int max_samples_;
  int next_ = 0;
  std::array<std::optional<ExecSpace>, kSlots> users_;
  Vector<Entry> entries_;
  HostVector<Entry> staging_;  ///< entries_ itself if the device is the host
};

}  // namespace deltapipe::codec
