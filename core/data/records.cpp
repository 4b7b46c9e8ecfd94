// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/records.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

#include "core/base/number_text.hpp"
#include "core/base/printable.hpp"
#include "core/data/text_lines.hpp"
#include "core/files/json.hpp"

namespace deltapipe {
namespace {

std::string shown(std::string_view text) {
  return printable(text, 60);
}

constexpr const char* kLineRemedy =
    "write one JSON object per line; data.bad_lines = \"skip\" skips other lines";
constexpr const char* kListRemedy =
    "write the list's objects one per line, for example with jq -c '.[]'";

/// Returns the fields of one line of JSON, in their order.
std::vector<std::string> json_fields(const std::string& file, std::size_t line,
                                     const std::string& text, const RecordFields& wanted) {
  const std::vector<std::string>& fields = wanted.names;
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
        if (wanted.numbers && value.is_number_integer()) {
          found.emplace(key, value.dump());
          return;
        }
        if (value.is_null() && wanted.last_is_optional && key == fields.back()) return;
        if (!value.is_string()) {
          refuse_line(file, "field '" + key + "' is not a string", deltapipe::shown(value),
                      "set " + wanted.keys + " to fields of text", line);
        }
        found.emplace(key, std::move(value.get_ref<std::string&>()));
      });
  std::vector<std::string> values;
  for (const std::string& field : fields) {
    const auto value = found.find(field);
    if (value == found.end()) {
      if (wanted.last_is_optional && &field == &fields.back()) {
        values.emplace_back();
        continue;
      }
      refuse_line(file, "the line has no field '" + field + "'", shown(text),
                  "set " + wanted.keys +
                      " to fields that every line has; data.bad_lines = \"skip\" skips the lines "
                      "that lack one",
                  line);
    }
    values.push_back(value->second);
  }
  return values;
}

/// Adds up the lines of a CSV record, which quotes may extend over several.
class CsvRecord {
 public:
  /// Adds a line. Returns true if the record is complete; fields() then has its fields.
  bool add(const std::string& file, std::size_t number, std::string_view line) {
    if (!in_quotes_) {
      fields_.clear();
      begin_ = number;
      start_field();
    } else {
      fields_.back() += '\n';
    }
    for (const char c : line) add(file, number, c);
    if (in_quotes_ && fields_.back().size() > file_limit::jsonl_line) refuse_open(file);
    if (in_quotes_) return false;
    // The line's end may be CR LF.
    if (!quoted_ && fields_.back().ends_with('\r')) fields_.back().pop_back();
    return true;
  }
  void end(const std::string& file) const {
    if (in_quotes_) refuse_open(file);
  }
  std::vector<std::string>& fields() { return fields_; }
  bool is_blank() const { return fields_.size() == 1 && fields_[0].empty() && !quoted_; }
  std::size_t begin() const { return begin_; }

 private:
  void start_field() {
    fields_.emplace_back();
    quoted_ = in_quotes_ = closed_ = false;
  }
  void add(const std::string& file, std::size_t number, char c) {
    std::string& field = fields_.back();
    if (in_quotes_) {
      if (c != '"') {
        field += c;
      } else {
        in_quotes_ = false;
        closed_ = true;
      }
    } else if (c == '"' && closed_) {  // a doubled quote
      field += c;
      in_quotes_ = true;
      closed_ = false;
    } else if (c == '"' && field.empty() && !quoted_) {
      quoted_ = in_quotes_ = true;
    } else if (c == ',') {
      start_field();
    } else if (closed_ && c != '\r') {
      refuse_line(file, "text follows a closing quote", shown(field + '"' + c),
                  "write quotes inside a quoted field twice", number);
    } else if (!closed_) {
      field += c;
    }
  }
  [[noreturn]] void refuse_open(const std::string& file) const {
    refuse_line(file, "a quoted field has no end", shown(fields_.back()),
                "close the quote, and write quotes inside a quoted field twice", begin_);
  }

  std::vector<std::string> fields_;
  std::size_t begin_ = 0;
  bool quoted_ = false;     ///< the last field began with a quote
  bool in_quotes_ = false;  ///< and has not ended
  bool closed_ = false;     ///< its last character was a quote
};

std::vector<std::string> tsv_fields(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  std::vector<std::string> fields;
  for (;;) {
    const std::size_t tab = std::min(line.find('\t'), line.size());
    fields.emplace_back(line.substr(0, tab));
    if (tab == line.size()) return fields;
    line.remove_prefix(tab + 1);
  }
}

/// Columns of a table, by the names in its header or by their numbers.
class Columns {
 public:
  Columns(const std::string& file, const RecordFields& wanted) : file_(file), wanted_(wanted) {
    if (!wanted.header && wanted.format != DataFormat::jsonl)
      for (const std::string& name : wanted.names)
        if (!name.empty()) columns_.push_back(number(name));
  }

  /// Returns true for the header, which it reads.
  bool is_header(std::vector<std::string> names, std::size_t line) {
    if (!wanted_.header || !columns_.empty()) return false;
    for (const std::string& name : wanted_.names) {
      const auto found = std::ranges::find(names, name);
      if (found == names.end() && wanted_.last_is_optional && &name == &wanted_.names.back()) break;
      if (found == names.end())
        refuse_line(file_, "the header has no column '" + name + "'", shown(joined(names)),
                    "set " + wanted_.keys + " to columns of the header; without a header, set " +
                        "data.labelled.header = false and give their numbers",
                    line);
      if (std::ranges::count(names, name) > 1)
        refuse_line(file_, "the header has more than one column '" + name + "'",
                    shown(joined(names)), "give every column a name of its own", line);
      columns_.push_back(static_cast<std::size_t>(found - names.begin()));
    }
    width_ = names.size();
    return true;
  }

  std::vector<std::string> choose(std::vector<std::string>&& fields, std::size_t line) {
    if (width_ == 0) {
      width_ = fields.size();
      if (wanted_.last_is_optional && columns_.size() > 1 && columns_.back() >= width_)
        columns_.pop_back();
    }
    const std::size_t last = *std::ranges::max_element(columns_);
    if (fields.size() != width_ || last >= fields.size())
      refuse_line(file_, "the line has another number of columns than the first one",
                  fmt::format("{} columns, expected {}", fields.size(), std::max(width_, last + 1)),
                  wanted_.format == DataFormat::csv ? "put fields with commas in quotes"
                                                    : "separate columns by one tab",
                  line);
    std::vector<std::string> chosen;
    for (const std::size_t column : columns_) chosen.push_back(fields[column]);
    chosen.resize(wanted_.names.size());  // the last one may be absent
    return chosen;
  }

 private:
  std::size_t number(const std::string& name) const {
    const std::optional<std::int64_t> value = whole_number(name);
    if (!value || *value < 1)
      refuse_line(file_, "without a header, columns are numbers from 1", name,
                  "set " + wanted_.keys);
    return static_cast<std::size_t>(*value - 1);
  }
  static std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  const std::string& file_;
  const RecordFields& wanted_;
  std::vector<std::size_t> columns_;
  std::size_t width_ = 0;  ///< columns of every line; 0: not known
};

bool is_blank(std::string_view text) {
  return text.find_first_not_of(" \t\r") == std::string_view::npos;
}

}  // namespace

namespace detail {

std::uint64_t for_each_record(
    const std::string& file, const RecordFields& fields,
    const std::function<void(std::vector<std::string>&&, std::size_t line)>& take,
    const std::function<void(const UserError&)>& refuse) {
  std::uint64_t lines = 0;
  Columns columns(file, fields);
  CsvRecord csv;
  const auto take_row = [&](std::vector<std::string>&& row, std::size_t line) {
    if (columns.is_header(row, line)) return;
    std::optional<std::vector<std::string>> chosen;
    try {
      chosen = columns.choose(std::move(row), line);
    } catch (const UserError& error) {
      refuse(error);
    }
    if (chosen) take(std::move(*chosen), line);
  };
  const auto read = [&](const std::string& text, std::size_t line) {
    ++lines;
    if (fields.format == DataFormat::csv) {
      bool complete = false;
      try {
        complete = csv.add(file, line, text);
      } catch (const UserError& error) {
        csv = CsvRecord();
        refuse(error);
      }
      if (complete && !csv.is_blank()) take_row(std::move(csv.fields()), csv.begin());
      return;
    }
    if (is_blank(text)) return;
    if (fields.format == DataFormat::tsv) return take_row(tsv_fields(text), line);
    std::optional<std::vector<std::string>> values;
    try {
      values = json_fields(file, line, text, fields);
    } catch (const UserError& error) {
      refuse(error);
    }
    if (values) take(std::move(*values), line);
  };
  const auto read_after_mark = [&](const std::string& text, std::size_t line) {
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (line == 1 && text.starts_with(kByteOrderMark))
      read(text.substr(kByteOrderMark.size()), line);
    else
      read(text, line);
  };
  read_text_lines(file, read_after_mark, [&](const UserError& error) {
    ++lines;
    refuse(error);
  });
  csv.end(file);
  return lines;
}

void throw_empty(const std::string& file, DataFormat format, const SkippedLines& skipped) {
  constexpr const char* kEmpty = "the data file has no documents";
  if (skipped.count > 0)  // the first error has a remedy
    throw UserError({.what = fmt::format("{}; {} of {} lines are skipped, the first: {}", kEmpty,
                                         skipped.count, skipped.lines, skipped.first),
                     .file = file});
  throw UserError({.what = kEmpty,
                   .file = file,
                   .remedy = format == DataFormat::jsonl ? "write one JSON object per line"
                                                         : "write one record per line"});
}

}  // namespace detail

std::string text_of(const SkippedLines& lines) {
  return fmt::format("{}: {} of {} lines are skipped (data.bad_lines = \"skip\"); the first: {}",
                     printable(lines.file, 200), lines.count, lines.lines, lines.first);
}

std::vector<std::string> texts_of(const std::vector<SkippedLines>& files) {
  std::vector<std::string> texts;
  for (const SkippedLines& lines : files) texts.push_back(text_of(lines));
  return texts;
}

}  // namespace deltapipe
