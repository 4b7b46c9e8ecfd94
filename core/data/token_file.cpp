// SPDX-License-Identifier: BSD-3-Clause
#include "core/data/token_file.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.hpp"
#include "core/base/version.hpp"

namespace deltapipe {
namespace {

constexpr std::size_t kTokenBlock = std::size_t{1} << 18;  // ids read or written at a time
constexpr int kLargestVocabulary = 1 << 26;

[[noreturn]] void fail_reading(const std::string& file, const std::string& what,
                               const std::string& value, const std::string& remedy) {
  throw UserError({.what = what, .file = file, .value = value, .remedy = remedy});
}

hdf5::Dataset open_integers(const hdf5::File& file, const std::string& name) {
  hdf5::Dataset dataset = file.open_dataset(name);
  if (dataset.shape().size() != 1 || !dataset.holds_integers()) {
    fail_reading(file.file_name(), "dataset '" + name + "' is not a list of integers", "",
                 "write it with one dimension and an integer type");
  }
  dataset.expect_stored();
  return dataset;
}

/// Returns an integer attribute from `least` to `last`, if it exists.
std::optional<int> integer_attribute(const hdf5::File& file, const char* name, int least,
                                     int last) {
  if (!file.has_attribute(name)) return std::nullopt;
  const auto value = file.read_attribute<std::int64_t>(name);
  if (value < least || value > last) {
    fail_reading(file.file_name(),
                 fmt::format("attribute '{}' must be from {} to {}", name, least, last),
                 std::to_string(value), "write it again");
  }
  return static_cast<int>(value);
}

TokenFileInfo info_of(const hdf5::File& file) {
  TokenFileInfo info;
  info.vocabulary_size = integer_attribute(file, "vocabulary_size", 1, kLargestVocabulary);
  const int last = info.vocabulary_size.value_or(kLargestVocabulary) - 1;
  info.end_of_text = integer_attribute(file, "end_of_text", -1, last);
  if (file.has_attribute("tokenizer")) info.tokenizer = file.read_string_attribute("tokenizer");
  return info;
}

void check_origin(const std::string& path, const TokenFileInfo& info,
                  const Vocabulary& vocabulary) {
  if (vocabulary.tokenizer != nullptr && !info.tokenizer.empty() &&
      info.tokenizer != vocabulary.tokenizer->hash()) {
    fail_reading(path, "another tokenizer made these tokens", info.tokenizer,
                 "set tokenizer.path to the one that did, or run `deltapipe tokenize` again");
  }
  if (info.vocabulary_size.value_or(0) > vocabulary.size) {
    fail_reading(
        path,
        fmt::format("the tokens are of a larger vocabulary than the {} of the model or tokenizer",
                    vocabulary.size),
        std::to_string(*info.vocabulary_size), "use the tokenizer that the file was made with");
  }
  if (vocabulary.tokenizer != nullptr && info.end_of_text &&
      *info.end_of_text != vocabulary.tokenizer->end_of_text())
    fail_reading(path, "the documents end with another token than the tokenizer's",
                 fmt::format("{} and {}", *info.end_of_text, vocabulary.tokenizer->end_of_text()),
                 "set the file's attribute end_of_text to the tokenizer's, or remove it");
}

/// Returns the ends of the documents in a token file of `tokens` ids.
std::vector<std::uint64_t> document_ends(const hdf5::File& file, std::uint64_t tokens) {
  if (!file.exists("document_offsets")) return {tokens};
  const hdf5::Dataset dataset = open_integers(file, "document_offsets");
  if (dataset.rows() == 0 || dataset.rows() > tokens + 1) {
    fail_reading(file.file_name(), "document_offsets has no entry or more than there are tokens",
                 std::to_string(dataset.rows()), "write the first token of every document");
  }
  std::vector<std::int64_t> offsets(dataset.rows());
  dataset.read(0, std::span<std::int64_t>(offsets));
  std::vector<std::uint64_t> ends;
  ends.reserve(offsets.size());
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int64_t least = i == 0 ? 0 : offsets[i - 1];
    const bool fits = offsets[i] >= least && static_cast<std::uint64_t>(offsets[i]) <= tokens;
    if (!fits || (i == 0 && offsets[i] != 0)) {
      fail_reading(file.file_name(), fmt::format("document_offsets[{}] is out of order", i),
                   std::to_string(offsets[i]),
                   fmt::format("offsets ascend from 0 to at most the {} tokens", tokens));
    }
    if (i > 0) ends.push_back(static_cast<std::uint64_t>(offsets[i]));
  }
  if (ends.empty() || ends.back() != tokens) ends.push_back(tokens);
  return ends;
}

/// Reads the next block of ids from `position` on.
void read_ids(const hdf5::Dataset& dataset, std::uint64_t position, int vocabulary_size,
              std::vector<std::int32_t>& ids) {
  std::vector<std::int64_t> block(std::min<std::uint64_t>(kTokenBlock, dataset.rows() - position));
  dataset.read(position, std::span<std::int64_t>(block));
  ids.resize(block.size());
  for (std::size_t i = 0; i < block.size(); ++i) {
    if (block[i] < 0 || block[i] >= vocabulary_size) {
      fail_reading(
          dataset.file_name(),
          fmt::format("tokens[{}] is outside the vocabulary of {}", position + i, vocabulary_size),
          std::to_string(block[i]), "use the tokenizer that the file was made with");
    }
    ids[i] = static_cast<std::int32_t>(block[i]);
  }
}

std::string text_of(const std::optional<int>& number) {
  return number ? std::to_string(*number) : std::string();
}

/// Value of an attribute in the files so far, and the first file that has it.
struct Known {
  const char* name;
  std::string value = {};
  std::string file = {};

  void add(const std::string& from, const std::string& said) {
    if (said.empty() || said == value) return;
    if (!value.empty()) {
      fail_reading(from, fmt::format("attribute '{}' differs from that in {}", name, file),
                   said + " and " + value, "use token files of one tokenizer");
    }
    value = said;
    file = from;
  }
};

}  // namespace

TokenFileInfo read_token_file_info(const std::string& path) {
  return info_of(hdf5::File::open_read_only(path));
}

Vocabulary shared_vocabulary(const std::vector<std::string>& files, int model_size) {
  Known sizes{"vocabulary_size"}, ends{"end_of_text"}, tokenizers{"tokenizer"};
  std::optional<int> size, end;
  for (const std::string& file : files) {
    const TokenFileInfo info = read_token_file_info(file);
    sizes.add(file, text_of(info.vocabulary_size));
    ends.add(file, text_of(info.end_of_text));
    tokenizers.add(file, info.tokenizer);
    if (info.vocabulary_size) size = info.vocabulary_size;
    if (info.end_of_text) end = info.end_of_text;
  }
  if (model_size == 0 && !size) {
    fail_reading(files.empty() ? "" : files.front(), "the size of the vocabulary is unknown", "",
                 "set the file's attribute vocabulary_size, or tokenizer.path");
  }
  const int ids = model_size > 0 ? model_size : *size;
  if (end.value_or(-1) >= ids)
    fail_reading(ends.file,
                 fmt::format("attribute 'end_of_text' is outside the vocabulary of {}", ids),
                 std::to_string(*end), "write the file with the model's tokenizer");
  return {ids, end.value_or(-1)};
}

void read_token_file(const std::string& path, const Vocabulary& vocabulary, TokenSink& sink) {
  const hdf5::File file = hdf5::File::open_read_only(path);
  if (!file.exists("tokens")) {
    std::string names;
    for (const std::string& name : file.names()) names += (names.empty() ? "" : ", ") + name;
    fail_reading(path, "the file has no dataset 'tokens'", names,
                 "write the token ids under that name");
  }
  const hdf5::Dataset dataset = open_integers(file, "tokens");
  const std::uint64_t tokens = dataset.rows();
  if (tokens == 0) fail_reading(path, "the data file is empty", "", "give a file with tokens");
  check_origin(path, info_of(file), vocabulary);
  const std::vector<std::uint64_t> ends = document_ends(file, tokens);
  auto end = ends.begin();
  std::vector<std::int32_t> ids;
  for (std::uint64_t position = 0; position < tokens;) {
    read_ids(dataset, position, vocabulary.size, ids);
    std::span<const std::int32_t> rest(ids);
    position += ids.size();
    while (end != ends.end() && *end <= position) {
      const auto of_document = rest.size() - static_cast<std::size_t>(position - *end);
      sink.append(rest.first(of_document));
      sink.end_document();
      rest = rest.subspan(of_document);
      ++end;
    }
    sink.append(rest);
  }
}

TokenFileWriter::TokenFileWriter(const std::string& path, const Tokenizer& tokenizer,
                                 const std::vector<std::string>& sources)
    : target_(path), file_(hdf5::File::create(target_.temporary_path(), {.shown_path = path})) {
  const int size = tokenizer.vocabulary_size();
  file_.write_attribute("vocabulary_size", size);
  file_.write_attribute("end_of_text", tokenizer.end_of_text());
  file_.write_attribute("tokenizer", tokenizer.hash());
  file_.write_attribute("source", sources);
  file_.write_attribute("source_revision", std::string(revision()));
  const auto type = size <= 65536 ? hdf5::ElementType::u16 : hdf5::ElementType::i32;
  ids_data_.emplace(file_.create_dataset("tokens", type, {0}, {.chunk = {65536}}));
  offsets_data_.emplace(
      file_.create_dataset("document_offsets", hdf5::ElementType::i64, {0}, {.chunk = {4096}}));
}

void TokenFileWriter::append(std::span<const std::int32_t> ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  tokens_ += ids.size();
  if (ids_.size() >= kTokenBlock) flush_ids();
}

void TokenFileWriter::end_document() {
  if (tokens_ == document_start_) return;  // an empty document gives no sample
  offsets_.push_back(static_cast<std::int64_t>(document_start_));
  document_start_ = tokens_;
  ++documents_;
  if (offsets_.size() >= kTokenBlock) flush_offsets();
}

void TokenFileWriter::flush_ids() {
  ids_data_->append(std::span<const std::int32_t>(ids_));
  ids_.clear();
}

void TokenFileWriter::flush_offsets() {
  offsets_data_->append(std::span<const std::int64_t>(offsets_));
  offsets_.clear();
}

void TokenFileWriter::close() {
  if (tokens_ == 0)
    fail_reading(target_.path(), "the text has no tokens", "", "name files with text");
  flush_ids();
  flush_offsets();
  ids_data_.reset();
  offsets_data_.reset();
  file_.close();
  target_.commit();
}

}  // namespace deltapipe
