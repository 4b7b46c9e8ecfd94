# SPDX-License-Identifier: BSD-3-Clause
# What a user reads who has a Kokkos that the build cannot use. Needs SOURCE (the project), WORK (a
# folder to fill), CXX and GENERATOR.
file(REMOVE_RECURSE ${WORK})

# write_package(<folder> <name> <lines of its config file>): a CMake package of version 4.6.1
function(write_package folder name config)
  set(place ${WORK}/${folder}/lib/cmake/${name})
  file(WRITE ${place}/${name}Config.cmake "${config}\n")
  file(WRITE ${place}/${name}ConfigVersion.cmake "set(PACKAGE_VERSION 4.6.1)
if(NOT PACKAGE_FIND_VERSION OR PACKAGE_FIND_VERSION_MAJOR EQUAL 4)
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
endif()\n")
endfunction()

# expect_message(<folder> <parts of the message>...)
function(expect_message folder)
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/${folder}/build -G ${GENERATOR}
    -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_PREFIX_PATH=${WORK}/${folder} -DBUILD_TESTING=OFF
    RESULT_VARIABLE status OUTPUT_QUIET ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(status EQUAL 0)
    message(SEND_ERROR "${folder}: accepted")
  endif()
  string(REGEX MATCHALL "CMake Error" errors "${output}")
  list(LENGTH errors count)
  if(NOT count EQUAL 1)
    message(SEND_ERROR "${folder}: ${count} errors:\n${output}")
  endif()
  foreach(part IN LISTS ARGN)
    string(FIND "${output}" "${part}" place)
    if(place EQUAL -1)
      message(SEND_ERROR "${folder}: no '${part}' in\n${output}")
    endif()
  endforeach()
endfunction()

# Debian's package of Trilinos has a KokkosKernels like the second one.
set(elsewhere "-DKokkos_ROOT=<prefix> -DKokkosKernels_ROOT=<prefix>")
foreach(folder IN ITEMS without foreign)
  write_package(${folder} Kokkos "set(Kokkos_ENABLE_SERIAL ON)")
endforeach()
write_package(without KokkosKernels "set(KokkosKernels_FOUND FALSE)")
expect_message(without "deltapipe needs Kokkos Kernels 4.6.1" "was not found, although Kokkos is in"
  ${elsewhere})
write_package(foreign KokkosKernels "set(KokkosKernels_LIBRARIES kokkoskernels)")
expect_message(foreign "deltapipe needs Kokkos Kernels 4.6.1" "belongs to another Kokkos"
  ${elsewhere})
write_package(cuda Kokkos "set(Kokkos_ENABLE_CUDA ON)")
expect_message(cuda "deltapipe needs a compiler for CUDA" "${CXX} does not compile for them"
  -DCMAKE_CXX_COMPILER=nvcc_wrapper ${elsewhere})
