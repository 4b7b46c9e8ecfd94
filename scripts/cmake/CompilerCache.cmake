# SPDX-License-Identifier: BSD-3-Clause
# ccache before the compiler, where it is installed and nothing else is asked for.
find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Sources with precompiled headers are cached only with these two, beside the user's own.
  execute_process(COMMAND ${CCACHE} --get-config sloppiness OUTPUT_VARIABLE sloppiness
    OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  string(REGEX MATCHALL "[a-z_]+" sloppiness "${sloppiness}")
  list(APPEND sloppiness pch_defines time_macros)
  list(REMOVE_DUPLICATES sloppiness)
  string(JOIN "," sloppiness ${sloppiness})
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=${sloppiness} ${CCACHE})
endif()
