// SPDX-License-Identifier: BSD-3-Clause
// Text and JSON lines. What is taken gives the ids of the whole text, and as many documents as
// there are.
#include "core/data/corpus.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

struct Count : TokenSink {
  std::size_t tokens = 0;
  std::size_t documents = 0;
  void append(std::span<const std::int32_t> ids) override { tokens += ids.size(); }
  void end_document() override { ++documents; }
};

const Tokenizer& tokenizer() {
  static const auto loaded = Tokenizer::load(DELTAPIPE_FIXTURES "/tokenizer");
  return *loaded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text = fuzz::text_of(data + 1, size - 1);
  const bool is_jsonl = data[0] % 2 == 1;
  const std::string file = fuzz::write(is_jsonl ? "a.jsonl" : "a.txt", text);
  DataSettings settings;
  settings.jsonl_fields = {"text", "title"};
  fuzz::takes([&] {
    Count count;
    read_tokens(file, settings, tokenizer(), count);
    if (is_jsonl) return;
    fuzz::expect(count.documents == 1);
    fuzz::expect(count.tokens == tokenizer().encode(text).size());
  });
  fuzz::takes([&] { read_texts(file, settings, [](std::string_view) {}); });
  return 0;
}
