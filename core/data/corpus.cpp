// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/corpus.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iomanip>
#include <map>
#include <span>
#include <sstream>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/base/utf8.hpp"
#include "core/data/parallel_tokenizer.hpp"
#include "core/data/token_file.hpp"
#include "core/files/input_file.hpp"
#include "core/files/json.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& file, const std::string& what, const std::string& value,
                       const std::string& remedy, std::size_t line = 0) {
  throw UserError({.what = what, .file = file, .line = line, .value = value, .remedy = remedy});
}

/// A kind of file that is not supported, with its first bytes.
struct OtherKind {
  std::string_view bytes;
  const char* name;
  const char* remedy;
};
constexpr const char* kUnpack = "unpack it and name the unpacked file";
constexpr const char* kExport =
    "write its texts as JSON lines, for example with to_json of pandas "
    "or datasets (orient=\"records\", lines=True)";
constexpr std::array<OtherKind, 9> kOtherKinds = {
    {{"\x1f\x8b", "gzip", kUnpack},
     {"\x28\xb5\x2f\xfd", "zstd", kUnpack},
     {"\xfd"
      "7zXZ",
      "xz", kUnpack},
     {"BZh", "bzip2", kUnpack},
     {"PK\x03\x04", "zip", kUnpack},
     {"PAR1", "Parquet", kExport},
     {"ARROW1", "Arrow", kExport},
     {"\x93NUMPY", "NumPy", "write the ids into a token file (.h5)"},
     {"\x89HDF", "HDF5", "name it .h5, or set data.format to hdf5"}}};

/// Refuses a file that contains neither text nor tokens, with a remedy.
void expect_no_other_kind(const ReadOnlyFile& file) {
  std::array<char, 8> first{};
  const std::size_t size = std::min<std::uint64_t>(first.size(), file.size());
  file.read_at(0, std::as_writable_bytes(std::span(first).first(size)));
  const std::string_view text(first.data(), size);
  for (const OtherKind& kind : kOtherKinds)
    if (text.starts_with(kind.bytes))
      fail(file.path(), std::string("this is a file of ") + kind.name + ", not a text", "",
           kind.remedy);
}

/// Refuses text that is not UTF-8, because training would see replacement characters. It also
/// refuses NUL, which text does not contain, but which is every second byte of text in UTF-16.
class Utf8Check {
 public:
  /// `file` must outlive it. `offset` is the place in the file of the text's first byte, which
  /// begins a line.
  explicit Utf8Check(const std::string& file, std::size_t line = 1, std::uint64_t offset = 0)
      : file_(file), line_(line), offset_(offset), line_start_(offset) {}

  /// Adds the next piece of the text, which may be cut anywhere.
  void add(std::string_view piece) {
    std::string_view text = piece;
    std::string joined;
    if (!cut_.empty()) {
      joined = cut_ + std::string(piece);
      text = joined;
    }
    const std::size_t end = std::min(first_invalid_utf8(text), text.find('\0'));
    if (end < text.size() && !is_cut_utf8_sequence(text.substr(end))) refuse(text, end);
    count(text.substr(0, end));
    cut_ = text.substr(std::min(end, text.size()));
  }

  void end() const {
    if (!cut_.empty()) refuse(cut_, 0);
  }

 private:
  void count(std::string_view text) {
    const std::size_t newline = text.rfind('\n');
    line_ += static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
    offset_ += text.size();
    if (newline != std::string_view::npos) line_start_ = offset_ - (text.size() - newline - 1);
  }

  [[noreturn]] void refuse(std::string_view text, std::size_t position) const {
    Utf8Check here = *this;
    here.count(text.substr(0, position));
    std::ostringstream byte;
    byte << "byte 0x" << std::hex << std::uppercase << std::setw(2) << std::setfill('0')
         << static_cast<unsigned>(static_cast<unsigned char>(text[position]));
    const bool nul = text[position] == '\0';
    const std::string_view rest = text.substr(position);
    const bool has_mark = here.offset_ == 0 && (rest.starts_with("\xff\xfe") ||
                                                rest.starts_with("\xfe\xff"));  // mark of UTF-16
    const char* const what = nul        ? "this is not text, it contains a NUL: "
                             : has_mark ? "this text is in UTF-16: "
                                        : "this text is not UTF-8: ";
    throw UserError(
        {.what = what + byte.str() + " at offset " + std::to_string(here.offset_),
         .file = file_,
         .line = here.line_,
         .column = here.offset_ - here.line_start_ + 1,
         .remedy = nul        ? "name a text file; one in UTF-16 becomes UTF-8 with iconv -f "
                                "UTF-16 -t UTF-8"
                   : has_mark ? "convert the file with iconv -f UTF-16 -t UTF-8"
                              : "convert the file, for example with iconv -f LATIN1 -t UTF-8"});
  }

  const std::string& file_;
  std::size_t line_;
  std::uint64_t offset_;      // offset of cut_
  std::uint64_t line_start_;  // offset of the line's first byte
  std::string cut_;           // beginning of a sequence that continues in the next piece
};

/// Calls take(block) for a whole file of UTF-8 text, block by block; an empty file is an error.
template <class Take>
void read_blocks(const std::string& name, const Take& take) {
  const ReadOnlyFile file(name);
  if (file.size() == 0) fail(name, "the data file is empty", "", "give a file with text");
  expect_no_other_kind(file);
  Utf8Check check(name);
  file.for_each_block([&](std::string_view block) {
    check.add(block);
    take(block);
  });
  check.end();
}

/// Calls take(line, number) for every line of a file, without its end; numbers count from 1. For
/// lines that are not text it calls `refuse` with a UserError. If `refuse` returns, the line is
/// skipped.
template <class Take, class Refuse>
void read_lines(const std::string& name, const Take& take, const Refuse& refuse) {
  const ReadOnlyFile file(name);
  expect_no_other_kind(file);
  std::string line;
  std::size_t number = 1;
  std::uint64_t begin = 0, length = 0;  // place of the line in the file
  const auto end_line = [&] {
    try {
      if (length > file_limit::jsonl_line)
        fail(name, "the line is longer than " + std::to_string(file_limit::jsonl_line) + " bytes",
             "", "write one document per line", number);
      Utf8Check check(name, number, begin);
      check.add(line);
      check.end();
    } catch (const UserError& error) {
      refuse(error);
      return;
    }
    take(line, number);
  };
  file.for_each_block([&](std::string_view block) {
    while (!block.empty()) {
      const std::size_t newline = std::min(block.find('\n'), block.size());
      length += newline;
      if (length <= file_limit::jsonl_line) line += block.substr(0, newline);
      if (newline == block.size()) return;
      block.remove_prefix(newline + 1);
      end_line();
      begin += length + 1;
      length = 0;
      line.clear();
      ++number;
    }
  });
  if (length > 0) end_line();
}

std::string shown(std::string_view text) {
  return printable(text, 60);
}

constexpr const char* kLineRemedy =
    "write one JSON object per line; data.bad_lines = \"skip\" skips other lines";
constexpr const char* kListRemedy =
    "write the list's objects one per line, for example with jq -c '.[]'";

/// Returns the fields of one line, in the order of `fields`. `keys` are the deck keys that name
/// them.
std::vector<std::string> fields_of(const std::string& file, std::size_t line,
                                   const std::string& text, const std::vector<std::string>& fields,
                                   const std::string& keys) {
  std::map<std::string, std::string> found;
  for_each_json_member(
      text,
      {.file = file,
       .line = line,
       .subject = "the line ",
       .remedy = text.find_first_not_of(" \t\r") < text.size() &&
                         text[text.find_first_not_of(" \t\r")] == '['
                     ? kListRemedy
                     : kLineRemedy,
       .nan_is_null = true},
      [&](const std::string& key) { return std::ranges::find(fields, key) != fields.end(); },
      [&](const std::string& key, Json&& value) {
        if (!value.is_string()) {
          fail(file, "field '" + key + "' is not a string", deltapipe::shown(value),
               "set " + keys + " to fields of text", line);
        }
        found.emplace(key, std::move(value.get_ref<std::string&>()));
      });
  std::vector<std::string> values;
  for (const std::string& field : fields) {
    const auto value = found.find(field);
    if (value == found.end()) {
      fail(file, "the line has no field '" + field + "'", shown(text),
           "set " + keys +
               " to fields that every line has; data.bad_lines = \"skip\" skips the lines "
               "that lack one",
           line);
    }
    values.push_back(value->second);
  }
  return values;
}

/// Calls take(make(fields of a line, its number)) for every line. If the settings allow it, lines
/// that lack a field or for which `make` throws UserError are skipped and returned.
template <class Make, class Take>
SkippedLines read_jsonl(const std::string& file, BadLines bad_lines,
                        const std::vector<std::string>& fields, const std::string& keys,
                        const Make& make, const Take& take) {
  SkippedLines skipped;
  skipped.file = file;
  bool empty = true;
  const auto leave_out = [&](const UserError& error) {
    if (bad_lines == BadLines::error) throw error;
    if (skipped.count++ == 0) skipped.first = error.what();
  };
  const auto read = [&](const std::string& text, std::size_t line) {
    ++skipped.lines;
    if (text.find_first_not_of(" \t\r") == std::string::npos) return;
    decltype(make({}, line)) made;
    try {
      made = make(fields_of(file, line, text, fields, keys), line);
    } catch (const UserError& error) {
      leave_out(error);
      return;
    }
    empty = false;
    take(made);
  };
  read_lines(file, read, [&](const UserError& error) {
    ++skipped.lines;
    leave_out(error);
  });
  if (empty)
    fail(file, "the data file has no documents",
         skipped.count > 0 ? std::to_string(skipped.count) + " lines skipped" : "",
         "write one JSON object per line");
  return skipped;
}

/// Calls take(document) for every line: its fields, joined by an empty line.
template <class Take>
SkippedLines read_documents(const std::string& file, const DataSettings& settings,
                            const Take& take) {
  if (settings.jsonl_fields.empty()) {
    fail(file, "data.jsonl_fields names no field", "",
         "set data.jsonl_fields, for example to [\"text\"]");
  }
  const auto join = [](std::vector<std::string>&& values, std::size_t) {
    std::string document = std::move(values.front());
    for (std::size_t i = 1; i < values.size(); ++i) document += "\n\n" + values[i];
    return document;
  };
  return read_jsonl(file, settings.bad_lines, settings.jsonl_fields, "data.jsonl_fields", join,
                    take);
}

const char* name_of(DataFormat format) {
  return format == DataFormat::text ? "text" : format == DataFormat::jsonl ? "jsonl" : "hdf5";
}

}  // namespace

DataFormat data_format(const std::string& file, DataFormat asked) {
  const std::string suffix = fs::path(file).extension().string();
  const DataFormat named = suffix == ".txt"                       ? DataFormat::text
                           : suffix == ".jsonl"                   ? DataFormat::jsonl
                           : suffix == ".h5" || suffix == ".hdf5" ? DataFormat::hdf5
                                                                  : DataFormat::automatic;
  if (asked == DataFormat::automatic && named != asked) return named;
  if (asked != DataFormat::automatic) {
    // A text file may contain JSON lines; if it does not, the first line already shows this.
    const bool may_be = named == DataFormat::automatic || named == asked ||
                        (named == DataFormat::text && asked == DataFormat::jsonl);
    if (may_be) return asked;
    throw UserError({.what = file + " has the suffix of another format than data.format",
                     .value = std::string(name_of(asked)) + " and " + suffix,
                     .remedy = "set data.format to automatic; it follows the suffix of each file",
                     .keys = {"data.format"}});
  }
  const ReadOnlyFile readable(file);  // refuses a pipe or a device before its suffix is refused
  expect_no_other_kind(readable);
  const bool is_table = suffix == ".csv" || suffix == ".tsv";
  fail(file, "the suffix of the data file does not identify its format", suffix,
       is_table ? kExport : "set data.format to text, jsonl or hdf5");
}

std::string text_of(const SkippedLines& lines) {
  return printable(lines.file, 200) + ": " + std::to_string(lines.count) + " of " +
         std::to_string(lines.lines) +
         " lines are skipped (data.bad_lines = \"skip\"); the first: " + lines.first;
}

std::vector<std::string> texts_of(const std::vector<SkippedLines>& files) {
  std::vector<std::string> texts;
  for (const SkippedLines& lines : files) texts.push_back(text_of(lines));
  return texts;
}

void read_tokens(const std::string& file, const DataSettings& settings,
                 const Vocabulary& vocabulary, TokenSink& sink, int threads) {
  const DataFormat format = data_format(file, settings.format);
  if (format == DataFormat::hdf5) return read_token_file(file, vocabulary, sink);
  if (vocabulary.tokenizer == nullptr) {
    fail(file, "there is no tokenizer for this text", "",
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
      read_blocks(file, [&](std::string_view block) { text.add(block); });
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
    fail(file, "the file contains token ids, not text", "", "give text or jsonl files");
  }
  if (format == DataFormat::jsonl) {
    read_documents(file, settings, take);
    return;
  }
  std::string document;
  read_blocks(file, [&](std::string_view block) { document += block; });
  take(document);
}

SkippedLines read_answers(const std::string& file, const DataSettings& settings,
                          const Vocabulary& vocabulary, int sequence_length,
                          const std::function<void(const PromptWithAnswer&)>& take) {
  const AnswerSettings& answers = settings.answers;
  if (data_format(file, DataFormat::automatic) != DataFormat::jsonl)
    fail(file, "prompts with answers are read from JSON lines", "", "name a .jsonl file");
  if (vocabulary.tokenizer == nullptr)
    fail(file, "there is no tokenizer for these prompts", "", "set tokenizer.path");
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
    if (before.empty()) fail(file, "the prompt is empty", "", "give every line a prompt", line);
    if (made.tokens.size() <= before.size() ||
        !std::equal(before.begin(), before.end(), made.tokens.begin()))
      fail(file, "the prompt's last token continues in the answer or its end",
           printable(prompt, 60) + " and " + printable(answer, 60),
           "end prompts where a word ends, and let answers begin with the space", line);
    if (made.tokens.size() - 1 > static_cast<std::size_t>(sequence_length))
      fail(file, "prompt and answer are longer than a sample",
           std::to_string(made.tokens.size() - 1) + " tokens",
           "give at most data.sequence_length = " + std::to_string(sequence_length) +
               " tokens, or data.bad_lines = \"skip\"",
           line);
    return made;
  };
  return read_jsonl(file, settings.bad_lines, {answers.prompt_field, answers.answer_field},
                    "evaluation.prompt_field and evaluation.answer_field", make, take);
}

bool holds_tokens_only(const DataSettings& settings) {
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
