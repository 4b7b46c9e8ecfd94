// SPDX-License-Identifier: BSD-3-Clause
// SentencePiece's precompiled character map: replacements of strings, such as those of Unicode's
// NFKC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace deltapipe {

/// A character map: the size of a double array (4 bytes), the double array (Darts-clone), and the
/// replacements. Every replacement ends with NUL. The bytes are untrusted. A map without bytes
/// replaces nothing.
class Charsmap {
 public:
  Charsmap() = default;
  /// Checks every state that a search can reach. Throws UserError, which names `file`.
  Charsmap(const std::string& file, std::string bytes);

  /// Returns the replacement of the shortest match at the start of `text`, as the tokenizers
  /// library looks it up.
  std::optional<std::string_view> shortest(std::string_view text) const;

  const std::string& bytes() const { return bytes_; }
  /// Returns the bytes of the longest replacement.
  std::size_t longest_replacement() const { return longest_; }

 private:
  std::uint32_t unit(std::size_t position) const { return units_[position]; }
  void check(const std::string& file);

  std::string bytes_;
  std::vector<std::uint32_t> units_;
  std::string replacements_;
  std::size_t longest_ = 0;
};

}  // namespace deltapipe
