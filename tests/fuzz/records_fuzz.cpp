// SPDX-License-Identifier: BSD-3-Clause
// Records of CSV, TSV and JSON lines. Fields that are written as quoted CSV are read again as they
// were.
#include "core/data/records.hpp"
#include "support.hpp"

using namespace deltapipe;

namespace {

using Record = std::vector<std::string>;

std::vector<Record> read(const std::string& file, BadLines bad_lines, const RecordFields& fields) {
  std::vector<Record> records;
  read_records(
      file, bad_lines, fields, [](Record&& values, std::size_t) { return std::move(values); },
      [&](const Record& record) { records.push_back(record); });
  return records;
}

std::string quoted(const std::string& field) {
  std::string text = "\"";
  for (const char c : field) text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + '"';
}

}  // namespace

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  return fuzz::mutate_with_choice(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  constexpr DataFormat kFormats[] = {DataFormat::csv, DataFormat::tsv, DataFormat::jsonl};
  RecordFields fields;
  fields.format = kFormats[data[0] % 3];
  fields.header = data[0] / 3 % 2 == 0 || fields.format == DataFormat::jsonl;
  fields.numbers = data[0] / 6 % 2 == 0;
  fields.names = fields.header ? Record{"a", "b"} : Record{"1", "3"};
  fields.keys = "data.labelled.texts";
  const BadLines bad_lines = data[0] / 12 % 2 == 0 ? BadLines::skip : BadLines::error;
  const std::string file = fuzz::write("a", fuzz::text_of(data + 1, size - 1));
  std::vector<Record> records;
  if (!fuzz::takes([&] { records = read(file, bad_lines, fields); })) return 0;

  std::string csv = "a,b\n";
  for (const Record& record : records) csv += quoted(record[0]) + ',' + quoted(record[1]) + '\n';
  fields.format = DataFormat::csv;
  fields.header = true;
  fields.names = {"a", "b"};
  fuzz::expect(read(fuzz::write("b", csv), BadLines::error, fields) == records);
  return 0;
}
