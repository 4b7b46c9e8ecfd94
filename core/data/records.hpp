// SPDX-License-Identifier: BSD-3-Clause
// Records of JSON lines, CSV and TSV files with chosen fields.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/error.hpp"
#include "core/data/settings.hpp"

namespace deltapipe {

/// Lines of a file that contain no record and that the deck allows to skip.
struct SkippedLines {
  std::string file;
  std::uint64_t count = 0;
  std::uint64_t lines = 0;  ///< lines of the file
  std::string first;        ///< error of the first skipped line, with its place
};
/// Returns a sentence for the user.
std::string text_of(const SkippedLines& lines);
std::vector<std::string> texts_of(const std::vector<SkippedLines>& files);

/// Fields that are read from each record.
struct RecordFields {
  DataFormat format = DataFormat::jsonl;  ///< jsonl, csv or tsv
  std::vector<std::string> names;         ///< columns, or their numbers from 1 without a header
  std::string keys;                       ///< keys of the deck that name them, for messages
  bool header = true;                     ///< of csv and tsv: the first line names the columns
  bool numbers = false;                   ///< of jsonl: whole numbers count as text
  bool last_is_optional = false;  ///< the last of several fields may be absent: it is empty then
};

namespace detail {

/// Throws the UserError of a file without documents.
[[noreturn]] void throw_empty(const std::string& file, DataFormat format,
                              const SkippedLines& skipped);
/// Calls take(fields, line) for each record and refuse(error) for each other line. Returns the
/// number of lines.
std::uint64_t for_each_record(
    const std::string& file, const RecordFields& fields,
    const std::function<void(std::vector<std::string>&&, std::size_t line)>& take,
    const std::function<void(const UserError&)>& refuse);
}  // namespace detail

/// Calls take(make(fields of a record, its line)) for every record. CSV is that of RFC 4180; TSV
/// has no quotes. If bad_lines allows it, lines without the fields, and those for which `make`
/// throws UserError, are skipped and returned. Throws UserError with file and line.
template <class Make, class Take>
SkippedLines read_records(const std::string& file, BadLines bad_lines, const RecordFields& fields,
                          const Make& make, const Take& take) {
  SkippedLines skipped;
  skipped.file = file;
  bool empty = true;
  const auto refuse = [&](const UserError& error) {
    if (bad_lines == BadLines::error) throw error;
    if (skipped.count++ == 0) skipped.first = error.what();
  };
  const auto read = [&](std::vector<std::string>&& values, std::size_t line) {
    decltype(make(std::move(values), line)) made;
    try {
      made = make(std::move(values), line);
    } catch (const UserError& error) {
      refuse(error);
      return;
    }
    empty = false;
    take(made);
  };
  skipped.lines = detail::for_each_record(file, fields, read, refuse);
  if (empty) detail::throw_empty(file, fields.format, skipped);
  return skipped;
}

}  // namespace deltapipe
