// SPDX-License-Identifier: BSD-3-Clause
// Token files: what the writer promises, what the reader believes.
#include "core/data/token_file.hpp"

#include <catch2/catch.hpp>
#include <filesystem>

#include "core/base/error.hpp"
#include "core/data/corpus.hpp"
#include "core/data/dataset.hpp"
#include "core/files/hdf5.hpp"
#include "tests/unit/core/text/text_support.hpp"

namespace deltapipe {
namespace {

using namespace testing;
using Catch::Matchers::Contains;
using Ids = std::vector<std::int32_t>;

/// A token file as another program might write it.
void write_ids(const std::string& path, const std::vector<std::int32_t>& ids,
               const std::vector<std::pair<const char*, int>>& attributes = {},
               const std::string& tokenizer = "") {
  hdf5::File file = hdf5::File::create(path);
  for (const auto& [name, value] : attributes) file.write_attribute(name, value);
  if (!tokenizer.empty()) file.write_attribute("tokenizer", tokenizer);
  file.create_dataset("tokens", hdf5::ElementType::i32, {ids.size()})
      .write(0, std::span<const std::int32_t>(ids));
  file.close();
}

std::uint64_t fingerprint(const std::vector<std::string>& files, Packing packing) {
  DataSettings settings;
  settings.train = files;
  settings.validation_fraction = 0;
  settings.packing = packing;
  return load_data(settings, small_tokenizer(), 16).train->fingerprint();
}

TokenDataset train_set(const DataSettings& settings, const Vocabulary& vocabulary) {
  return dynamic_cast<const TokenDataset&>(*load_data(settings, vocabulary, 5).train);
}

std::string read_message(const std::string& file, const Vocabulary& vocabulary) {
  struct Nowhere : TokenSink {
    void append(std::span<const std::int32_t>) override {}
    void end_document() override {}
  } nowhere;
  return message_of<UserError>([&] { read_token_file(file, vocabulary, nowhere); });
}

TEST_CASE("A token file gives the samples of its texts", "[data][tokens]") {
  const TemporaryDirectory directory;
  const std::string text = directory / "a.txt", lines = directory / "b.jsonl";
  const std::string file = directory / "tokens.h5";
  std::string long_text;
  for (int i = 0; i < 300'000; ++i) long_text += "word" + std::to_string(i % 977) + " ";
  write_bytes(text, long_text);
  write_bytes(lines, "{\"text\": \"One. Two.\"}\n{\"text\": \"\"}\n{\"text\": \"Three\"}\n");
  {
    TokenFileWriter writer(file, small_tokenizer(), {text, lines});
    for (const std::string& source : {text, lines})
      read_tokens(source, {}, small_tokenizer(), writer);
    CHECK_FALSE(std::filesystem::exists(file));
    writer.close();
    CHECK(writer.documents() == 3);  // the empty one gives no sample
    CHECK(writer.tokens() > std::uint64_t{1} << 18);
  }
  for (const Packing packing : {Packing::stream, Packing::document})
    CHECK(fingerprint({file}, packing) == fingerprint({text, lines}, packing));
  const TokenFileInfo info = read_token_file_info(file);
  CHECK(info.vocabulary_size == 3000);
  CHECK(info.end_of_text == 2999);
  CHECK(info.tokenizer == small_tokenizer().hash());
}

TEST_CASE("A token file that is not finished leaves nothing", "[data][tokens]") {
  const TemporaryDirectory directory;
  const std::string file = directory / "tokens.h5";
  { TokenFileWriter writer(file, small_tokenizer(), {}); }
  CHECK(std::filesystem::is_empty(directory.path()));
  TokenFileWriter writer(file, small_tokenizer(), {});
  CHECK_THAT(message_of<UserError>([&] { writer.close(); }), Contains("no tokens"));
}

TEST_CASE("Hashes tell tokenizers apart", "[data][tokens]") {
  const TemporaryDirectory directory;
  small_tokenizer().save(directory / "same");
  CHECK(Tokenizer::load(directory / "same")->hash() == small_tokenizer().hash());
  CHECK(small_tokenizer().hash().size() == 32);
  const std::vector<std::string_view> text = {"one two one two one"};
  const std::vector<std::string_view> other = {"two one two one two"};
  CHECK(Tokenizer::train(text, 260)->hash() == Tokenizer::train(text, 260)->hash());
  CHECK(Tokenizer::train(text, 260)->hash() != Tokenizer::train(other, 260)->hash());
  CHECK(Tokenizer::train(text, 260)->hash() != Tokenizer::train(text, 259)->hash());
}

TEST_CASE("Token files need no tokenizer", "[data][tokens]") {
  const TemporaryDirectory directory;
  const std::string a = directory / "a.h5", b = directory / "b.h5";
  write_ids(a, {0, 26, 3, 4}, {{"vocabulary_size", 27}});
  write_ids(b, {5, 6});
  Vocabulary vocabulary = shared_vocabulary({a, b}, 0);
  CHECK(vocabulary.size == 27);
  CHECK(vocabulary.end_of_text == -1);
  CHECK(shared_vocabulary({b}, 52).size == 52);  // the model's
  CHECK_THAT(message_of<UserError>([&] { shared_vocabulary({b}, 0); }),
             Contains("b.h5") && Contains("vocabulary_size"));
  DataSettings settings;
  settings.train = {a, b};
  settings.validation_fraction = 0;
  CHECK(holds_tokens_only(settings));
  const TokenDataset joined = train_set(settings, vocabulary);
  Ids inputs(5), targets(5);
  CHECK(joined.read(0, inputs, targets) == 5);
  CHECK(inputs == Ids{0, 26, 3, 4, 5});  // nothing between documents
  CHECK(targets == Ids{26, 3, 4, 5, 6});
  write_ids(b, {5, 6}, {{"end_of_text", 1}, {"vocabulary_size", 27}});
  vocabulary = shared_vocabulary({a, b}, 0);
  CHECK(vocabulary.end_of_text == 1);
  const TokenDataset separated = train_set(settings, vocabulary);
  separated.read(0, inputs, targets);
  CHECK(inputs == Ids{0, 26, 3, 4, 1});
  settings.validation = {directory / "c.txt"};
  CHECK_FALSE(holds_tokens_only(settings));
  write_bytes(directory / "c.txt", "text");
  CHECK_THAT(message_of<UserError>([&] { load_data(settings, vocabulary, 5); }),
             Contains("c.txt") && Contains("no tokenizer"));
}

TEST_CASE("Token files that do not fit are named", "[data][tokens]") {
  const TemporaryDirectory directory;
  const std::string a = directory / "a.h5", b = directory / "b.h5";
  write_ids(a, {0, 1}, {{"vocabulary_size", 27}}, "0123");
  CHECK_THAT(read_message(a, small_tokenizer()),
             Contains("a.h5") && Contains("another tokenizer") && Contains("tokenizer.path"));
  CHECK(read_message(a, {27, -1}).empty());
  CHECK_THAT(read_message(a, {26, -1}), Contains("larger vocabulary than the 26"));
  write_ids(b, {0, 1}, {{"vocabulary_size", 52}}, "0123");
  CHECK_THAT(message_of<UserError>([&] {
               shared_vocabulary({a, b}, 0);
             }),
             Contains("b.h5") && Contains("a.h5") && Contains("52 and 27"));
  write_ids(b, {0, 1}, {{"vocabulary_size", 27}}, "4567");
  CHECK_THAT(message_of<UserError>([&] { shared_vocabulary({a, b}, 0); }), Contains("'tokenizer'"));
  for (const auto& [name, value] : std::vector<std::pair<const char*, int>>{
           {"vocabulary_size", 0}, {"vocabulary_size", -3}, {"end_of_text", -2}}) {
    write_ids(b, {0, 1}, {{name, value}});
    CHECK_THAT(read_message(b, {27, -1}), Contains(std::string("'") + name + "'"));
  }
  write_ids(b, {0, 1}, {{"end_of_text", 52}});
  CHECK_THAT(message_of<UserError>([&] { shared_vocabulary({b}, 52); }),
             Contains("b.h5") && Contains("outside the vocabulary of 52"));
  CHECK_THAT(read_message(b, small_tokenizer()), Contains("52 and 2999"));
  write_ids(b, {0, 1}, {{"vocabulary_size", 27}, {"end_of_text", 27}});
  CHECK_THAT(read_message(b, {27, -1}), Contains("'end_of_text'"));
}

}  // namespace
}  // namespace deltapipe
