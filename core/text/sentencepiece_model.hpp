// SPDX-License-Identifier: BSD-3-Clause
// The ModelProto of SentencePiece: the content of an spm.model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace deltapipe {

/// Numbers of ModelProto.SentencePiece.Type.
enum class PieceKind : std::uint8_t {
  normal = 1,
  unknown = 2,
  control = 3,
  user_defined = 4,
  unused = 5,
  byte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;
  PieceKind kind = PieceKind::normal;
};

/// The members of a ModelProto that ids depend on, with protobuf's defaults.
struct SentencePieceModel {
  std::vector<SentencePiece> pieces;  ///< by id
  int model_type = 1;                 ///< TrainerSpec.ModelType; 1: unigram
  bool byte_fallback = false;
  bool treat_whitespace_as_suffix = false;
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true;
  bool remove_extra_whitespaces = true;
  bool escape_whitespaces = true;
};

/// Reads a serialized ModelProto. Throws UserError, which names `file`, for other bytes and for
/// models that libsentencepiece cannot hold. Does not check the character map.
SentencePieceModel read_sentencepiece_model(const std::string& file, std::string_view bytes);

/// Returns a serialized ModelProto with these members only.
std::string serialized(const SentencePieceModel& model);

}  // namespace deltapipe
