// GPT-2's pre-tokenisation: cuts a text into the pieces that BPE works on.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace deltapipe {

/// Cuts one text into pieces, first to last. Bytes that are not UTF-8 count as symbols.
class PieceReader {
 public:
  /// `text` outlives the reader.
  explicit PieceReader(std::string_view text);
  ~PieceReader();
  PieceReader(const PieceReader&) = delete;
  PieceReader& operator=(const PieceReader&) = delete;

  /// Sets `piece` to the next piece, a part of the text; false at its end.
  bool next(std::string_view& piece);

 private:
  struct Match;
  std::string_view text_;
  std::string valid_copy_;    ///< used if text_ is not valid UTF-8
  std::string_view subject_;  ///< what the pattern sees: as long as text_
  std::size_t position_ = 0;
  std::unique_ptr<Match> match_;
};

}  // namespace deltapipe
