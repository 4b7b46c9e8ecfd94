# SPDX-License-Identifier: BSD-3-Clause
# deltapipe::blas: OpenBLAS where there is one, else what find_package(BLAS) finds. BLA_VENDOR
# (CMake's own variable) asks for another library than OpenBLAS.
#
# Linked directly, before Kokkos Kernels' own BLAS, so that sgemm_ is never that of the reference
# BLAS. DELTAPIPE_HAVE_OPENBLAS says that openblas_set_num_threads can be called.
include(CheckCSourceCompiles)

if(NOT BLA_VENDOR OR BLA_VENDOR STREQUAL "OpenBLAS")
  find_library(OPENBLAS_LIBRARY openblas HINTS ${OpenBLAS_ROOT} $ENV{OpenBLAS_ROOT}
    PATH_SUFFIXES openblas-pthread openblas-openmp openblas-serial openblas lib lib64)
endif()
if(OPENBLAS_LIBRARY)
  set(blas_libraries ${OPENBLAS_LIBRARY})
else()
  find_package(BLAS QUIET)
  if(NOT BLAS_FOUND)
    deltapipe_needs("a BLAS, best OpenBLAS" "none was found" libopenblas-pthread-dev
      "module load openblas (or spack install openblas), then -DOpenBLAS_ROOT=<prefix>; \
another vendor's with -DBLA_VENDOR=<see CMake's FindBLAS>")
  endif()
  set(blas_libraries ${BLAS_LIBRARIES})
endif()

set(CMAKE_REQUIRED_LIBRARIES ${blas_libraries})
set(CMAKE_REQUIRED_QUIET TRUE)
check_c_source_compiles("
  void sgemm_(void);
  int main(void) { sgemm_(); return 0; }" DELTAPIPE_BLAS_HAS_SGEMM)
check_c_source_compiles("
  void openblas_set_num_threads(int);
  int main(void) { openblas_set_num_threads(1); return 0; }" DELTAPIPE_BLAS_IS_OPENBLAS)
unset(CMAKE_REQUIRED_LIBRARIES)
unset(CMAKE_REQUIRED_QUIET)
if(NOT DELTAPIPE_BLAS_HAS_SGEMM)
  deltapipe_needs("a BLAS with Fortran symbols (sgemm_)" "${blas_libraries} has none"
    libopenblas-pthread-dev "spack install openblas, then -DOpenBLAS_ROOT=<prefix>")
endif()

deltapipe_part(blas ${blas_libraries})
if(DELTAPIPE_BLAS_IS_OPENBLAS)
  target_compile_definitions(deltapipe::blas INTERFACE DELTAPIPE_HAVE_OPENBLAS)
  message(STATUS "blas: OpenBLAS, ${blas_libraries}")
else()
  message(STATUS "blas: ${blas_libraries} (not OpenBLAS: its threads are set by its own variables)")
endif()
