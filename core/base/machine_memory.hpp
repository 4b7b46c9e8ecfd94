// SPDX-License-Identifier: BSD-3-Clause
// What memory this process uses and what the machine has, as Linux tells it.
#pragma once

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

}  // namespace deltapipe
