// SPDX-License-Identifier: BSD-3-Clause
// A JSON text and a model's config.json. What the reader takes is what the library reads there.
#include "core/files/json.hpp"
#include "models/bert/bert_config.hpp"
#include "models/class_names.hpp"
#include "models/config_file.hpp"
#include "models/deberta/deberta_config.hpp"
#include "models/gpt2/gpt2_config.hpp"
#include "models/resnet/resnet_config.hpp"
#include "models/vit/vit_config.hpp"
#include "support.hpp"

using namespace deltapipe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  Json whole;
  if (fuzz::takes([&] { whole = parse_json(text, {.file = "a.json"}); })) {
    fuzz::expect(whole == Json::parse(text));
    fuzz::expect(shown(whole).size() < 80);
  }
  Json members = Json::object();
  const bool taken = fuzz::takes([&] {
    for_each_json_member(
        text, {.file = "a.json"}, [](const std::string& key) { return !key.starts_with('n'); },
        [&](const std::string& key, Json&& value) { members[key] = std::move(value); });
  });
  if (taken && whole.is_object()) {
    for (const auto& [key, value] : whole.items()) {
      fuzz::expect(key.starts_with('n') ? !members.contains(key) : members.at(key) == value);
    }
  }
  fuzz::write("config.json", text);
  const auto config = [] { return read_config_file(fuzz::scratch().string()); };
  fuzz::takes([&] { Gpt2Config::read(config()).check("config.json"); });
  fuzz::takes([&] { BertConfig::read(config()).check("config.json"); });
  fuzz::takes([&] { DebertaConfig::read(config()).check("config.json"); });
  fuzz::takes([&] { VitConfig::read(config()).check("config.json"); });
  fuzz::takes([&] { ResnetConfig::read(config()).check("config.json"); });
  fuzz::takes([&] { read_class_names(config()); });
  return 0;
}
