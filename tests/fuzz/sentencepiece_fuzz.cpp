// SPDX-License-Identifier: BSD-3-Clause
// Files of Unigram tokenizers. The first byte of the input chooses: a whole spm.model; the
// character map of a valid one; the pieces of a valid one; or the members of a tokenizer.json, with
// a character map. The last bytes of the input are the text that the tokenizer encodes.
#include <algorithm>

#include "core/text/sentencepiece_model.hpp"
#include "core/text/tokenizer.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

constexpr std::size_t kTextBytes = 48;

SentencePieceModel small_model() {
  SentencePieceModel model;
  const auto add = [&](const char* text, float score, PieceKind kind) {
    model.pieces.push_back({text, score, kind});
  };
  add("[PAD]", 0, PieceKind::control);
  add("[CLS]", 0, PieceKind::control);
  add("[SEP]", 0, PieceKind::control);
  add("[UNK]", 0, PieceKind::unknown);
  add("<user>", 0, PieceKind::user_defined);
  add("\xE2\x96\x81", -2, PieceKind::normal);
  add("\xE2\x96\x81h", -3, PieceKind::normal);
  add("hello", -4, PieceKind::normal);
  add("l", -1, PieceKind::normal);
  add("o", -1.5F, PieceKind::unused);
  return model;
}

/// A map of up to four blocks of a double array and the replacements after them.
std::string charsmap_of(std::string_view bytes) {
  if (bytes.empty()) return {};
  const std::size_t size = 1024 * (1 + static_cast<unsigned char>(bytes[0]) % 4);
  bytes.remove_prefix(1);
  std::string trie(bytes.substr(0, size));
  bytes.remove_prefix(trie.size());
  trie.resize(size);
  std::string map;
  for (int shift = 0; shift < 32; shift += 8) map += static_cast<char>(size >> shift);
  return map + trie + std::string(bytes) + '\0';
}

std::string base64(std::string bytes) {
  constexpr const char* kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  bytes.resize((bytes.size() + 2) / 3 * 3);
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned three = 0;
    for (std::size_t j = 0; j < 3; ++j)
      three = three << 8 | static_cast<unsigned char>(bytes[i + j]);
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[three >> shift & 63];
  }
  return text;
}

std::string tokenizer_json(std::string_view bytes) {
  std::vector<std::string> parts = fuzz::parts_of(bytes);
  parts.resize(5);
  const auto joined = [](const std::string& members) {
    return (members.empty() ? "" : ",") + members;
  };
  return R"({"model":{"type":"Unigram","unk_id":3,"vocab":[["[PAD]",0],["[CLS]",0],["[SEP]",0],)"
         R"(["[UNK]",0],["\u2581",-2])" +
         joined(parts[0]) + "]" + joined(parts[1]) +
         R"(},"normalizer":{"type":"Sequence","normalizers":[{"type":"Precompiled",)"
         R"("precompiled_charsmap":")" +
         base64(charsmap_of(parts[2])) + R"("})" + joined(parts[3]) +
         R"(]},"pre_tokenizer":{"type":"Metaspace"})" + joined(parts[4]) + "}";
}

void use_tokenizer(const std::string& path, std::string_view end) {
  fuzz::takes([&] {
    const auto tokenizer = Tokenizer::load(path);
    const std::string text =
        "Hello  world,\t it's [CLS]\xEF\xBC\xA1\xCC\x81 \xC0\xF0\x9F\x98\x80 " + std::string(end);
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    for (const std::int32_t id : ids) fuzz::expect(id >= 0 && id < tokenizer->vocabulary_size());
    (void)tokenizer->decode(ids);
    const std::size_t cut = tokenizer->safe_cut(text);
    std::vector<std::int32_t> parts = tokenizer->encode(text.substr(0, cut));
    tokenizer->encode_to(text.substr(cut), parts);
    fuzz::expect(parts == ids);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view rest = fuzz::text_of(data + 1, size - 1);
  const std::string_view end = rest.substr(rest.size() - std::min(rest.size(), kTextBytes));
  SentencePieceModel model = small_model();
  switch (data[0] % 4) {
    case 0:
      return use_tokenizer(fuzz::write("spm.model", rest), end), 0;
    case 1:
      model.precompiled_charsmap = charsmap_of(rest);
      break;
    case 2:
      for (const std::string& part : fuzz::parts_of(rest)) {
        if (part.size() < 3) continue;
        const auto kind = static_cast<PieceKind>(part[0] & 7);
        model.pieces.push_back({part.substr(2), static_cast<float>(part[1]), kind});
      }
      model.add_dummy_prefix = (rest.size() & 1) != 0;
      model.remove_extra_whitespaces = (rest.size() & 2) != 0;
      model.escape_whitespaces = (rest.size() & 4) != 0;
      model.treat_whitespace_as_suffix = (rest.size() & 8) != 0;
      break;
    default:
      return use_tokenizer(fuzz::write("tokenizer.json", tokenizer_json(rest)), end), 0;
  }
  use_tokenizer(fuzz::write("spm.model", serialized(model)), end);
  return 0;
}
