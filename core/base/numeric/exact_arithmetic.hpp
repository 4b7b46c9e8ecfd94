// SPDX-License-Identifier: BSD-3-Clause
// Refuses compiler options under which the codecs' arithmetic is no longer IEEE 754's: both ends of
// a boundary would keep different memories, and NaN would pass for a number. Options that define
// no macro are refused when CMake configures (scripts/cmake/ExactArithmetic.cmake).
#pragma once

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__USE_FAST_MATH__)
#error \
    "deltapipe's codecs need exact arithmetic: compile without -ffast-math, -Ofast and their parts"
#endif

// x87 registers: every operation would have more digits than fp32 until a value is stored.
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ > 0 && __FLT_EVAL_METHOD__ < 16
#error "deltapipe's codecs need fp32 arithmetic: compile with -msse2 -mfpmath=sse"
#endif
