# SPDX-License-Identifier: BSD-3-Clause
# deltapipe_options: the flags that deltapipe itself is compiled with; not exported.
add_library(deltapipe_options INTERFACE)
target_compile_options(deltapipe_options INTERFACE -Wall -Wextra -Wshadow
  # Neither changes a result; both are in the way of vectorising.
  -fno-math-errno -fno-trapping-math)
if(NOT Kokkos_ENABLE_CUDA)  # nvcc's own generated code is not pedantic
  target_compile_options(deltapipe_options INTERFACE -Wpedantic)
endif()
if(Kokkos_ENABLE_CUDA AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # constexpr functions, the standard library's included, are called in kernels; nvcc's front end
  # warns of pragmas that are for GCC behind it. fmt 9 turns its constant expressions off under nvcc,
  # and then fails at its own checks of formats.
  set(kernel_options --expt-relaxed-constexpr "SHELL:-Xcudafe --diag_suppress=1675"
    -DFMT_USE_CONSTEXPR=1)
  target_compile_options(deltapipe_options INTERFACE ${kernel_options})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  target_compile_options(deltapipe_options INTERFACE -Wno-restrict)  # false positives, PR 105651
endif()
if(DELTAPIPE_WERROR AND NOT DELTAPIPE_SANITIZE)  # instrumented code draws false warnings
  target_compile_options(deltapipe_options INTERFACE -Werror)
endif()
if(DELTAPIPE_NATIVE)
  target_compile_options(deltapipe_options INTERFACE -march=native)
endif()
if(DELTAPIPE_SANITIZE)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")  # instrumented code looks uninitialised to it
    target_compile_options(deltapipe_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  # All of the build, so that every object and every link agrees.
  add_compile_options(-fsanitize=${DELTAPIPE_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer)
  # Checks of each pointer for null, and of the type and size of its object, take a tenth of the
  # compile time. The address sanitizer finds uses of such pointers, but no wrong downcasts and no
  # null references that are not used.
  if(DELTAPIPE_SANITIZE MATCHES "address")
    add_compile_options(-fno-sanitize=null,object-size,vptr)
  endif()
  add_link_options(-fsanitize=${DELTAPIPE_SANITIZE})
endif()
