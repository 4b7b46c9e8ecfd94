# SPDX-License-Identifier: BSD-3-Clause
# cmake --install: program, libraries, headers (#include <deltapipe/core/...>), decks, scripts,
# documents, and a package that can be moved: find_package(deltapipe) gives deltapipe::core, ::models,
# ::comm and ::training.
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

# Decks, and the scripts that work without a checkout. The others build, test or document deltapipe.
set(data_dir ${CMAKE_INSTALL_DATADIR}/deltapipe)
install(DIRECTORY inputs DESTINATION ${data_dir})
install(PROGRAMS scripts/compare_runs.py scripts/make_corpus.sh scripts/make_exercises.py scripts/plot_plan.py scripts/plot_run.py
  scripts/export_run.py scripts/run_table.py scripts/shaped_links.sh scripts/study.py scripts/study.sbatch
  scripts/train.sbatch DESTINATION ${data_dir}/scripts)
install(FILES scripts/pyproject.toml scripts/script_support.py scripts/study_matrix.py
  scripts/study_runner.py scripts/study_summary.py DESTINATION ${data_dir}/scripts)
install(DIRECTORY scripts/deltapipe_runs DESTINATION ${data_dir}/scripts
  PATTERN __pycache__ EXCLUDE)

install(FILES README.md CHANGELOG.md LICENSE CITATION.cff DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR}
  PATTERN results EXCLUDE PATTERN "*.1" EXCLUDE)
install(FILES docs/deltapipe.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(FILES scripts/completion/deltapipe.bash
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME deltapipe OPTIONAL)
