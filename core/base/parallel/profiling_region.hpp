// SPDX-License-Identifier: BSD-3-Clause
// Names parts of a step to Kokkos' profiling tools, which count the kernels in them.
#pragma once

#include <Kokkos_Core.hpp>

namespace deltapipe {

/// Kernels launched during its lifetime belong to the region `label`; regions nest.
class ProfilingRegion {
 public:
  explicit ProfilingRegion(const char* label) { Kokkos::Profiling::pushRegion(label); }
  ~ProfilingRegion() { Kokkos::Profiling::popRegion(); }
  ProfilingRegion(const ProfilingRegion&) = delete;
  ProfilingRegion& operator=(const ProfilingRegion&) = delete;
};

}  // namespace deltapipe
