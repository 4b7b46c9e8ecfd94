# SPDX-License-Identifier: BSD-3-Clause
# deltapipe::kokkos and deltapipe::kokkos_kernels, from one of two sources:
#   1. Kokkos 4 or 5 and Kokkos Kernels through their CMake packages (Kokkos_ROOT,
#      KokkosKernels_ROOT, CMAKE_PREFIX_PATH);
#   2. Debian 12's libtrilinos-kokkos{,-kernels}-dev 3.4.01, Serial. Its CMake files name a wrong
#      include path and no usable targets, so that headers and libraries are found directly.
# The first is taken whenever it is there; asked for (Kokkos_ROOT or Kokkos_DIR given) and unfit,
# it is an error and not a silent change to the second.

set(kokkos_elsewhere "spack install kokkos +openmp (or +cuda +wrapper cuda_arch=90, +rocm \
amdgpu_target=gfx90a) and kokkos-kernels +blas (or +cublas, +rocblas), or module load both; then \
-DKokkos_ROOT=<prefix> -DKokkosKernels_ROOT=<prefix>")
set(kokkos_debian "libtrilinos-kokkos-dev libtrilinos-kokkos-kernels-dev")

set(kokkos_asked "")
foreach(place IN ITEMS "${Kokkos_DIR}" "${Kokkos_ROOT}" "$ENV{Kokkos_DIR}" "$ENV{Kokkos_ROOT}")
  if(place AND NOT kokkos_asked)
    set(kokkos_asked ${place})
  endif()
endforeach()
set(kokkos_dir_before "${Kokkos_DIR}")
set(Kokkos_FOUND FALSE)
foreach(major IN ITEMS 5 4)
  if(NOT Kokkos_FOUND)
    if(kokkos_dir_before)
      set(Kokkos_DIR "${kokkos_dir_before}" CACHE PATH "" FORCE)
    endif()
    find_package(Kokkos ${major} CONFIG QUIET)
  endif()
endforeach()

if(Kokkos_FOUND)
  # Kokkos may have put a launcher before the compiler, which calls nvcc where it has to.
  get_property(kokkos_launcher GLOBAL PROPERTY RULE_LAUNCH_COMPILE)
  if(Kokkos_ENABLE_CUDA AND NOT kokkos_launcher AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang|NVHPC")
    execute_process(COMMAND ${CMAKE_CXX_COMPILER} --version OUTPUT_VARIABLE kokkos_compiler
      ERROR_VARIABLE kokkos_compiler)
    if(NOT kokkos_compiler MATCHES "nvcc|Cuda compiler")
      deltapipe_needs("a compiler for CUDA" "Kokkos in ${Kokkos_DIR} computes on NVIDIA GPUs, \
${CMAKE_CXX_COMPILER} does not compile for them"
        "${kokkos_debian} (-DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON passes over the one with CUDA)"
        "-DCMAKE_CXX_COMPILER=nvcc_wrapper, of that Kokkos, as the preset 'cuda' has it; or another \
Kokkos: -DKokkos_ROOT=<prefix> -DKokkosKernels_ROOT=<prefix>")
    endif()
  endif()
  find_package(KokkosKernels CONFIG QUIET)
  # Debian's package of Trilinos answers to the name as well and brings no target.
  if(NOT KokkosKernels_FOUND OR NOT TARGET Kokkos::kokkoskernels)
    set(problem "its CMake package was not found")
    if(KokkosKernels_FOUND)
      set(problem "the one in ${KokkosKernels_DIR} belongs to another Kokkos")
    endif()
    deltapipe_needs("Kokkos Kernels ${Kokkos_VERSION}"
      "${problem}, although Kokkos is in ${Kokkos_DIR}"
      "${kokkos_debian} (-DCMAKE_DISABLE_FIND_PACKAGE_Kokkos=ON passes over the other Kokkos)"
      "${kokkos_elsewhere}")
  endif()
  get_target_property(kernels_include Kokkos::kokkoskernels INTERFACE_INCLUDE_DIRECTORIES)
  find_file(kernels_config KokkosKernels_config.h PATHS ${kernels_include} NO_DEFAULT_PATH NO_CACHE)
  file(STRINGS "${kernels_config}" kernels_tpls REGEX "^#define KOKKOSKERNELS_ENABLE_TPL_")
  if(Kokkos_ENABLE_CUDA)
    set(gemm_tpl "CUBLAS")
  elseif(Kokkos_ENABLE_HIP)
    set(gemm_tpl "ROCBLAS")
  else()
    set(gemm_tpl "BLAS|MKL|ARMPL")
  endif()
  # Without it KokkosBlas::gemm falls back to loops that are an order of magnitude slower.
  if(NOT kernels_tpls MATCHES "TPL_(${gemm_tpl})")
    deltapipe_needs("Kokkos Kernels with ${gemm_tpl} behind its matrix products"
      "${kernels_config} was built without" "${kokkos_debian} (and no Kokkos_ROOT)"
      "${kokkos_elsewhere}; built by hand: -DKokkosKernels_ENABLE_TPL_<${gemm_tpl}>=ON")
  endif()
  if(Kokkos_ENABLE_CUDA AND DEFINED Kokkos_ENABLE_CUDA_LAMBDA AND NOT Kokkos_ENABLE_CUDA_LAMBDA)
    deltapipe_needs("Kokkos with lambdas on CUDA" "Kokkos_ENABLE_CUDA_LAMBDA is off"
      "${kokkos_debian}" "${kokkos_elsewhere}")
  endif()
  deltapipe_part(kokkos Kokkos::kokkos)
  deltapipe_part(kokkos_kernels deltapipe::blas Kokkos::kokkoskernels)
  string(REPLACE ";" " " kokkos_devices "${Kokkos_DEVICES}")
  message(STATUS "kokkos: ${Kokkos_VERSION} (${kokkos_devices}), ${Kokkos_DIR}")
elseif(kokkos_asked)
  set(Kokkos_DIR "${kokkos_dir_before}" CACHE PATH "" FORCE)
  set(problem "no CMake package was found in ${kokkos_asked}")
  if(Kokkos_CONSIDERED_VERSIONS)
    set(problem "version ${Kokkos_CONSIDERED_VERSIONS} (${Kokkos_CONSIDERED_CONFIGS}) does not fit")
  endif()
  deltapipe_needs("Kokkos 4 or 5" "${problem}" "${kokkos_debian} (and no Kokkos_ROOT)"
    "${kokkos_elsewhere}")
else()
  find_path(TRILINOS_KOKKOS_INCLUDE_DIR KokkosCore_config.h PATH_SUFFIXES trilinos)
  find_library(TRILINOS_KOKKOS_LIBRARY trilinos_kokkoscore)
  find_library(TRILINOS_KOKKOS_CONTAINERS_LIBRARY trilinos_kokkoscontainers)
  find_library(TRILINOS_KOKKOS_KERNELS_LIBRARY trilinos_kokkoskernels)
  if(NOT TRILINOS_KOKKOS_INCLUDE_DIR OR NOT TRILINOS_KOKKOS_LIBRARY
      OR NOT TRILINOS_KOKKOS_CONTAINERS_LIBRARY OR NOT TRILINOS_KOKKOS_KERNELS_LIBRARY)
    deltapipe_needs("Kokkos and Kokkos Kernels" "neither Kokkos 4 nor Debian's package was found"
      "${kokkos_debian}" "${kokkos_elsewhere}")
  endif()
  if(NOT EXISTS ${TRILINOS_KOKKOS_INCLUDE_DIR}/KokkosKernels_config.h)
    deltapipe_needs("Kokkos Kernels" "no KokkosKernels_config.h beside Kokkos' headers"
      "${kokkos_debian}" "${kokkos_elsewhere}")
  endif()
  file(STRINGS ${TRILINOS_KOKKOS_INCLUDE_DIR}/KokkosCore_config.h version_line
    REGEX "^#define KOKKOS_VERSION [0-9]+$")
  string(REGEX MATCH "[0-9]+$" kokkos_version "${version_line}")
  if(NOT kokkos_version OR kokkos_version LESS 30400)
    deltapipe_needs("Kokkos >= 3.4" "version ${kokkos_version} is too old" "${kokkos_debian}"
      "${kokkos_elsewhere}")
  endif()
  deltapipe_part(kokkos ${TRILINOS_KOKKOS_CONTAINERS_LIBRARY} ${TRILINOS_KOKKOS_LIBRARY}
    ${CMAKE_DL_LIBS})
  target_include_directories(deltapipe::kokkos SYSTEM INTERFACE ${TRILINOS_KOKKOS_INCLUDE_DIR})
  deltapipe_part(kokkos_kernels deltapipe::blas ${TRILINOS_KOKKOS_KERNELS_LIBRARY}
    deltapipe::kokkos)
  string(REGEX REPLACE "^(.)(..)(..)$" "\\1.\\2.\\3" kokkos_version ${kokkos_version})
  message(STATUS "kokkos: Debian's ${kokkos_version} (Serial, own targets), "
    "${TRILINOS_KOKKOS_INCLUDE_DIR}")
endif()
