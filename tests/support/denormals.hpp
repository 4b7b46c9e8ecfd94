// SPDX-License-Identifier: BSD-3-Clause
#pragma once

namespace deltapipe::test {

/// Whether the calling thread takes denormal numbers for zeros, or makes zeros of them.
inline bool denormals_vanish() {
  const volatile float denormal = 1e-39f, normal = 2e-38f, fraction = 0.1f;
  return denormal * 8 == 0 || normal * fraction == 0;
}

}  // namespace deltapipe::test
