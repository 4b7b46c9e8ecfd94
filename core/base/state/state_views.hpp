// SPDX-License-Identifier: BSD-3-Clause
// Views as items of a state. Views that the host cannot access pass through a staging buffer piece
// by piece.
#pragma once

#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "core/base/parallel/views.hpp"
#include "core/base/state/state.hpp"

namespace deltapipe {

namespace state_views {

inline constexpr bool kOnHost = std::is_same_v<MemSpace, StagingSpace>;
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 22;

/// Calls piece(device part, its bytes, staging) for one piece after another.
template <class T, class Piece>
void for_pieces(const VectorRef<T>& view, const Piece& piece) {
  const std::size_t most = std::min(view.extent(0), kPieceBytes / sizeof(T));
  const HostVector<std::remove_const_t<T>> staging(uninitialized("deltapipe::State::staging"),
                                                   most);
  for (std::size_t first = 0; first < view.extent(0); first += most) {
    const std::size_t count = std::min(most, view.extent(0) - first);
    piece(VectorRef<T>(view.data() + first, count),
          Kokkos::subview(staging, Kokkos::make_pair(std::size_t{0}, count)));
  }
}

}  // namespace state_views

/// Writes `view`, which holds the elements of `shape` without gaps. Waits for the work queued on
/// exec. kStaged: through host memory, in pieces.
template <bool kStaged = !state_views::kOnHost, class T>
void write_view(StateWriter& writer, const ExecSpace& exec, const std::string& name,
                const VectorRef<T>& view, const std::vector<std::uint64_t>& shape) {
  writer.begin_item({name, state_type_of<std::remove_const_t<T>>(), shape});
  if constexpr (!kStaged) {
    exec.fence();
    writer.append(view.data(), sizeof(T) * view.extent(0));
  } else {
    state_views::for_pieces(view, [&](const auto& part, const auto& staged) {
      Kokkos::deep_copy(exec, staged, part);
      exec.fence();
      writer.append(staged.data(), sizeof(T) * staged.extent(0));
    });
  }
}

/// Reads `view`; complete when it returns.
template <bool kStaged = !state_views::kOnHost, class T>
void read_view(StateReader& reader, const ExecSpace& exec, const std::string& name,
               const VectorRef<T>& view, const std::vector<std::uint64_t>& shape) {
  reader.begin_item({name, state_type_of<T>(), shape});
  if constexpr (!kStaged) {
    exec.fence();
    reader.take(view.data(), sizeof(T) * view.extent(0));
  } else {
    state_views::for_pieces(view, [&](const auto& part, const auto& staged) {
      reader.take(staged.data(), sizeof(T) * staged.extent(0));
      Kokkos::deep_copy(exec, part, staged);
      exec.fence();
    });
  }
}

}  // namespace deltapipe
