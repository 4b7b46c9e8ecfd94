// SPDX-License-Identifier: BSD-3-Clause
// The mode of a processor: it computes with denormal numbers (in fp32 those below 1.2e-38) or
// treats them as zeros. On many processors an operation on them is a hundred times as slow. Models
// and optimizers do not need denormal numbers. Codecs and memories use them, because both ends of a
// boundary must have the same bits, on every device.
#pragma once

#include <cstdint>

namespace deltapipe {

/// Mode of the calling thread, in the format of its processor; 0 on processors whose mode cannot be
/// set here.
using FloatingPointMode = std::uint64_t;
FloatingPointMode floating_point_mode();

/// Sets the mode of the calling thread during its lifetime.
class FloatingPointScope {
 public:
  explicit FloatingPointScope(FloatingPointMode mode);
  ~FloatingPointScope();
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;

 private:
  FloatingPointMode before_;
};

/// During its lifetime, the calling thread and the kernels that it shares with a HostTeam follow
/// IEEE 754, with denormal numbers and rounding to nearest. This overrides the mode that a library
/// has set: a library linked with -ffast-math sets another one before main().
class ExactArithmetic {
 public:
  ExactArithmetic();

 private:
  FloatingPointScope scope_;
};

/// During its lifetime, denormal numbers are zeros for the calling thread and for the kernels that
/// it shares with a HostTeam. Has no effect on GPUs and on processors whose mode cannot be set
/// here.
class FlushedDenormals {
 public:
  FlushedDenormals();

 private:
  FloatingPointScope scope_;
};

}  // namespace deltapipe
