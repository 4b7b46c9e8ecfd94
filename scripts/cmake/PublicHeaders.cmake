# SPDX-License-Identifier: BSD-3-Clause
# Headers for users of the installed libraries: those that the umbrella headers core/core.hpp,
# models/models.hpp, comm/comm.hpp and app/training/training.hpp include
# (tests/style/public_headers.py). All others are details: no release promises anything of them, and
# they are not installed.
set(DELTAPIPE_PUBLIC_HEADERS "")
foreach(folder core models comm app/training)
  cmake_path(GET folder FILENAME part)
  set(umbrella ${PROJECT_SOURCE_DIR}/${folder}/${part}.hpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${umbrella})
  file(STRINGS ${umbrella} includes REGEX "^#include \"")
  list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*$" "\\1")
  list(APPEND DELTAPIPE_PUBLIC_HEADERS ${folder}/${part}.hpp ${includes})
endforeach()
