// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/corpus.hpp"

#include <algorithm>
#include <filesystem>
#include <iomanip>
#include <map>
#include <sstream>

#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/base/utf8.hpp"
#include "core/files/input_file.hpp"
#include "core/files/json.hpp"
#include "core/text/parallel_tokenizer.hpp"
#include "core/text/token_file.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& file, const std::string& what, const std::string& value,
                       const std::string& remedy, std::size_t line = 0) {
  throw UserError({.what = what, .file = file, .line = line, .value = value, .remedy = remedy});
}

/// Refuses text that is not UTF-8, which would be trained on as replacement characters. NUL is no
/// character of a text, but every second byte of one in UTF-16.
class Utf8Check {
 public:
  explicit Utf8Check(const std::string& file) : file_(file) {}

  /// The next piece of the text, cut anywhere.
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
    const char* const what = nul ? "this is no text, it holds a NUL: " : "this is no UTF-8 text: ";
    throw UserError(
        {.what = what + byte.str() + " at offset " + std::to_string(here.offset_),
         .file = file_,
         .line = here.line_,
         .column = here.offset_ - here.line_start_ + 1,
         .remedy = nul ? "name a text file; one in UTF-16 becomes UTF-8 with iconv -f UTF-16 -t "
                         "UTF-8"
                       : "convert the file, for example with iconv -f LATIN1 -t UTF-8"});
  }

  std::string file_;
  std::string cut_;  // the beginning of a sequence that goes on in the next piece
  std::size_t line_ = 1;
  std::uint64_t offset_ = 0;      // of cut_
  std::uint64_t line_start_ = 0;  // offset of the line's first byte
};

/// Calls take(block) for a whole file of UTF-8 text, block by block; an empty file is an error.
template <class Take>
void read_blocks(const std::string& name, const Take& take) {
  const ReadOnlyFile file(name);
  if (file.size() == 0) fail(name, "the data file is empty", "", "give a file with text");
  Utf8Check check(name);
  file.for_each_block([&](std::string_view block) {
    check.add(block);
    take(block);
  });
  check.end();
}

/// Calls take(line, number) for every line of a file, without its end; numbers count from 1.
template <class Take>
void read_lines(const std::string& name, const Take& take) {
  const ReadOnlyFile file(name);
  Utf8Check check(name);
  std::string line;
  std::size_t number = 1;
  file.for_each_block([&](std::string_view block) {
    check.add(block);
    while (!block.empty()) {
      const std::size_t newline = std::min(block.find('\n'), block.size());
      if (line.size() + newline > file_limit::jsonl_line) {
        fail(name, "the line is longer than " + std::to_string(file_limit::jsonl_line) + " bytes",
             "", "write one document a line", number);
      }
      line += block.substr(0, newline);
      if (newline == block.size()) return;
      block.remove_prefix(newline + 1);
      take(line, number);
      line.clear();
      ++number;
    }
  });
  check.end();
  if (!line.empty()) take(line, number);
}

std::string shown(std::string_view text) {
  return printable(text, 60);
}

/// The wanted fields of one line, joined by an empty line.
std::string jsonl_text(const std::string& file, std::size_t line, const std::string& text,
                       const std::vector<std::string>& fields) {
  std::map<std::string, std::string> found;
  for_each_json_member(
      text, {.file = file, .line = line, .subject = "the line "},
      [&](const std::string& key) { return std::ranges::find(fields, key) != fields.end(); },
      [&](const std::string& key, Json&& value) {
        if (!value.is_string()) {
          fail(file, "field '" + key + "' is no string", deltapipe::shown(value),
               "set data.jsonl_fields to fields of text", line);
        }
        found.emplace(key, std::move(value.get_ref<std::string&>()));
      });
  std::string document;
  for (const std::string& field : fields) {
    const auto value = found.find(field);
    if (value == found.end()) {
      fail(file, "the line has no field '" + field + "'", shown(text),
           "set data.jsonl_fields to fields that every line has", line);
    }
    if (&field != &fields.front()) document += "\n\n";
    document += value->second;
  }
  return document;
}

template <class Take>
void read_jsonl(const std::string& file, const std::vector<std::string>& fields, const Take& take) {
  if (fields.empty()) {
    fail(file, "no field to read is named", "", "set data.jsonl_fields, for example to [\"text\"]");
  }
  bool empty = true;
  read_lines(file, [&](const std::string& text, std::size_t line) {
    if (text.find_first_not_of(" \t\r") == std::string::npos) return;
    empty = false;
    take(jsonl_text(file, line, text, fields));
  });
  if (empty) fail(file, "the data file has no documents", "", "write one JSON object a line");
}

}  // namespace

DataFormat data_format(const std::string& file, DataFormat asked) {
  if (asked != DataFormat::automatic) return asked;
  const std::string suffix = fs::path(file).extension().string();
  if (suffix == ".txt") return DataFormat::text;
  if (suffix == ".jsonl") return DataFormat::jsonl;
  if (suffix == ".h5" || suffix == ".hdf5") return DataFormat::hdf5;
  const ReadOnlyFile readable(file);  // of a pipe or a device the suffix is not what is wrong
  fail(file, "the suffix of the data file does not tell its format", suffix,
       "set data.format to text, jsonl or hdf5");
}

void read_tokens(const std::string& file, const DataSettings& settings,
                 const Vocabulary& vocabulary, TokenSink& sink, int threads) {
  const DataFormat format = data_format(file, settings.format);
  if (format == DataFormat::hdf5) return read_token_file(file, vocabulary, sink);
  if (vocabulary.tokenizer == nullptr) {
    fail(file, "there is no tokenizer for this text", "",
         "set tokenizer.path, or name token files (.h5) only");
  }
  ParallelTokenizer text(*vocabulary.tokenizer, sink, threads);
  if (format == DataFormat::jsonl) {
    read_jsonl(file, settings.jsonl_fields, [&](const std::string& document) {
      text.add(document);
      text.end_document();
    });
  } else {
    read_blocks(file, [&](std::string_view block) { text.add(block); });
    text.end_document();
  }
  text.finish();
}

void read_texts(const std::string& file, const DataSettings& settings,
                const std::function<void(std::string_view)>& take) {
  const DataFormat format = data_format(file, settings.format);
  if (format == DataFormat::hdf5) {
    fail(file, "the file holds token ids, no text", "", "give text or jsonl files");
  }
  if (format == DataFormat::jsonl) return read_jsonl(file, settings.jsonl_fields, take);
  std::string document;
  read_blocks(file, [&](std::string_view block) { document += block; });
  take(document);
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
