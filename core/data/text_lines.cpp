// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/text_lines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "core/base/utf8.hpp"

namespace deltapipe {
namespace {

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
    const bool nul = text[position] == '\0';
    const std::string_view rest = text.substr(position);
    const bool has_mark = here.offset_ == 0 && (rest.starts_with("\xff\xfe") ||
                                                rest.starts_with("\xfe\xff"));  // mark of UTF-16
    const char* const what = nul        ? "this is not text, it contains a NUL: "
                             : has_mark ? "this text is in UTF-16: "
                                        : "this text is not UTF-8: ";
    throw UserError(
        {.what = fmt::format("{}byte 0x{:02X} at offset {}", what,
                             static_cast<unsigned char>(text[position]), here.offset_),
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

}  // namespace

void expect_no_other_kind(const ReadOnlyFile& file) {
  std::array<char, 8> first{};
  const std::size_t size = std::min<std::uint64_t>(first.size(), file.size());
  file.read_at(0, std::as_writable_bytes(std::span(first).first(size)));
  const std::string_view text(first.data(), size);
  for (const OtherKind& kind : kOtherKinds)
    if (text.starts_with(kind.bytes))
      refuse_line(file.path(), fmt::format("this is a file of {}, not a text", kind.name), "",
                  kind.remedy);
}

void read_text_blocks(const std::string& name, const std::function<void(std::string_view)>& take) {
  const ReadOnlyFile file(name);
  if (file.size() == 0) refuse_line(name, "the data file is empty", "", "give a file with text");
  expect_no_other_kind(file);
  Utf8Check check(name);
  file.for_each_block([&](std::string_view block) {
    check.add(block);
    take(block);
  });
  check.end();
}

void read_text_lines(const std::string& name,
                     const std::function<void(const std::string& line, std::size_t number)>& take,
                     const std::function<void(const UserError&)>& refuse) {
  const ReadOnlyFile file(name);
  expect_no_other_kind(file);
  std::string line;
  std::size_t number = 1;
  std::uint64_t begin = 0, length = 0;  // place of the line in the file
  const auto end_line = [&] {
    try {
      if (length > file_limit::jsonl_line)
        refuse_line(name, fmt::format("the line is longer than {} bytes", file_limit::jsonl_line),
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

}  // namespace deltapipe
