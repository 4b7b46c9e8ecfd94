# SPDX-License-Identifier: BSD-3-Clause
# Every core/codec/NAME_codec.cpp that defines register_NAME_codec is a codec: this writes the
# function that calls them all, so that a static library keeps them.
file(GLOB codec_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*_codec.cpp)
set(codec_declarations "")
set(codec_calls "")
foreach(codec_file IN LISTS codec_files)
  get_filename_component(codec_name ${codec_file} NAME_WE)
  file(STRINGS ${codec_file} codec_entry REGEX "^void register_${codec_name}\\(CodecRegistry& registry\\)")
  if(codec_entry)
    string(APPEND codec_declarations "void register_${codec_name}(CodecRegistry& registry);\n")
    string(APPEND codec_calls "  register_${codec_name}(registry);\n")
  endif()
endforeach()
set(codec_list ${CMAKE_BINARY_DIR}/generated/register_codecs.cpp)
file(CONFIGURE OUTPUT ${codec_list} CONTENT "#include \"core/codec/codec.hpp\"

namespace deltapipe {

${codec_declarations}
void register_codecs(CodecRegistry& registry);
void register_codecs(CodecRegistry& registry) {
${codec_calls}}

}  // namespace deltapipe
" @ONLY)

file(GLOB codec_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
add_library(deltapipe_codec OBJECT ${codec_sources} ${codec_list})
target_include_directories(deltapipe_codec PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(deltapipe_codec PRIVATE deltapipe_options deltapipe::kokkos)
# Both ends' memories are the same bits with fused products and sums and without (the tests have
# such builds); error sums on the sender are the same bits only without.
target_compile_options(deltapipe_codec PRIVATE -ffp-contract=off)
if(Kokkos_ENABLE_CUDA)
  target_compile_options(deltapipe_codec PRIVATE --fmad=false)
endif()
deltapipe_precompile(deltapipe_codec)
