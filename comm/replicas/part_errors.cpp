// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/part_errors.hpp"

#include "core/base/state/state_views.hpp"

namespace deltapipe {

PartErrors::PartErrors(std::size_t elements, const ViewAllocator& memory)
    : error_(memory.zeroed<Vector<std::uint16_t>>(MemoryUse::replicas,
                                                  "deltapipe::PartErrors::errors", elements)),
      scale_(memory.zeroed<Vector<std::uint16_t>>(
          MemoryUse::replicas, "deltapipe::PartErrors::scales", groups_of(elements))),
      squares_(memory.zeroed<Matrix<float>>(MemoryUse::replicas, "deltapipe::PartErrors::squares",
                                            groups_of(elements), 2)) {}

std::vector<StatePart> PartErrors::state(const ExecSpace& exec, const std::string& name) {
  StatePart part;
  part.name = name;
  // The state's types have no 16-bit numbers.
  const auto bytes_of = [](const Vector<std::uint16_t>& view) {
    return VectorRef<std::uint8_t>(reinterpret_cast<std::uint8_t*>(view.data()),
                                   sizeof(std::uint16_t) * view.extent(0));
  };
  part.write = [this, exec, bytes_of](StateWriter& writer) {
    write_view(writer, exec, "errors", bytes_of(error_), {2 * error_.extent(0)});
    write_view(writer, exec, "error_scales", bytes_of(scale_), {2 * scale_.extent(0)});
  };
  part.read = [this, exec, bytes_of](StateReader& reader) {
    read_view(reader, exec, "errors", bytes_of(error_), {2 * error_.extent(0)});
    read_view(reader, exec, "error_scales", bytes_of(scale_), {2 * scale_.extent(0)});
  };
  return {part};
}

SumStatistics PartErrors::statistics(const ExecSpace& exec) const {
  const auto host = Kokkos::create_mirror_view(squares_);
  Kokkos::deep_copy(exec, host, squares_);
  exec.fence();
  SumStatistics sums;
  for (std::size_t group = 0; group < host.extent(0); ++group) {
    sums.error2 += host(group, 0);
    sums.signal2 += host(group, 1);
  }
  return sums;
}

void PartErrors::reset(const ExecSpace& exec) {
  Kokkos::deep_copy(exec, error_, std::uint16_t{0});
  Kokkos::deep_copy(exec, scale_, std::uint16_t{0});
}

}  // namespace deltapipe
