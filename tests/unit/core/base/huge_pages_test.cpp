// SPDX-License-Identifier: BSD-3-Clause
// Arenas ask for huge pages before they are written.
#include <catch2/catch.hpp>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "core/base/observe/memory_ledger.hpp"

using namespace deltapipe;

namespace {

/// Flags of the mapping that holds an address, as /proc/self/smaps has them: "rd wr mr mw hg ...".
std::string mapping_flags(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t first = 0, end = 0;
    char dash = 0;
    if (words >> std::hex >> first >> dash >> end && dash == '-')
      inside = first <= wanted && wanted < end;
    else if (inside && line.starts_with("VmFlags:"))
      return line;
  }
  return "";
}

using Floats = Kokkos::View<float*, Layout, Kokkos::HostSpace>;
constexpr std::size_t kElements = std::size_t{4} << 20;  // 16 MiB

}  // namespace

TEST_CASE("arenas ask for huge pages", "[memory]") {
  if (!std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled")) {
    WARN("no huge pages in this kernel");
    return;
  }
  const ViewAllocator memory;
  const auto raw = memory.uninitialized<Floats>(MemoryUse::workspace, "test::raw", kElements);
  const auto zeros = memory.zeroed<Floats>(MemoryUse::weights, "test::zeros", kElements);
  for (const float* const middle : {raw.data() + kElements / 2, zeros.data() + kElements / 2})
    CHECK(mapping_flags(middle).find(" hg") != std::string::npos);
}

TEST_CASE("a zeroed arena is zero, to its last element", "[memory]") {
  const ViewAllocator memory;
  for (const std::size_t elements : {std::size_t{0}, std::size_t{1}, kElements + 3}) {
    const auto zeros = memory.zeroed<Floats>(MemoryUse::weights, "test::zeros", elements);
    REQUIRE(zeros.extent(0) == elements);
    std::size_t others = 0;
    for (std::size_t i = 0; i < elements; ++i) others += zeros(i) != 0.0f ? 1 : 0;
    CHECK(others == 0);
  }
}
