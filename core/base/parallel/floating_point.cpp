// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/parallel/floating_point.hpp"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace deltapipe {

namespace {

#if defined(__SSE__)

constexpr FloatingPointMode kFlushed = 0x8040;  // results (FTZ) and operands (DAZ)
constexpr FloatingPointMode kRounding = 0x6000;
constexpr FloatingPointMode kEvents = 0x3f;  // exceptions so far, not part of the mode

FloatingPointMode read() {
  return _mm_getcsr();
}
void write(FloatingPointMode mode) {
  _mm_setcsr(static_cast<unsigned>(mode));
}

#elif defined(__aarch64__)

constexpr FloatingPointMode kFlushed = FloatingPointMode{1} << 24;   // FZ
constexpr FloatingPointMode kRounding = FloatingPointMode{3} << 22;  // RMode
constexpr FloatingPointMode kEvents = 0;

FloatingPointMode read() {
  FloatingPointMode mode = 0;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void write(FloatingPointMode mode) {
  asm volatile("msr fpcr, %0" : : "r"(mode));
}

#else

constexpr FloatingPointMode kFlushed = 0, kRounding = 0, kEvents = 0;

FloatingPointMode read() {
  return 0;
}
void write(FloatingPointMode) {}

#endif

}  // namespace

FloatingPointMode floating_point_mode() {
  return read() & ~kEvents;
}

FloatingPointScope::FloatingPointScope(FloatingPointMode mode) : before_(floating_point_mode()) {
  if (mode != before_) write(mode);
}

FloatingPointScope::~FloatingPointScope() {
  if (floating_point_mode() != before_) write(before_);
}

ExactArithmetic::ExactArithmetic() : scope_(floating_point_mode() & ~(kFlushed | kRounding)) {}

FlushedDenormals::FlushedDenormals() : scope_(floating_point_mode() | kFlushed) {}

}  // namespace deltapipe
