# SPDX-License-Identifier: BSD-3-Clause
# cmake --install: program, libraries, headers (#include <deltapipe/core/...>), decks, scripts, and a package
# that can be moved: find_package(deltapipe) gives deltapipe::core, ::models and ::comm.
include(CMakePackageConfigHelpers)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/deltapipe)
foreach(part IN LISTS parts)
  install(TARGETS deltapipe_${part} EXPORT deltapipeTargets
    FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/deltapipe)
endforeach()
install(EXPORT deltapipeTargets NAMESPACE deltapipe:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/deltapipeConfig.cmake.in
  ${CMAKE_BINARY_DIR}/generated/deltapipeConfig.cmake INSTALL_DESTINATION ${package_dir}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/deltapipeConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/deltapipeConfig.cmake
  ${CMAKE_BINARY_DIR}/generated/deltapipeConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/Dependencies.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindBlasLibrary.cmake
  ${CMAKE_CURRENT_LIST_DIR}/FindKokkosLibraries.cmake
  DESTINATION ${package_dir})

foreach(folder IN ITEMS inputs scripts)
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${folder})
    install(DIRECTORY ${folder} DESTINATION ${CMAKE_INSTALL_DATADIR}/deltapipe
      USE_SOURCE_PERMISSIONS
      PATTERN cmake EXCLUDE PATTERN __pycache__ EXCLUDE
      PATTERN setup.sh EXCLUDE PATTERN setup_python.sh EXCLUDE PATTERN test.sh EXCLUDE
      PATTERN clang_tidy.sh EXCLUDE PATTERN deck_reference.py EXCLUDE
      PATTERN render_results.py EXCLUDE)
  endif()
endforeach()
install(FILES LICENSE CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR})
