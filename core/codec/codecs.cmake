# SPDX-License-Identifier: BSD-3-Clause
# Every source of core/codec that defines register_NAME_codec is a codec: this writes the function
# that calls them all, so that a static library keeps them. Leaves codec_sources and that function's
# source, codec_list.
file(GLOB_RECURSE codec_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cpp)
set(codec_declarations "")
set(codec_calls "")
foreach(codec_file IN LISTS codec_sources)
  file(STRINGS ${codec_file} codec_entries
    REGEX "^void register_[a-z0-9_]+_codec\\(CodecRegistry& registry\\)")
  foreach(codec_entry IN LISTS codec_entries)
    string(REGEX MATCH "register_[a-z0-9_]+_codec" codec_name "${codec_entry}")
    string(APPEND codec_declarations "void ${codec_name}(CodecRegistry& registry);\n")
    string(APPEND codec_calls "  ${codec_name}(registry);\n")
  endforeach()
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

