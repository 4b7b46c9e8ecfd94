// SPDX-License-Identifier: BSD-3-Clause
#include "app/deck/data_checks.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "models/resnet/resnet_config.hpp"

namespace deltapipe::deck {

using std::to_string;

void refuse_settings(std::vector<std::string> keys, std::string what, std::string value,
                     std::string remedy) {
  throw UserError({.what = std::move(what),
                   .value = std::move(value),
                   .remedy = std::move(remedy),
                   .keys = std::move(keys)});
}

namespace {

void check_resnet(const ModelSettings& m) {
  constexpr std::size_t kMostGroups = ResnetConfig::kMostGroups;
  constexpr std::int64_t kMostChannels = ResnetConfig::kMostChannels;
  if (m.depths.empty() || m.depths.size() > kMostGroups)
    refuse_settings({"model.new.depths"},
                    fmt::format("model.new.depths has no entries, or more than {}", kMostGroups),
                    fmt::format("{} entries", m.depths.size()),
                    "give a number of blocks for each group");
  if (const std::int64_t most = std::int64_t{m.n_embd} << (m.depths.size() - 1);
      most > kMostChannels)
    refuse_settings({"model.new.n_embd", "model.new.depths"},
                    "model.new.n_embd gives the last group too many channels",
                    fmt::format("{} of at most {}", most, kMostChannels),
                    "lower model.new.n_embd, or give fewer groups in model.new.depths");
}

void check_images(const Settings& s) {
  if (s.data.format != DataFormat::automatic && !is_of_images(s.data.format))
    refuse_settings({"data.format", "data.kind"}, "data.format is not one of images",
                    name_of(s.data.format), "use automatic, idx, cifar10, cifar100 or directory");
  if (s.data.images.size.size() > 2)
    refuse_settings({"data.images.size"}, "data.images.size is neither a side nor height and width",
                    fmt::format("{} values", s.data.images.size.size()), "give one or two values");
  if (s.data.sequence_length > 0)
    refuse_settings({"data.sequence_length", "data.kind"}, "data.sequence_length is for texts",
                    to_string(s.data.sequence_length),
                    "remove it: the size of the images sets the rows");
  if (s.tokenizer != TokenizerSettings())
    refuse_settings({"tokenizer.path", "tokenizer.train_vocabulary"}, "images have no tokenizer",
                    "", "remove [tokenizer]");
  const auto is_positive = [](double d) { return d > 0; };
  if (s.data.images.mean.empty() || s.data.images.deviation.empty())
    refuse_settings({"data.images.mean", "data.images.deviation"},
                    "data.images.mean and data.images.deviation have no values", "",
                    "give one value, or one for each channel");
  if (!std::ranges::all_of(s.data.images.deviation, is_positive))
    refuse_settings({"data.images.deviation"}, "data.images.deviation must be above 0", "0",
                    "give the standard deviation of values from 0 to 1");
}

void check_kind_of_data(const Settings& s) {
  if (s.data.kind == DataKind::text) return;
  if (!s.data.answers.files.empty())
    refuse_settings(
        {"evaluation.prompts", "data.kind"}, "evaluation.prompts requires a language model",
        fmt::format("data.kind = \"{}\"", name_of(s.data.kind)), "remove evaluation.prompts");
  if (s.data.kind == DataKind::images) return check_images(s);
  const std::size_t texts = s.data.labelled.texts.size();
  if (texts < 1 || texts > 2)
    refuse_settings({"data.labelled.texts"}, "a record has one text or two",
                    fmt::format("{} fields", texts),
                    "name one or two fields in data.labelled.texts");
  if (std::ranges::count(s.data.labelled.texts, s.data.labelled.label) > 0)
    refuse_settings({"data.labelled.label", "data.labelled.texts"},
                    "data.labelled.label is also a text, which would contain the answer",
                    printable(s.data.labelled.label, 60), "name another field");
}

/// True when every data file holds tokens already.
bool is_tokenised(const DataSettings& data) {
  const auto holds_tokens = [&](const std::string& file) {
    const bool named_so = file.ends_with(".h5") || file.ends_with(".hdf5");
    return data.format == DataFormat::hdf5 || (data.format == DataFormat::automatic && named_so);
  };
  return std::ranges::all_of(data.train, holds_tokens) &&
         std::ranges::all_of(data.validation, holds_tokens);
}

}  // namespace

void check_model(const Settings& s) {
  const ModelSettings& m = s.model;
  if (!m.path.empty()) return;
  if (m.type == "resnet") return check_resnet(m);
  if (m.n_embd % m.n_head != 0) {
    refuse_settings(
        {"model.new.n_head", "model.new.n_embd"}, "model.new.n_head does not divide n_embd",
        fmt::format("{} heads, {} channels", m.n_head, m.n_embd), "use a divisor of n_embd");
  }
  if (is_text(s.data.kind) && s.data.sequence_length > m.n_positions) {
    refuse_settings({"data.sequence_length", "model.new.n_positions"},
                    "data.sequence_length is longer than the new model's n_positions",
                    fmt::format("{} tokens, {} positions", s.data.sequence_length, m.n_positions),
                    "raise model.new.n_positions or lower data.sequence_length");
  }
}

void check_tokenizer(const Settings& s) {
  if (!is_text(s.data.kind)) return;
  const TokenizerSettings& t = s.tokenizer;
  if (t.train_vocabulary > 0 && t.train_vocabulary < 257) {
    refuse_settings({"tokenizer.train_vocabulary"},
                    "tokenizer.train_vocabulary is too small for 256 bytes and the end of text",
                    to_string(t.train_vocabulary), "use at least 257, or 0 to train no tokenizer");
  }
  if (t.train_vocabulary > 0 && !t.path.empty()) {
    refuse_settings({"tokenizer.train_vocabulary"},
                    "tokenizer.path and tokenizer.train_vocabulary exclude each other", "",
                    "leave one of them out");
  }
  if (t.train_vocabulary > 0 && !s.model.path.empty()) {
    refuse_settings(
        {"tokenizer.train_vocabulary", "model.path"},
        "model.path and tokenizer.train_vocabulary exclude each other: a model knows the ids of "
        "its own tokenizer only",
        s.model.path,
        "set tokenizer.train_vocabulary to 0, or name the model on the command line, in place "
        "of the deck's new one");
  }
  if (s.model.path.empty() && t.path.empty() && t.train_vocabulary == 0 && !s.data.train.empty() &&
      !is_tokenised(s.data)) {
    refuse_settings(
        {"data.train"}, "a new model has no tokenizer for its text", "",
        "set tokenizer.path, tokenizer.train_vocabulary or model.path, or name token files (.h5)");
  }
}

void check_data(const Settings& s) {
  check_kind_of_data(s);
  const DataSettings& d = s.data;
  const auto empty = [](const std::string& text) { return text.empty(); };
  for (const auto& [key, list] :
       {std::pair{"data.train", &d.train}, std::pair{"data.validation", &d.validation},
        std::pair{"data.predict", &d.predict}, std::pair{"data.jsonl_fields", &d.jsonl_fields},
        std::pair{"evaluation.prompts", &d.answers.files}}) {
    if (std::ranges::any_of(*list, empty)) {
      refuse_settings({key}, fmt::format("{} holds an empty name", key), "\"\"", "remove it");
    }
  }
  if (d.jsonl_fields.empty()) {
    refuse_settings({"data.jsonl_fields"}, "data.jsonl_fields names no field", "",
                    "name at least one, as [\"text\"]");
  }
}

}  // namespace deltapipe::deck
