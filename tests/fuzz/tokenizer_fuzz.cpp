// SPDX-License-Identifier: BSD-3-Clause
// The files of a tokenizer, separated by bytes 0xFE. The first byte of the input chooses which: a
// vocabulary of all single bytes, or WordPiece's special tokens, is supplied where a file needs one
// to get further.
#include "core/text/byte_level.hpp"
#include "core/text/tokenizer.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

/// The names and ids of all bytes, as members of a JSON object.
const std::string& byte_vocabulary() {
  static const std::string members = [] {
    std::string text;
    for (int id = 0; id < 256; ++id) {
      const char byte = static_cast<char>(byte_order()[static_cast<std::size_t>(id)]);
      std::string name = byte_level_name({&byte, 1});
      if (name == "\"" || name == "\\") name.insert(0, "\\");
      text += (id > 0 ? ",\"" : "\"") + name + "\":" + std::to_string(id);
    }
    return text;
  }();
  return members;
}

const std::string kSpecialTokens = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";

void use_tokenizer() {
  fuzz::takes([] {
    const auto tokenizer = Tokenizer::load(fuzz::scratch().string());
    const std::string text = "Hello world, it's 10 o'clock.\n  \xF0\x9F\x98\x80 na\xC3\xAFve\n";
    const std::vector<std::int32_t> ids = tokenizer->encode(text);
    for (const std::int32_t id : ids) fuzz::expect(id >= 0 && id < tokenizer->vocabulary_size());
    (void)tokenizer->decode(ids);
    (void)tokenizer->safe_cut(text);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::string> parts = fuzz::parts_of(fuzz::text_of(data + 1, size - 1));
  parts.resize(4);
  for (const char* name : {"tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json",
                           "added_tokens.json", "vocab.txt"}) {
    fuzz::remove(name);
  }
  const auto joined = [](const std::string& members) {
    return (members.empty() ? "" : ",") + members;
  };
  const auto more = [&](const std::string& members) {
    return "{" + byte_vocabulary() + joined(members) + "}";
  };
  switch (data[0] % 5) {
    case 0:
      fuzz::write("tokenizer.json", parts[0]);
      break;
    case 1:
      fuzz::write("tokenizer.json", "{\"model\":{\"vocab\":" + more(parts[0]) +
                                        ",\"merges\":" + (parts[1].empty() ? "[]" : parts[1]) +
                                        "}" + joined(parts[2]) + "}");
      break;
    case 2:
      fuzz::write("vocab.txt", kSpecialTokens + parts[0]);
      break;
    case 3:
      fuzz::write(
          "tokenizer.json",
          R"({"model":{"type":"WordPiece","vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3)" +
              joined(parts[0]) + "}" + joined(parts[1]) +
              R"(},"normalizer":{"type":"BertNormalizer"},)"
              R"("pre_tokenizer":{"type":"BertPreTokenizer"})" +
              joined(parts[2]) + "}");
      break;
    default:
      fuzz::write("vocab.json", more(parts[0]));
      fuzz::write("merges.txt", parts[1]);
      if (!parts[2].empty()) fuzz::write("added_tokens.json", parts[2]);
  }
  if (!parts[3].empty()) fuzz::write("tokenizer_config.json", parts[3]);
  use_tokenizer();
  return 0;
}
