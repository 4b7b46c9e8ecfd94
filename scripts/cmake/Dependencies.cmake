# SPDX-License-Identifier: BSD-3-Clause
# Finds what deltapipe stands on. Each part becomes one imported target deltapipe::<part>, so that
# nothing else, the installed package included, needs to know where a part comes from. What is
# missing or does not fit stops the configuration with its remedy.
#
# The installed deltapipeConfig.cmake includes this very file.

# deltapipe_needs(<part> <what is wrong> <Debian packages> <elsewhere>)
function(deltapipe_needs part problem debian elsewhere)
  message(FATAL_ERROR "deltapipe needs ${part}: ${problem}.\n"
    "  Debian 12:  apt-get install ${debian}\n"
    "  elsewhere:  ${elsewhere}\n"
    "After the remedy, configure again with 'cmake --fresh'.")
endfunction()

# deltapipe_part(<name> <libraries or targets>...): the imported target deltapipe::<name>
function(deltapipe_part name)
  if(NOT TARGET deltapipe::${name})
    add_library(deltapipe::${name} INTERFACE IMPORTED)
    target_link_libraries(deltapipe::${name} INTERFACE ${ARGN})
  endif()
endfunction()

# deltapipe_library(<name> <header> <library or ""> <Debian package> <Spack package>): a library
# that brings no CMake package of its own. <NAME>_ROOT says where to look first.
function(deltapipe_library name header library debian spack)
  string(TOUPPER ${name} NAME)
  find_path(${NAME}_INCLUDE_DIR ${header} HINTS ${${NAME}_ROOT} $ENV{${NAME}_ROOT}
    PATH_SUFFIXES include)
  if(library)
    find_library(${NAME}_LIBRARY ${library} HINTS ${${NAME}_ROOT} $ENV{${NAME}_ROOT}
      PATH_SUFFIXES lib lib64)
  endif()
  if(NOT ${NAME}_INCLUDE_DIR OR (library AND NOT ${NAME}_LIBRARY))
    string(JOIN " and lib" wanted ${header} ${library})
    deltapipe_needs(${name} "${wanted} not found" ${debian}
      "spack install ${spack}, then -D${NAME}_ROOT=<prefix>")
  endif()
  deltapipe_part(${name} ${${NAME}_LIBRARY})
  target_include_directories(deltapipe::${name} SYSTEM INTERFACE ${${NAME}_INCLUDE_DIR})
  message(STATUS "${name}: ${${NAME}_INCLUDE_DIR}/${header} ${${NAME}_LIBRARY}")
endfunction()

# deltapipe_package(<name> <CMake package> <oldest version> <target> <Debian package> <Spack>)
function(deltapipe_package name package version target debian spack)
  find_package(${package} ${version} CONFIG QUIET)
  if(NOT ${package}_FOUND)
    set(problem "its CMake package '${package}' was not found")
    if(${package}_CONSIDERED_VERSIONS)
      set(problem "version ${${package}_CONSIDERED_VERSIONS} does not fit")
    endif()
    deltapipe_needs("${name} >= ${version}" "${problem}" ${debian}
      "spack install ${spack}, then -D${package}_ROOT=<prefix>")
  endif()
  deltapipe_part(${name} ${target})
  message(STATUS "${name}: ${${package}_VERSION}, ${${package}_DIR}")
endfunction()

include(${CMAKE_CURRENT_LIST_DIR}/FindBlasLibrary.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/FindKokkosLibraries.cmake)

# oneDNN is optional, for processors, and only for the build: a library of its own is loaded when it
# is wanted. Its CMake package asks for OpenCL as well.
set(DELTAPIPE_ONEDNN_FOUND OFF)
if(DELTAPIPE_ONEDNN AND NOT DELTAPIPE_LIBRARIES_ONLY AND NOT Kokkos_ENABLE_CUDA
   AND NOT Kokkos_ENABLE_HIP)
  find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.hpp HINTS ${ONEDNN_ROOT} $ENV{ONEDNN_ROOT}
    PATH_SUFFIXES include)
  find_library(ONEDNN_LIBRARY dnnl HINTS ${ONEDNN_ROOT} $ENV{ONEDNN_ROOT} PATH_SUFFIXES lib lib64)
  if(ONEDNN_INCLUDE_DIR AND ONEDNN_LIBRARY)
    set(DELTAPIPE_ONEDNN_FOUND ON)
    deltapipe_part(onednn ${ONEDNN_LIBRARY})
    target_include_directories(deltapipe::onednn SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
    message(STATUS "onednn: ${ONEDNN_LIBRARY}")
  else()
    message(STATUS "onednn: none (Debian: libdnnl-dev); products in bf16 are emulated")
  endif()
endif()

if(Kokkos_ENABLE_CUDA)
  find_package(CUDAToolkit REQUIRED)
  deltapipe_part(cublas CUDA::cublas)
else()
  deltapipe_part(cublas)
endif()

find_package(Threads REQUIRED)
deltapipe_part(threads Threads::Threads)

find_package(MPI 3 QUIET COMPONENTS C)
if(NOT MPI_C_FOUND)
  set(problem "no MPI compiler wrapper or library for C was found")
  if(MPI_C_VERSION)
    set(problem "version ${MPI_C_VERSION} of the MPI standard is too old")
  endif()
  deltapipe_needs("MPI 3 or newer" "${problem}" "libopenmpi-dev openmpi-bin"
    "module load openmpi (or cray-mpich, mpich, ...), then -DMPI_C_COMPILER=mpicc")
endif()
deltapipe_part(mpi MPI::MPI_C)
message(STATUS "mpi: standard ${MPI_C_VERSION}, ${MPI_C_LIBRARIES}")

find_package(HDF5 1.10 QUIET COMPONENTS C)
if(NOT HDF5_FOUND OR NOT HDF5_C_LIBRARIES)
  set(problem "its C library was not found")
  if(HDF5_VERSION AND HDF5_VERSION VERSION_LESS 1.10)
    set(problem "version ${HDF5_VERSION} is too old")
  endif()
  deltapipe_needs("HDF5 >= 1.10 with C" "${problem}" libhdf5-dev
    "module load hdf5 (or spack install hdf5), then -DHDF5_ROOT=<prefix>")
endif()
# A shared libhdf5 brings its own compression and network libraries; only a static one needs them
# named.
set(hdf5_link ${HDF5_C_LIBRARIES})
list(FILTER hdf5_link INCLUDE REGEX "/libhdf5[^/]*\\.(so|dylib)$")
if(NOT hdf5_link)
  set(hdf5_link ${HDF5_C_LIBRARIES})
endif()
if(HDF5_IS_PARALLEL)  # its public header includes mpi.h
  list(APPEND hdf5_link MPI::MPI_C)
endif()
deltapipe_part(hdf5 ${hdf5_link})
target_include_directories(deltapipe::hdf5 SYSTEM INTERFACE ${HDF5_C_INCLUDE_DIRS})
message(STATUS "hdf5: ${HDF5_VERSION}, ${hdf5_link}")

deltapipe_package(json nlohmann_json 3.9 nlohmann_json::nlohmann_json nlohmann-json3-dev
  nlohmann-json)
deltapipe_package(toml tomlplusplus 3.0 tomlplusplus::tomlplusplus libtomlplusplus-dev tomlplusplus)
deltapipe_package(fmt fmt 8 fmt::fmt libfmt-dev fmt)
deltapipe_library(xxhash xxhash.h xxhash libxxhash-dev xxhash)
deltapipe_library(zlib zlib.h z zlib1g-dev zlib)
deltapipe_library(png png.h png libpng-dev libpng)
deltapipe_library(jpeg jpeglib.h jpeg libjpeg-dev libjpeg-turbo)
deltapipe_library(utf8proc utf8proc.h utf8proc libutf8proc-dev utf8proc)
deltapipe_library(sentencepiece sentencepiece_processor.h sentencepiece libsentencepiece-dev
  sentencepiece)
if(NOT DELTAPIPE_LIBRARIES_ONLY)
  deltapipe_package(cli11 CLI11 2.0 CLI11::CLI11 libcli11-dev cli11)
endif()
