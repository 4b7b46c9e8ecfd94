// SPDX-License-Identifier: BSD-3-Clause
// A deck and, behind bytes 0xFE, overrides. What is taken reads back to the same settings.
#include "app/deck/deck.hpp"
#include "support.hpp"

using namespace deltapipe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> overrides = fuzz::parts_of(fuzz::text_of(data, size));
  const std::string deck = overrides.front();
  overrides.erase(overrides.begin());
  fuzz::takes([&] {
    const Settings settings = parse_deck(deck, "deck.toml", overrides);
    fuzz::expect(parse_deck(effective_deck(settings), "effective") == settings);
  });
  return 0;
}
