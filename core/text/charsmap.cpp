// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/charsmap.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/base/utf8.hpp"
#include "core/text/tokenizer_json.hpp"

namespace deltapipe {
namespace {

constexpr std::size_t kLargestArray = std::size_t{16} << 20;  // bytes; NFKC has 0.2 MB
// The longest one of Unicode has 33 bytes. Tokens that grow without bounds would fill the memory.
constexpr std::size_t kLongestReplacement = 1024;
constexpr int kMostMatches = 32;     // libsentencepiece does not check for more
constexpr std::size_t kBlock = 256;  // children of a state, indexed by their byte

// Parts of a unit of a Darts-clone double array.
std::uint32_t label_of(std::uint32_t unit) {
  return unit & (std::uint32_t{1} << 31 | 0xFF);
}
bool has_leaf(std::uint32_t unit) {
  return (unit >> 8 & 1) != 0;
}
std::size_t offset_of(std::uint32_t unit) {
  return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}
std::size_t value_of(std::uint32_t unit) {
  return unit & ((std::uint32_t{1} << 31) - 1);
}

std::uint32_t little_endian(const char* bytes) {
  std::uint32_t number = 0;
  for (int i = 3; i >= 0; --i) number = number << 8 | static_cast<unsigned char>(bytes[i]);
  return number;
}

}  // namespace

Charsmap::Charsmap(const std::string& file, std::string bytes) : bytes_(std::move(bytes)) {
  if (bytes_.empty()) return;
  constexpr std::size_t kHeader = sizeof(std::uint32_t);
  const std::size_t size = bytes_.size() > kHeader ? little_endian(bytes_.data()) : 0;
  if (size == 0 || size > kLargestArray || size % (kHeader * kBlock) != 0 ||
      size >= bytes_.size() - kHeader)
    token_json::fail(file, "the precompiled_charsmap is damaged: its sizes do not fit",
                     fmt::format("{} of {} bytes", size, bytes_.size()),
                     token_json::kDownloadAgain);
  units_.resize(size / kHeader);
  for (std::size_t i = 0; i < units_.size(); ++i)
    units_[i] = little_endian(bytes_.data() + kHeader * (i + 1));
  replacements_ = bytes_.substr(kHeader + size);
  check(file);
}

void Charsmap::check(const std::string& file) {
  const auto damaged = [&](const std::string& what, std::size_t place) {
    token_json::fail(file, "the precompiled_charsmap is damaged: " + what, std::to_string(place),
                     token_json::kDownloadAgain);
  };
  if (replacements_.back() != '\0') damaged("its last text has no end", replacements_.size());
  if (const std::size_t place = first_invalid_utf8(replacements_); place < replacements_.size())
    damaged("a replacement is not UTF-8", place);
  enum class Progress : std::uint8_t { unseen, begun, done };
  struct Visit {
    std::size_t state, byte;
  };
  std::vector<Progress> progress(units_.size(), Progress::unseen);
  std::vector<std::uint8_t> matches(units_.size(), 0);  // on the longest way from a state
  std::vector<Visit> visits;
  const auto begin = [&](std::size_t state) {
    // The array is a whole number of blocks, so that a state's children are all inside or outside.
    if (state >= units_.size()) damaged("a state is outside of the array", state);
    if (progress[state] == Progress::begun) damaged("its strings have no end", state);
    if (progress[state] == Progress::done) return;
    progress[state] = Progress::begun;
    visits.push_back({state, 0});  // libsentencepiece searches NUL as well
  };
  begin(offset_of(unit(0)));
  while (!visits.empty()) {
    const auto [state, byte] = visits.back();
    if (byte == kBlock) {
      progress[state] = Progress::done;
      visits.pop_back();
      continue;
    }
    const std::size_t position = state ^ byte;
    const std::uint32_t child = unit(position);
    const std::size_t child_state = position ^ offset_of(child);
    if (label_of(child) == byte &&
        (child_state >= units_.size() || progress[child_state] != Progress::done)) {
      begin(child_state);  // and look at this child again afterwards
      continue;
    }
    ++visits.back().byte;
    if (label_of(child) != byte) continue;
    if (has_leaf(child)) {
      const std::size_t value = value_of(unit(child_state));
      if (value >= replacements_.size()) damaged("a replacement is outside of the text", value);
      if ((replacements_[value] & 0xC0) == 0x80)
        damaged("a replacement starts within a character", value);
      const std::size_t end = replacements_.find('\0', value);
      const std::size_t length = std::min(end, replacements_.size()) - value;
      if (length > kLongestReplacement) damaged("a replacement is too long", length);
      longest_ = std::max(longest_, length);
    }
    const int more = matches[child_state] + (has_leaf(child) ? 1 : 0);
    if (more > kMostMatches) damaged("too many of its strings begin with others", position);
    matches[state] = std::max(matches[state], static_cast<std::uint8_t>(more));
  }
}

std::optional<std::string_view> Charsmap::shortest(std::string_view text) const {
  if (units_.empty()) return std::nullopt;
  std::size_t state = offset_of(unit(0));
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const std::size_t position = state ^ byte;
    if (byte == 0 || label_of(unit(position)) != byte) return std::nullopt;
    state = position ^ offset_of(unit(position));
    if (has_leaf(unit(position)))
      return std::string_view(replacements_.c_str() + value_of(unit(state)));
  }
  return std::nullopt;
}

}  // namespace deltapipe
