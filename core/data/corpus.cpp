// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/corpus.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/data/parallel_tokenizer.hpp"
#include "core/data/text_lines.hpp"
#include "core/data/token_file.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;

/// Calls take(document) for every line: its fields, joined by an empty line.
template <class Take>
SkippedLines read_documents(const std::string& file, const DataSettings& settings,
                            const Take& take) {
  if (settings.jsonl_fields.empty()) {
    refuse_line(file, "data.jsonl_fields names no field", "",
                "set data.jsonl_fields, for example to [\"text\"]");
  }
  const auto join = [](std::vector<std::string>&& values, std::size_t) {
    std::string document = std::move(values.front());
    for (std::size_t i = 1; i < values.size(); ++i) document += "\n\n" + values[i];
    return document;
  };
  return read_records(file, settings.bad_lines,
                      {.names = settings.jsonl_fields, .keys = "data.jsonl_fields"}, join, take);
}

void refuse_other_kinds(const std::string& file, DataFormat format) {
  if (format == DataFormat::csv || format == DataFormat::tsv)
    refuse_line(file, "a table is not a text", "",
                "set data.kind to \"labelled_text\", or write the texts as JSON lines");
  if (is_of_images(format))
    refuse_line(file, "data.format is that of images", name_of(format),
                "set data.kind to \"images\", or data.format to text or jsonl");
}

}  // namespace

DataFormat data_format(const std::string& file, DataFormat asked) {
  const std::string suffix = fs::path(file).extension().string();
  const DataFormat named = suffix == ".txt"                       ? DataFormat::text
                           : suffix == ".jsonl"                   ? DataFormat::jsonl
                           : suffix == ".csv"                     ? DataFormat::csv
                           : suffix == ".tsv"                     ? DataFormat::tsv
                           : suffix == ".h5" || suffix == ".hdf5" ? DataFormat::hdf5
                                                                  : DataFormat::automatic;
  if (asked == DataFormat::automatic && named != asked) return named;
  if (asked != DataFormat::automatic) {
    // A text file may contain JSON lines; if it does not, the first line already shows this.
    const bool may_be = named == DataFormat::automatic || named == asked ||
                        (named == DataFormat::text && asked != DataFormat::hdf5);
    if (may_be) return asked;
    throw UserError({.what = file + " has the suffix of another format than data.format",
                     .value = fmt::format("{} and {}", name_of(asked), suffix),
                     .remedy = "set data.format to automatic; it follows the suffix of each file",
                     .keys = {"data.format"}});
  }
  const ReadOnlyFile readable(file);  // refuses a pipe or a device before its suffix is refused
  expect_no_other_kind(readable);
  refuse_line(file, "the suffix of the data file does not identify its format", suffix,
              "set data.format to text, jsonl, csv, tsv or hdf5");
}

void read_tokens(const std::string& file, const DataSettings& settings,
                 const Vocabulary& vocabulary, TokenSink& sink, int threads) {
  const DataFormat format = data_format(file, settings.format);
  if (format == DataFormat::hdf5) return read_token_file(file, vocabulary, sink);
  refuse_other_kinds(file, format);
  if (vocabulary.tokenizer == nullptr) {
    refuse_line(file, "there is no tokenizer for this text", "",
                "set tokenizer.path, or name token files (.h5) only");
  }
  try {
    ParallelTokenizer text(*vocabulary.tokenizer, sink, threads);
    if (format == DataFormat::jsonl) {
      const SkippedLines skipped = read_documents(file, settings, [&](const std::string& document) {
        text.add(document);
        text.end_document();
      });
      if (skipped.count > 0) sink.skip_lines(skipped);
    } else {
      read_text_blocks(file, [&](std::string_view block) { text.add(block); });
      text.end_document();
    }
    text.finish();
  } catch (const UserError& error) {
    Mistake mistake = error.mistake();  // the tokenizer does not know the file
    if (!mistake.file.empty()) throw;
    mistake.file = file;
    throw UserError(mistake);
  }
}

void read_texts(const std::string& file, const DataSettings& settings,
                const std::function<void(std::string_view)>& take) {
  const DataFormat format = data_format(file, settings.format);
  if (format == DataFormat::hdf5) {
    refuse_line(file, "the file contains token ids, not text", "", "give text or jsonl files");
  }
  if (format == DataFormat::jsonl) {
    read_documents(file, settings, take);
    return;
  }
  refuse_other_kinds(file, format);
  std::string document;
  read_text_blocks(file, [&](std::string_view block) { document += block; });
  take(document);
}

SkippedLines read_answers(const std::string& file, const DataSettings& settings,
                          const Vocabulary& vocabulary, int sequence_length,
                          const std::function<void(const PromptWithAnswer&)>& take) {
  const AnswerSettings& answers = settings.answers;
  if (data_format(file, DataFormat::automatic) != DataFormat::jsonl)
    refuse_line(file, "prompts with answers are read from JSON lines", "", "name a .jsonl file");
  if (vocabulary.tokenizer == nullptr)
    refuse_line(file, "there is no tokenizer for these prompts", "", "set tokenizer.path");
  const bool ends_with_token = answers.end.empty();
  if (ends_with_token && vocabulary.end_of_text < 0)
    throw UserError({.what = "answers have no end: the tokenizer has no end-of-text token",
                     .remedy = "set evaluation.answer_end to the text that ends an answer, for "
                               "example \"\\n\"",
                     .keys = {"evaluation.answer_end"}});
  const auto make = [&](std::vector<std::string>&& fields, std::size_t line) {
    const std::string &prompt = fields[0], &answer = fields[1];
    const std::vector<std::int32_t> before = vocabulary.tokenizer->encode(prompt);
    PromptWithAnswer made{vocabulary.tokenizer->encode(prompt + answer + answers.end),
                          before.size()};
    if (ends_with_token) made.tokens.push_back(vocabulary.end_of_text);
    if (before.empty())
      refuse_line(file, "the prompt is empty", "", "give every line a prompt", line);
    if (made.tokens.size() <= before.size() ||
        !std::equal(before.begin(), before.end(), made.tokens.begin()))
      refuse_line(file, "the prompt's last token continues in the answer or its end",
                  printable(prompt, 60) + " and " + printable(answer, 60),
                  "end prompts where a word ends, and let answers begin with the space", line);
    if (made.tokens.size() - 1 > static_cast<std::size_t>(sequence_length))
      refuse_line(
          file, "prompt and answer are longer than a sample",
          fmt::format("{} tokens", made.tokens.size() - 1),
          fmt::format("give at most data.sequence_length = {} tokens, or data.bad_lines = \"skip\"",
                      sequence_length),
          line);
    return made;
  };
  return read_records(file, settings.bad_lines,
                      {.names = {answers.prompt_field, answers.answer_field},
                       .keys = "evaluation.prompt_field and evaluation.answer_field"},
                      make, take);
}

bool holds_tokens_only(const DataSettings& settings) {
  if (!is_text(settings.kind)) return false;
  const auto is_token_file = [&](const std::string& file) {
    return data_format(file, settings.format) == DataFormat::hdf5;
  };
  return !settings.train.empty() && std::ranges::all_of(settings.train, is_token_file) &&
         std::ranges::all_of(settings.validation, is_token_file);
}

std::vector<std::string> training_texts(const DataSettings& settings) {
  std::vector<std::string> texts;
  bool empty = true;
  for (const std::string& file : settings.train) {
    read_texts(file, settings, [&](std::string_view text) {
      texts.emplace_back(text);
      empty = empty && text.empty();
    });
  }
  if (empty)
    throw UserError({.what = "there is no text to train a tokenizer from",
                     .remedy = "name files in data.train",
                     .keys = {"data.train"}});
  return texts;
}

}  // namespace deltapipe
