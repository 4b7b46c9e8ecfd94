// SPDX-License-Identifier: BSD-3-Clause
#include "core/text/tokenizer_files.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/text/byte_level_files.hpp"
#include "core/text/byte_level_tokenizer.hpp"
#include "core/text/sentencepiece_tokenizer.hpp"
#include "core/text/tokenizer_json.hpp"
#include "core/text/unigram_files.hpp"
#include "core/text/unigram_tokenizer.hpp"
#include "core/text/wordpiece_files.hpp"
#include "core/text/wordpiece_tokenizer.hpp"

namespace deltapipe {
namespace {

namespace fs = std::filesystem;
using namespace token_json;

constexpr std::array kFileNames = {"tokenizer.json",
                                   "tokenizer_config.json",
                                   "special_tokens_map.json",
                                   "added_tokens.json",
                                   "vocab.json",
                                   "merges.txt",
                                   "encoder.json",
                                   "vocab.bpe",
                                   "vocab.txt",
                                   "spm.model",
                                   "spiece.model",
                                   "chat_template.jinja",
                                   "chat_template.json",
                                   "additional_chat_templates"};

constexpr std::array kModelNames = {"spm.model", "spiece.model"};

bool is_sentencepiece_model(const fs::path& path) {
  return path.extension() == ".model";
}

std::unique_ptr<const Tokenizer> load_model(const fs::path& path) {
  return std::make_unique<SentencePieceTokenizer>(load_sentencepiece_model(path));
}

std::unique_ptr<const Tokenizer> load_tokenizer_json(const fs::path& path) {
  const Json root = read_json(path.string());
  if (member(member(root, "model"), "type") == "Unigram")
    return std::make_unique<UnigramTokenizer>(load_unigram_json(path, root));
  if (member(member(root, "model"), "type") == "WordPiece")
    return std::make_unique<WordPieceTokenizer>(load_wordpiece_json(path, root));
  return std::make_unique<ByteLevelTokenizer>(load_byte_level_json(path, root));
}

}  // namespace

bool has_tokenizer_files(const std::string& directory) {
  std::error_code ignored;
  const auto has = [&](const char* name) {
    return fs::exists(fs::path(directory) / name, ignored);
  };
  return has("tokenizer.json") || has("vocab.json") || has("encoder.json") || has("vocab.txt") ||
         std::ranges::any_of(kModelNames, has);
}

std::unique_ptr<const Tokenizer> Tokenizer::load(const std::string& path) {
  std::error_code ignored;
  const fs::path given(path);
  if (!fs::is_directory(given, ignored)) {
    if (!fs::exists(given, ignored))
      fail(path, "there is no such tokenizer file or directory", "", "check tokenizer.path");
    return is_sentencepiece_model(given) ? load_model(given) : load_tokenizer_json(given);
  }
  if (fs::exists(given / "tokenizer.json", ignored))
    return load_tokenizer_json(given / "tokenizer.json");
  for (const auto& [vocabulary, merges] :
       {std::pair("vocab.json", "merges.txt"), std::pair("encoder.json", "vocab.bpe")}) {
    if (fs::exists(given / vocabulary, ignored))
      return std::make_unique<ByteLevelTokenizer>(
          load_byte_level_pair(given / vocabulary, given / merges));
  }
  if (fs::exists(given / "vocab.txt", ignored))
    return std::make_unique<WordPieceTokenizer>(load_wordpiece_vocabulary(given / "vocab.txt"));
  for (const char* name : kModelNames)
    if (fs::exists(given / name, ignored)) return load_model(given / name);
  fail(path, "the directory has no tokenizer", "",
       "it needs tokenizer.json, or vocab.json and merges.txt, or encoder.json and vocab.bpe, or "
       "vocab.txt, or spm.model");
}

bool is_tokenizer_file(const std::string& name) {
  const std::string top = name.substr(0, name.find('/'));
  return std::find(kFileNames.begin(), kFileNames.end(), top) != kFileNames.end();
}

std::vector<TokenizerFile> tokenizer_files(const std::string& path) {
  std::error_code ignored;
  const fs::path given(path);
  const bool is_directory = fs::is_directory(given, ignored);
  const fs::path directory = is_directory ? given : given.parent_path();
  const bool has_whole = is_directory && fs::exists(given / "tokenizer.json", ignored);
  const bool has_pair = fs::exists(directory / "vocab.json", ignored);
  std::vector<TokenizerFile> files;
  const bool is_model = !is_directory && is_sentencepiece_model(given);
  if (is_model) {
    // Directories with other files of tokenizers than these would be read in another way.
    files.push_back({given.filename() == "spiece.model" ? "spiece.model" : "spm.model", path});
    for (const char* name :
         {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
      if (fs::is_regular_file(directory / name, ignored))
        files.push_back({name, (directory / name).string()});
    return files;
  }
  if (!is_directory && given.filename() != "tokenizer.json")
    files.push_back({"tokenizer.json", path});
  for (const char* name : kFileNames) {
    const std::string text = name;
    const bool is_openai = text == "encoder.json" || text == "vocab.bpe";
    if (is_openai && (!is_directory || has_whole || has_pair)) continue;
    if (!is_directory && text == "tokenizer.json" && !files.empty()) continue;
    const fs::path file = directory / name;
    const char* const saved = text == "encoder.json" ? "vocab.json"
                              : text == "vocab.bpe"  ? "merges.txt"
                                                     : name;
    if (fs::is_regular_file(file, ignored)) files.push_back({saved, file.string()});
    if (!fs::is_directory(file, ignored)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(file, ignored))
      if (entry.is_regular_file(ignored))
        files.push_back({text + "/" + entry.path().filename().string(), entry.path().string()});
  }
  return files;
}

}  // namespace deltapipe
