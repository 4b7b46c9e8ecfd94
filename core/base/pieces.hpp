// SPDX-License-Identifier: BSD-3-Clause
// Ranges in pieces of bounded size.
#pragma once

#include <algorithm>
#include <cstddef>

namespace deltapipe {

/// Calls work(first, count) for pieces of at most `largest` elements that make up [begin, end), in
/// order.
template <class Work>
void for_pieces(std::size_t begin, std::size_t end, std::size_t largest, const Work& work) {
  for (std::size_t first = begin; first < end; first += largest)
    work(first, std::min(largest, end - first));
}

}  // namespace deltapipe
