# SPDX-License-Identifier: BSD-3-Clause
# Refuses compiler flags with which both ends of a boundary would compute different memories. Works
# in script mode as well: cmake -DCMAKE_CXX_FLAGS=... -P ExactArithmetic.cmake
cmake_policy(SET CMP0057 NEW)  # in script mode no version is asked for
set(inexact_flags -ffast-math -Ofast -funsafe-math-optimizations -fassociative-math
  -freciprocal-math -ffinite-math-only -fapprox-func -fdenormal-fp-math=preserve-sign -mdaz-ftz
  -fno-signed-zeros -mfpmath=387 -ffp-model=fast -ffp-model=aggressive -fp-model=fast
  -fp-model=fast=1 -fp-model=fast=2 -use_fast_math --use_fast_math
  # nvc++: the first two stand for several others, among them -Mflushz.
  -fast -fastsse -Mflushz -Mdaz -Mfprelaxed -Mfpapprox
  -ftz=true --ftz=true -prec-div=false --prec-div=false -fgpu-flush-denormals-to-zero)
string(TOUPPER "${CMAKE_BUILD_TYPE}" config)
get_directory_property(directory_options COMPILE_OPTIONS)
set(flags "${CMAKE_CXX_FLAGS} ${CMAKE_CXX_FLAGS_${config}} ${directory_options}")
string(REGEX REPLACE "[ ;]+" ";" flags "${flags}")
string(REGEX REPLACE ";-fp-model;" ";-fp-model=" flags ";${flags}")  # Intel's takes a space as well
# Intel's icpx computes fast without any flag.
if(CMAKE_CXX_COMPILER_ID STREQUAL "IntelLLVM"
    AND NOT flags MATCHES "-f?fp-model=(precise|strict)")
  message(FATAL_ERROR "deltapipe cannot be compiled with icpx's default -fp-model=fast: both ends of "
    "a boundary must compute the same bits, and NaN must be told from numbers. Add -fp-model=precise "
    "to CMAKE_CXX_FLAGS (or CXXFLAGS) and configure again with 'cmake --fresh'.")
endif()
foreach(flag IN LISTS flags)
  if(flag IN_LIST inexact_flags)
    message(FATAL_ERROR "deltapipe cannot be compiled with ${flag}: both ends of a boundary must "
      "compute the same bits, and NaN must be told from numbers. Remove it from CMAKE_CXX_FLAGS "
      "(or CXXFLAGS) and configure again with 'cmake --fresh'.")
  endif()
endforeach()
