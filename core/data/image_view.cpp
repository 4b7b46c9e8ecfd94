// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/image_view.hpp"

#include "core/base/numeric/random.hpp"

namespace deltapipe {

ImageView draw_view(std::uint64_t seed, std::uint64_t epoch, std::uint64_t id, int padding,
                    bool flips) {
  constexpr std::uint32_t kSite = 0x1A6E;  // of images' views, unlike any site of a network
  std::uint32_t words[4];
  RandomStream(seed, epoch, kSite).draw(id, 0, words);
  const auto offset = [&](std::uint32_t word) {
    const auto places = static_cast<std::uint64_t>(2 * padding + 1);
    return static_cast<int>(word * places >> 32) - padding;
  };
  return {offset(words[0]), offset(words[1]), flips && (words[2] & 1) != 0};
}

}  // namespace deltapipe
