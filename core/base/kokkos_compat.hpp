// SPDX-License-Identifier: BSD-3-Clause
// The one place where Kokkos 3.4 (Debian 12) and current Kokkos 4.x/5.x differ.
#pragma once

#include <Kokkos_Core.hpp>
#include <cmath>
#include <type_traits>

namespace deltapipe {

using ExecSpace = Kokkos::DefaultExecutionSpace;
using MemSpace = ExecSpace::memory_space;

/// True where kernels run on the host's cores: rows are then reduced in fixed vector lanes.
inline constexpr bool kHostExecution = std::is_same_v<ExecSpace, Kokkos::DefaultHostExecutionSpace>;

// Host memory that a device copies from and to without staging.
#if defined(KOKKOS_ENABLE_CUDA)
using StagingSpace = Kokkos::CudaHostPinnedSpace;
#elif defined(KOKKOS_ENABLE_HIP)
#if KOKKOS_VERSION >= 40000
using StagingSpace = Kokkos::HIPHostPinnedSpace;
#else
using StagingSpace = Kokkos::Experimental::HIPHostPinnedSpace;
#endif
#else
using StagingSpace = Kokkos::HostSpace;
#endif

}  // namespace deltapipe
