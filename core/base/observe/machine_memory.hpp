// SPDX-License-Identifier: BSD-3-Clause
// Memory that this process uses, and the memory and processor time available to it on the machine
// or in the control group of a container or batch job, as Linux reports them.
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

/// Returns the memory of this process since its start.
ProcessMemory process_memory();

struct MachineMemory {
  std::uint64_t total = 0;      ///< bytes that processes here may use together; 0: unknown
  std::uint64_t available = 0;  ///< of these, not in use by others now
};

/// Returns the memory of the machine or, if it is less, of the control group (container, batch
/// job).
MachineMemory machine_memory();

/// Returns the number of cores whose time the control groups allow this process: the least limit
/// from its own group to the root's; 0: no group has a limit. `root` replaces "/" in tests.
double cpu_quota(const std::filesystem::path& root = "/");

/// Asks for huge pages in [memory, memory + bytes), before the first write. Kernels that stream
/// through arenas, and a BLAS that packs columns of matrices, then have fewer TLB misses. This is a
/// hint; systems without huge pages continue with small ones.
void prefer_huge_pages(void* memory, std::size_t bytes);

/// Returns the name of this machine, for people; "unknown" if it cannot be read.
std::string host_name();

}  // namespace deltapipe
