// SPDX-License-Identifier: BSD-3-Clause
// What memory this process uses and what the machine has, as Linux tells it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace deltapipe {

struct ProcessMemory {
  std::uint64_t resident = 0;  ///< bytes now; 0: unknown
  std::uint64_t peak = 0;      ///< highest so far
};

/// Of this process since it was started.
ProcessMemory process_memory();

struct MachineMemory {
  std::uint64_t total = 0;      ///< bytes that processes here may use together; 0: unknown
  std::uint64_t available = 0;  ///< of these, not in use by others now
};

/// The machine's memory, or that of the control group (container, batch job) where that is less.
MachineMemory machine_memory();

/// Asks for huge pages in [memory, memory + bytes), before it is first written: kernels that stream
/// through arenas, and a BLAS that packs columns of matrices, then miss the page table less. A
/// hint; systems without it go on with small pages.
void prefer_huge_pages(void* memory, std::size_t bytes);

}  // namespace deltapipe
