# SPDX-License-Identifier: BSD-3-Clause
# Every core/codec/NAME_codec.cpp that defines register_NAME_codec is a codec: this writes the
# function that calls them all, so that a static library keeps them. Leaves codec_sources and that
# function's source, codec_list.
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
