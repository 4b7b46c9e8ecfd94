// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/gpu_aware_mpi.hpp"

#include <mpi.h>
#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <string>

#include "core/base/error.hpp"
#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

namespace {

constexpr bool kHostMemory = Kokkos::SpaceAccessibility<Kokkos::HostSpace, MemSpace>::accessible;

/// Asks Open MPI, MPICH and their derivatives through their own interfaces.
[[maybe_unused]] GpuAwareness awareness_of_library() {
  [[maybe_unused]] const auto answer = [](bool says_yes) {
    return says_yes ? GpuAwareness::yes : GpuAwareness::no;
  };
#if defined(KOKKOS_ENABLE_CUDA) && defined(MPIX_CUDA_AWARE_SUPPORT)
  return answer(MPIX_Query_cuda_support() == 1);
#elif defined(KOKKOS_ENABLE_HIP) && defined(MPIX_ROCM_AWARE_SUPPORT)
  return answer(MPIX_Query_rocm_support() == 1);
#elif defined(KOKKOS_ENABLE_CUDA) && defined(MPIX_GPU_SUPPORT_CUDA)
  int supported = 0;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_CUDA, &supported) != MPI_SUCCESS)
    return GpuAwareness::unknown;
  return answer(supported != 0);
#elif defined(KOKKOS_ENABLE_HIP) && defined(MPIX_GPU_SUPPORT_HIP)
  int supported = 0;
  if (MPIX_GPU_query_support(MPIX_GPU_SUPPORT_HIP, &supported) != MPI_SUCCESS)
    return GpuAwareness::unknown;
  return answer(supported != 0);
#else
  return GpuAwareness::unknown;
#endif
}

/// Returns the first line of the library's version text.
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "the MPI library";
  const std::string name(text, static_cast<std::size_t>(length));
  return name.substr(0, name.find_first_of(",\n"));
}

}  // namespace

GpuAwareness gpu_awareness_of_mpi() {
  if constexpr (kHostMemory)
    return GpuAwareness::yes;
  else
    return awareness_of_library();
}

void check_gpu_aware_mpi(GpuAwareness awareness) {
  if (awareness != GpuAwareness::no) return;
  throw UserError({.what = library_name() + " reports that it cannot read and write GPU memory",
                   .value = "pipeline.gpu_aware_mpi = true",
                   .remedy = "use an MPI library that was built for these GPUs (with CUDA or ROCm "
                             "support), or set pipeline.gpu_aware_mpi to false",
                   .keys = {"pipeline.gpu_aware_mpi"}});
}

}  // namespace deltapipe
