# SPDX-License-Identifier: BSD-3-Clause
# Writes the source file behind core/base/version.hpp: the project's version and the git revision.
#
# Included by CMakeLists.txt it adds the target deltapipe_revision, which runs this file as a script
# in every build; the file changes, and is compiled, only when the revision does.
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(DELTAPIPE_VERSION_SOURCE ${CMAKE_BINARY_DIR}/generated/version.cpp)
  add_custom_target(deltapipe_revision
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${CMAKE_CURRENT_SOURCE_DIR} -DVERSION=${PROJECT_VERSION}
      -DOUTPUT=${DELTAPIPE_VERSION_SOURCE} -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${DELTAPIPE_VERSION_SOURCE}
    COMMENT "Checking the source revision")
  return()
endif()

set(revision unknown)
# Only a repository of our own counts, not one that an unpacked archive happens to lie in.
if(EXISTS ${SOURCE}/.git)
  find_program(GIT git)
  if(GIT)
    execute_process(COMMAND ${GIT} -C ${SOURCE} describe --always --dirty --abbrev=12
      OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(revision ${described})
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[
#include "core/base/version.hpp"

namespace deltapipe {

std::string_view version() { return "@VERSION@"; }
std::string_view revision() { return "@revision@"; }

}  // namespace deltapipe
]])
