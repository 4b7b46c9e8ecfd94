// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/machine_memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace deltapipe {

namespace {

namespace fs = std::filesystem;

/// The value in kB behind a name in a file of lines "Name:  value kB"; 0: none.
std::uint64_t kilobytes_of(const char* file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(name + ":"))
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
  return 0;
}

/// A file of one number; "max" and what cannot be read are no number.
std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  std::uint64_t value = 0;
  if (stream >> value) return value;
  return std::nullopt;
}

/// Limits the memory to that of a control group and those above it.
void limit_by_group(const fs::path& mount, fs::path group, const char* limit_file,
                    const char* usage_file, MachineMemory& memory) {
  for (bool top = false; !top; group = group.parent_path()) {
    top = group == group.parent_path();
    const fs::path directory = mount / group.relative_path();
    const std::optional<std::uint64_t> limit = number_in(directory / limit_file);
    if (!limit || *limit >= memory.total) continue;
    const std::uint64_t used = std::min(*limit, number_in(directory / usage_file).value_or(0));
    memory.total = *limit;
    memory.available = std::min(memory.available, *limit - used);
  }
}

}  // namespace

ProcessMemory process_memory() {
  ProcessMemory memory;
  memory.resident = 1024 * kilobytes_of("/proc/self/status", "VmRSS");
  memory.peak = 1024 * kilobytes_of("/proc/self/status", "VmHWM");
  return memory;
}

MachineMemory machine_memory() {
  MachineMemory memory;
  memory.total = 1024 * kilobytes_of("/proc/meminfo", "MemTotal");
  memory.available = 1024 * kilobytes_of("/proc/meminfo", "MemAvailable");
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/PATH" in version 2, "N:CONTROLLERS:/PATH" in version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const fs::path path = line.substr(second + 1);
    if (controllers == ",,")
      limit_by_group("/sys/fs/cgroup", path, "memory.max", "memory.current", memory);
    else if (controllers.find(",memory,") != std::string::npos)
      limit_by_group("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes",
                     "memory.usage_in_bytes", memory);
  }
  return memory;
}

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  // Whole pages of this size only, so that no neighbour's memory grows.
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugePage - 1) & ~(kHugePage - 1);
  const std::uintptr_t end = (begin + bytes) & ~(kHugePage - 1);
  // Fails where the kernel has none, which changes no result.
  if (first < end)
    static_cast<void>(
        madvise(static_cast<char*>(memory) + (first - begin), end - first, MADV_HUGEPAGE));
#endif
}

}  // namespace deltapipe
