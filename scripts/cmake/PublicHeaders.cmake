# SPDX-License-Identifier: BSD-3-Clause
# Headers for users of the installed libraries: those that the umbrella headers core/core.hpp,
# models/models.hpp and comm/comm.hpp include (tests/style/public_headers.py). All others are details:
# no release promises anything of them, and they are not installed.
set(DELTAPIPE_PUBLIC_HEADERS "")
foreach(part core models comm)
  set(umbrella ${PROJECT_SOURCE_DIR}/${part}/${part}.hpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${umbrella})
  file(STRINGS ${umbrella} includes REGEX "^#include \"")
  list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*$" "\\1")
  list(APPEND DELTAPIPE_PUBLIC_HEADERS ${part}/${part}.hpp ${includes})
endforeach()
