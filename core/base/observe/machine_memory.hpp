// SPDX-License-Identifier: BSD-3-Clause
// Memory that this process uses, and memory and processor time that the machine, or the control
// group of a container or batch job, has for it, as Linux reports them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>

namespace deltapipe {

struct ProcessMemory {
  std::uint64_t resident = 0;  ///< bytes now; 0: unknown
  std::uint64_t peak = 0;      ///< highest so far
};

/// Memory of this process since its start.
ProcessMemory process_memory();

struct MachineMemory {
  std::uint64_t total = 0;      ///< bytes that processes here may use together; 0: unknown
  std::uint64_t available = 0;  ///< of these, not in use by others now
};

/// The machine's memory, or that of the control group (container, batch job) where that is less.
MachineMemory machine_memory();

/// The number of cores whose time the process's control groups leave it: the least that a group
/// between its own and the root's allows; 0: no group has a limit. `root` replaces "/" in tests.
double cpu_quota(const std::filesystem::path& root = "/");

/// Asks for huge pages in [memory, memory + bytes), before it is first written: kernels that stream
/// through arenas, and a BLAS that packs columns of matrices, then miss the page table less. A
/// hint; systems without it go on with small pages.
void prefer_huge_pages(void* memory, std::size_t bytes);

/// The name of this machine, for people; "unknown" where the system does not say.
std::string host_name();

}  // namespace deltapipe
