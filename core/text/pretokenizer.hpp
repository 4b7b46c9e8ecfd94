// SPDX-License-Identifier: BSD-3-Clause
// GPT-2's pre-tokenisation: cuts a text into the pieces that BPE processes.
#pragma once

#include <cstddef>
#include <string_view>

namespace deltapipe {

/// Cuts one text into the matches of the pattern of GPT-2's encoder.py, first to last:
///   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
/// A byte outside of valid UTF-8 sequences counts as one symbol that is not a letter, number or
/// space.
class PieceReader {
 public:
  /// `text` must outlive the reader.
  explicit PieceReader(std::string_view text) : text_(text) {}

  /// Sets `piece` to the next piece, a part of the text; false at its end.
  bool next(std::string_view& piece);

 private:
  std::string_view text_;
  std::size_t position_ = 0;
};

}  // namespace deltapipe
