// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/observe/machine_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>

namespace deltapipe {

namespace {

namespace fs = std::filesystem;

/// Returns the value of a name, in kB, from a file of lines "Name:  value kB"; 0: none.
std::uint64_t kilobytes_of(const char* file, const std::string& name) {
  std::ifstream stream(file);
  for (std::string line; std::getline(stream, line);)
    if (line.starts_with(name + ":"))
      return std::strtoull(line.c_str() + name.size() + 1, nullptr, 10);
  return 0;
}

/// Returns the number in a file; nothing for "max" and for files that cannot be read.
std::optional<std::uint64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  std::uint64_t value = 0;
  if (stream >> value) return value;
  return std::nullopt;
}

/// Calls `look` for each control group that limits this process by `controller`, from its own up to
/// the root's, with the group's directory and true if the groups are of version 2.
void for_each_group(const fs::path& root, const std::string& controller,
                    const std::function<void(const fs::path&, bool)>& look) {
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/PATH" in version 2, "N:CONTROLLERS:/PATH" in version 1.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const bool unified = controllers == ",,";
    if (!unified && controllers.find("," + controller + ",") == std::string::npos) continue;
    const fs::path mount = root / "sys/fs/cgroup" / (unified ? "" : controller);
    fs::path group = line.substr(second + 1);
    for (bool top = false; !top; group = group.parent_path()) {
      top = group == group.parent_path();
      look(mount / group.relative_path(), unified);
    }
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
  for_each_group("/", "memory", [&](const fs::path& group, bool unified) {
    const auto limit = number_in(group / (unified ? "memory.max" : "memory.limit_in_bytes"));
    if (!limit || *limit >= memory.total) return;
    const auto usage = number_in(group / (unified ? "memory.current" : "memory.usage_in_bytes"));
    memory.total = *limit;
    memory.available = std::min(memory.available, *limit - std::min(*limit, usage.value_or(0)));
  });
  return memory;
}

double cpu_quota(const fs::path& root) {
  double least = 0;
  for_each_group(root, "cpu", [&](const fs::path& group, bool unified) {
    double quota = 0, period = 0;
    if (unified) {
      std::ifstream file(group / "cpu.max");
      if (!(file >> quota >> period)) return;  // "max" is not a number
    } else {
      std::ifstream quota_file(group / "cpu.cfs_quota_us"),
          period_file(group / "cpu.cfs_period_us");
      if (!(quota_file >> quota && period_file >> period)) return;
    }
    if (quota <= 0 || period <= 0) return;
    least = least > 0 ? std::min(least, quota / period) : quota / period;
  });
  return least;
}

void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] std::size_t bytes) {
#ifdef MADV_HUGEPAGE
  // Whole pages of this size only, so that no neighbour's memory grows.
  constexpr std::uintptr_t kHugePage = std::uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugePage - 1) & ~(kHugePage - 1);
  const std::uintptr_t end = (begin + bytes) & ~(kHugePage - 1);
  // Fails if the kernel does not support it, which changes no result.
  if (first < end)
    static_cast<void>(
        madvise(static_cast<char*>(memory) + (first - begin), end - first, MADV_HUGEPAGE));
#endif
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

}  // namespace deltapipe
