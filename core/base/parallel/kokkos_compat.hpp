// SPDX-License-Identifier: BSD-3-Clause
// The one place where Kokkos 3.4 (Debian 12) and current Kokkos 4.x/5.x differ.
#pragma once

#include <Kokkos_Core.hpp>
#include <array>
#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>

#if defined(KOKKOS_ENABLE_OPENMP)
#include <omp.h>
#endif

namespace deltapipe {

using ExecSpace = Kokkos::DefaultExecutionSpace;
using MemSpace = ExecSpace::memory_space;

/// True if kernels run on the host's cores; rows are then reduced in fixed vector lanes.
inline constexpr bool kHostExecution = std::is_same_v<ExecSpace, Kokkos::DefaultHostExecutionSpace>;

#if defined(KOKKOS_ENABLE_SERIAL)
inline constexpr bool kSerialExecution = std::is_same_v<ExecSpace, Kokkos::Serial>;
#else
inline constexpr bool kSerialExecution = false;
#endif
#if defined(KOKKOS_ENABLE_OPENMP)
inline constexpr bool kOpenMpExecution = std::is_same_v<ExecSpace, Kokkos::OpenMP>;
#else
inline constexpr bool kOpenMpExecution = false;
#endif

/// True if a HostTeam shares kernels (core/base/parallel/kernel.hpp): with its own threads if
/// Kokkos has one thread, with OpenMP's if Kokkos uses OpenMP.
inline constexpr bool kTeamExecution = kSerialExecution || kOpenMpExecution;

// Host memory that a device reads and writes without staging.
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

/// Begins the lambda of a kernel, as KOKKOS_LAMBDA does. With nvcc it is for the device alone: the
/// functions that copy a lambda for both are variables of each translation unit. If two units
/// instantiate a kernel's template, the linker may merge one's template with the other's copy,
/// whose variables are null.
#if defined(KOKKOS_ENABLE_CUDA) && defined(__CUDACC__) && !defined(__clang__)
#define DELTAPIPE_LAMBDA [=] __device__
#else
#define DELTAPIPE_LAMBDA KOKKOS_LAMBDA
#endif

/// Calls body() on the calling thread, as one kernel that tools see.
template <class Body>
void as_one_kernel(const char* label, const ExecSpace& exec, const Body& body) {
  if constexpr (kOpenMpExecution) {
    // A kernel of Kokkos would occupy all of its threads, which then could not share the body.
    namespace tools = Kokkos::Tools;
    const bool is_watched = tools::profileLibraryLoaded();
    std::uint64_t kernel = 0;
    if (is_watched) tools::beginParallelFor(label, tools::Experimental::device_id(exec), &kernel);
    body();
    if (is_watched) tools::endParallelFor(kernel);
  } else {
    Kokkos::parallel_for(label, Kokkos::RangePolicy<ExecSpace>(exec, 0, 1), [&](int) { body(); });
  }
}

/// Sets the number of threads with which Kokkos starts, if it has threads and its own variables do
/// not set another number.
inline void propose_kokkos_threads([[maybe_unused]] int threads) {
#if defined(KOKKOS_ENABLE_OPENMP)
  omp_set_num_threads(threads);
#endif
}

/// Returns separate instances if the backend has streams, so that kernels and copies may overlap;
/// otherwise the default instance three times.
inline std::array<ExecSpace, 3> separate_instances() {
#if KOKKOS_VERSION >= 40000
  if constexpr (!kHostExecution) {
    const auto made = Kokkos::Experimental::partition_space(ExecSpace(), 1, 1, 1);
    return {made[0], made[1], made[2]};
  }
#endif
  return {};
}

/// Returns false if the backend cannot tell.
template <class Space>
bool is_same_instance(const Space& a, const Space& b) {
  if constexpr (requires { static_cast<bool>(a == b); })
    return a == b;
  else
    return false;
}

/// Makes work that is queued on `later` from now on wait for all work queued on `earlier` so far.
/// With streams the host does not wait.
inline void order_after(const ExecSpace& later, const ExecSpace& earlier) {
#if defined(KOKKOS_ENABLE_CUDA)
  if (later.cuda_stream() == earlier.cuda_stream()) return;
  const auto check = [](cudaError_t error) {
    if (error != cudaSuccess)
      throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(error));
  };
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  check(cudaEventRecord(event, earlier.cuda_stream()));
  check(cudaStreamWaitEvent(later.cuda_stream(), event, 0));
  check(cudaEventDestroy(event));  // is freed after it has occurred
#elif defined(KOKKOS_ENABLE_HIP)
  if (later.hip_stream() == earlier.hip_stream()) return;
  const auto check = [](hipError_t error) {
    if (error != hipSuccess)
      throw std::runtime_error(std::string("HIP: ") + hipGetErrorString(error));
  };
  hipEvent_t event = nullptr;
  check(hipEventCreateWithFlags(&event, hipEventDisableTiming));
  check(hipEventRecord(event, earlier.hip_stream()));
  check(hipStreamWaitEvent(later.hip_stream(), event, 0));
  check(hipEventDestroy(event));  // is freed after it has occurred
#else
  if (!is_same_instance(later, earlier)) earlier.fence();
#endif
}

}  // namespace deltapipe
