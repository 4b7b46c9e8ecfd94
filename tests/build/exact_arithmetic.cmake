# SPDX-License-Identifier: BSD-3-Clause
# Flags that change arithmetic are refused: by name when configuring, by the compiler's macros when
# compiling. Needs SOURCE (the project), WORK (a folder to fill), CXX and GENERATOR.
function(run_and_expect success text)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output
    ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(status EQUAL 0 AND NOT success)
    message(SEND_ERROR "accepted: ${ARGN}")
  elseif(NOT status EQUAL 0 AND success)
    message(SEND_ERROR "refused: ${ARGN}\n${output}")
  elseif(NOT output MATCHES "${text}")
    message(SEND_ERROR "no '${text}' in the message of ${ARGN}:\n${output}")
  endif()
endfunction()

file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
set(module ${SOURCE}/scripts/cmake/ExactArithmetic.cmake)
foreach(flag IN ITEMS -ffast-math -Ofast -fassociative-math -freciprocal-math -mfpmath=387
    -fno-signed-zeros -fast -Mflushz -fp-model=fast)
  run_and_expect(FALSE "cannot be compiled with ${flag}"
    ${CMAKE_COMMAND} "-DCMAKE_CXX_FLAGS=-O2 ${flag} -g" -P ${module})
endforeach()
run_and_expect(FALSE "cannot be compiled with -Ofast" ${CMAKE_COMMAND} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_FLAGS_RELEASE=-Ofast -P ${module})
run_and_expect(TRUE "" ${CMAKE_COMMAND} "-DCMAKE_CXX_FLAGS=-O3 -fno-fast-math" -P ${module})

run_and_expect(FALSE "cannot be compiled with -fp-model=fast"
  ${CMAKE_COMMAND} "-DCMAKE_CXX_FLAGS=-O2 -fp-model fast" -P ${module})
set(icpx ${CMAKE_COMMAND} -DCMAKE_CXX_COMPILER_ID=IntelLLVM)
run_and_expect(FALSE "Add -fp-model=precise" ${icpx} -DCMAKE_CXX_FLAGS=-O2 -P ${module})
foreach(flag IN ITEMS "-fp-model=precise" "-fp-model strict" "-ffp-model=precise")
  run_and_expect(TRUE "" ${icpx} "-DCMAKE_CXX_FLAGS=-O2 ${flag}" -P ${module})
endforeach()

# As a user meets it.
run_and_expect(FALSE "cannot be compiled with -ffast-math" ${CMAKE_COMMAND} -S ${SOURCE}
  -B ${WORK}/configured -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_CXX_FLAGS=-ffast-math)

file(WRITE ${WORK}/use.cpp "#include \"core/base/numeric/exact_arithmetic.hpp\"\nint main() {}\n")
set(compile ${CXX} -std=c++20 -fsyntax-only -I${SOURCE} ${WORK}/use.cpp)
run_and_expect(TRUE "" ${compile} -O3 -ffp-contract=fast)
foreach(flag IN ITEMS -ffast-math -Ofast -ffinite-math-only)
  run_and_expect(FALSE "need exact arithmetic" ${compile} ${flag})
endforeach()
