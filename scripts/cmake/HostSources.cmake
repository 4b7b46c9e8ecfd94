# SPDX-License-Identifier: BSD-3-Clause
# deltapipe_host_sources(OUT FILE...): those sources that include Kokkos neither directly nor through
# the project's headers. nvcc takes longer to compile them than the host's compiler does, and fails
# at some (toml++, and an assertion of its own in <optional>).

# Sets OUT to TRUE if the file, relative to the project, includes Kokkos or CUDA.
function(deltapipe_includes_kokkos out file)
  get_property(known GLOBAL PROPERTY deltapipe_includes_kokkos:${file})
  if("${known}" STREQUAL "")
    set_property(GLOBAL PROPERTY deltapipe_includes_kokkos:${file} FALSE)  # for cycles
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${file})
    set(known FALSE)
    file(STRINGS ${PROJECT_SOURCE_DIR}/${file} lines REGEX "^ *# *include +[<\"]")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE "^ *# *include +[<\"]([^>\"]+)[>\"].*" "\\1" header "${line}")
      if(header MATCHES "^(Kokkos|cuda|cublas)")
        set(known TRUE)
      elseif(EXISTS ${PROJECT_SOURCE_DIR}/${header} AND NOT IS_DIRECTORY
          ${PROJECT_SOURCE_DIR}/${header})
        deltapipe_includes_kokkos(included ${header})
        if(included)
          set(known TRUE)
        endif()
      endif()
      if(known)
        break()
      endif()
    endforeach()
    set_property(GLOBAL PROPERTY deltapipe_includes_kokkos:${file} ${known})
  endif()
  set(${out} ${known} PARENT_SCOPE)
endfunction()

function(deltapipe_host_sources out)
  set(sources "")
  foreach(source IN LISTS ARGN)
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${source})
    deltapipe_includes_kokkos(included ${name})
    if(NOT included)
      list(APPEND sources ${source})
    endif()
  endforeach()
  set(${out} ${sources} PARENT_SCOPE)
endfunction()
