// SPDX-License-Identifier: BSD-3-Clause
// Properties of Unicode characters that are looked up for every character of a text.
#pragma once

#include <array>

namespace deltapipe {

/// The values of a search, tabulated for the Basic Multilingual Plane: nearly all text.
template <class Value>
class CodePointTable {
 public:
  using Search = Value (*)(char32_t code_point);

  explicit CodePointTable(Search search) : search_(search) {
    for (char32_t c = 0; c < kTabulated; ++c) values_[c] = search(c);
  }
  Value operator()(char32_t code_point) const {
    return code_point < kTabulated ? values_[code_point] : search_(code_point);
  }

 private:
  static constexpr char32_t kTabulated = 0x10000;
  Search search_;
  std::array<Value, kTabulated> values_{};
};

}  // namespace deltapipe
