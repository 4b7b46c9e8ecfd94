// SPDX-License-Identifier: BSD-3-Clause
// On which execution space instances a rank's work is queued. A kernel, a copy or a BLAS call takes
// the instance that it is given; what one instance needs of another is ordered by order_after();
// the host waits (fence) where it reads or reuses memory that an instance works on, and before it
// begins to wait for a message, so that kernels are not counted as waiting. Memory is taken when
// objects are built, on the default instance, which Kokkos waits for.
#pragma once

#include "core/base/parallel/kokkos_compat.hpp"

namespace deltapipe {

/// By default all the same instance.
struct ExecutionInstances {
  ExecSpace compute;  ///< kernels of the model and the optimizer
  ExecSpace codec;    ///< encoding and decoding, hashes of memories
  ExecSpace copy;     ///< between host and device
};

/// One set a rank: with streams three instances of their own.
inline ExecutionInstances make_execution_instances() {
  const auto [compute, codec, copy] = separate_instances();
  return {compute, codec, copy};
}

}  // namespace deltapipe
