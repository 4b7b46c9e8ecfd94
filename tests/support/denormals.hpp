// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace deltapipe::test {

/// True if the calling thread reads denormal numbers as zeros, or flushes them to zero.
inline bool denormals_vanish() {
  const volatile float denormal = 1e-39f, normal = 2e-38f, fraction = 0.1f;
  return denormal * 8 == 0 || normal * fraction == 0;
}

}  // namespace deltapipe::test
