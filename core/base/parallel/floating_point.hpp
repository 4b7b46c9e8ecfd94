// SPDX-License-Identifier: BSD-3-Clause
// Whether a processor computes with denormal numbers (in fp32 those below 1.2e-38) or takes and
// makes zeros for them. With them an operation costs a hundredfold on many processors; what models
// and optimizers compute does not need them. What both ends of a boundary have to know to the bit
// does: codecs and memories are computed with denormal numbers, as on every other device.
#pragma once

#include <cstdint>

namespace deltapipe {

/// The calling thread's, as its processor has it; 0 where it is not known how to set it.
using FloatingPointMode = std::uint64_t;
FloatingPointMode floating_point_mode();

/// The calling thread is in a mode as long as this lives.
class FloatingPointScope {
 public:
  explicit FloatingPointScope(FloatingPointMode mode);
  ~FloatingPointScope();
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;

 private:
  FloatingPointMode before_;
};

/// As long as this lives, the calling thread and what it shares with a HostTeam compute as IEEE 754
/// has it, with denormal numbers and rounding to nearest, whatever mode a library has left: one
/// that was linked with -ffast-math sets another before main().
class ExactArithmetic {
 public:
  ExactArithmetic();

 private:
  FloatingPointScope scope_;
};

/// As long as this lives, denormal numbers are zeros where the calling thread computes and in what
/// it shares with a HostTeam; nothing on GPUs, and where it is not known how.
class FlushedDenormals {
 public:
  FlushedDenormals();

 private:
  FloatingPointScope scope_;
};

}  // namespace deltapipe
