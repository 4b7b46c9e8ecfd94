# SPDX-License-Identifier: BSD-3-Clause
# Kokkos, fmt and the standard library are most of what a compiler reads in nearly every source: read
# once. CMAKE_DISABLE_PRECOMPILE_HEADERS=ON is CMake's own switch. That each source includes what it
# uses is shown without them: by clang-tidy for sources that change, by style.headers for installed headers.
#
# deltapipe_precompile(<target> [<other>]): for all sources of a target, or the ones of another
# target, whose compile options must be the same.
set(precompiled_headers <Kokkos_Core.hpp> <algorithm> <array> <chrono> <cmath> <condition_variable>
  <cstdint> <cstring> <deque> <exception> <filesystem> <functional> <limits> <map> <memory> <mutex>
  <optional> <set> <span> <sstream> <stdexcept> <string> <string_view> <thread> <tuple>
  <unordered_map> <utility> <variant> <vector> <fmt/format.h>)
if(Kokkos_ENABLE_CUDA OR Kokkos_ENABLE_HIP OR Kokkos_ENABLE_SYCL)
  set(CMAKE_DISABLE_PRECOMPILE_HEADERS ON)  # their compilers read a source once a processor
endif()
# A compiler cache may return the headers of another checkout, whose definitions differ: GCC then
# reads the text instead, and there is nothing to warn of.
set(CMAKE_PCH_WARN_INVALID OFF)
if(NOT CMAKE_DISABLE_PRECOMPILE_HEADERS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU"
    AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # The same cause as -Wrestrict's false positives. GCC ignores them in system headers,
  # but no longer recognises these when they are precompiled.
  target_compile_options(deltapipe_options INTERFACE -Wno-stringop-overflow -Wno-array-bounds)
endif()

function(deltapipe_precompile target)
  if(ARGC GREATER 1)
    target_precompile_headers(${target} REUSE_FROM ${ARGV1})
  else()
    target_precompile_headers(${target} PRIVATE ${precompiled_headers})
  endif()
endfunction()
