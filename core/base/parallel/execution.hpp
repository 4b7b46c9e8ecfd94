// SPDX-License-Identifier: BSD-3-Clause
// The execution space instances on which a rank queues its work. Kernels, copies and BLAS calls run
// on the instance that they receive. order_after() orders work of one instance after another's.
// The host waits (fence) before it reads or reuses memory that an instance uses. It also waits
// before it begins to wait for a message, so that kernels do not count as waiting. Objects allocate
// memory when they are built, on the default instance, which Kokkos waits for.
#pragma once

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

/// All of them are the same instance by default.
struct ExecutionInstances {
  ExecSpace compute;  ///< kernels of the model and the optimizer
  ExecSpace codec;    ///< encoding and decoding, hashes of memories
  ExecSpace copy;     ///< copies between host and device
};

/// Returns the set of a rank: three separate instances if the backend has streams.
inline ExecutionInstances make_execution_instances() {
  const auto [compute, codec, copy] = separate_instances();
  return {compute, codec, copy};
}

}  // namespace deltapipe
