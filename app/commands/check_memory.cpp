// SPDX-License-Identifier: BSD-3-Clause
#include "app/commands/check_memory.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "app/output/progress_display.hpp"
#include "app/preflight/warnings.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/device_memory.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

void print_memory(const Settings& settings, const std::vector<RankMemory>& ranks) {
  const auto row = [](const char* name, const auto& cell) {
    std::printf("# %-22s", name);
    cell();
    std::printf("\n");
  };
  const int count = settings.pipeline.pipeline_ranks();
  const auto cells = [&](const auto& bytes_of) {
    return [&ranks, count, bytes_of] {
      for (int r = 0; r < count; ++r) std::printf("  %9s", bytes_text(bytes_of(ranks[r])).c_str());
    };
  };
  std::printf("#\n");
  row(settings.pipeline.stages_per_rank > 1 ? "memory of rank" : "memory of a rank, stage", [&] {
    for (int r = 0; r < count; ++r) std::printf("  %9d", r);
  });
  for (std::size_t use = 0; use < kMemoryUses; ++use) {
    const auto what = static_cast<MemoryUse>(use);
    if (std::all_of(ranks.begin(), ranks.end(),
                    [&](const RankMemory& r) { return r.ledger.bytes(what) == 0; }))
      continue;
    row(kMemoryUseNames[use], cells([what](const RankMemory& r) { return r.ledger.bytes(what); }));
  }
  row("program and data", cells([](const RankMemory& r) { return r.process; }));
  row("loading or saving", cells([](const RankMemory& r) {
        RankMemory without = r;
        without.checkpoint = 0;
        return without.host_peak() - r.process - r.ledger.host_bytes();
      }));
  if (ranks.front().checkpoint > 0)
    row("checkpoint", cells([](const RankMemory& r) { return r.checkpoint; }));
  row("peak", cells([](const RankMemory& r) { return r.host_peak(); }));
  if (ranks.front().device_peak() > 0)
    row("peak on the device", cells([](const RankMemory& r) { return r.device_peak(); }));
}

void print_machine(const std::vector<RankMemory>& ranks, bool ranks_are_here) {
  std::uint64_t all = 0;
  for (const RankMemory& rank : ranks) all += rank.host_peak();
  const MachineMemory machine = machine_memory();
  std::printf("# all %zu rank(s): %s; this machine: %s, %s of it free\n", ranks.size(),
              bytes_text(all).c_str(), bytes_text(machine.total).c_str(),
              bytes_text(machine.available).c_str());
  if (all <= machine.available || ranks_are_here) return;
  std::size_t held = 0;
  for (std::uint64_t sum = 0; held < ranks.size(); ++held) {
    sum += ranks[held].host_peak();
    if (sum > machine.total) break;
  }
  if (held < ranks.size())
    std::printf("# warning: this machine holds %zu of the %zu ranks\n", held, ranks.size());
  else
    std::printf("# warning: other programs have to leave some of it first\n");
}

void print_device(const std::vector<RankMemory>& ranks, bool ranks_are_here) {
  const DeviceMemory device = device_memory();
  if (device.total == 0) return;
  std::uint64_t largest = 0;
  for (const RankMemory& rank : ranks) largest = std::max(largest, rank.device_peak());
  std::printf("# this device: %s, %s of it free\n", bytes_text(device.total).c_str(),
              bytes_text(device.available).c_str());
  if (largest > device.total && !ranks_are_here)
    std::printf("# warning: this device does not hold every rank\n");
}

void print_disk(const std::vector<DiskNeed>& needs) {
  for (const DiskNeed& need : needs) {
    std::error_code error;
    const fs::space_info space = fs::space(existing_parent(need.directory), error);
    std::printf("# disk: %s more in %s", bytes_text(need.bytes).c_str(), need.directory.c_str());
    if (!error) std::printf(", %s free", bytes_text(space.available).c_str());
    std::printf("\n");
  }
  print_warning_lines(warnings_of_disk(needs));
}

}  // namespace deltapipe
