// SPDX-License-Identifier: BSD-3-Clause
#include "app/session/input_files.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>

#include "core/data/corpus.hpp"
#include "core/files/input_file.hpp"
#include "core/text/tokenizer_files.hpp"

namespace deltapipe {

namespace {

namespace fs = std::filesystem;

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

/// Looks for files and keeps what is missing.
class Search {
 public:
  Search(const Settings& settings, InputFiles& found) : settings_(settings), found_(found) {}

  /// True when the file can be read. `remedy`: if it is missing.
  bool file(const fs::path& path, const char* key, const std::string& remedy) {
    Mistake mistake{.what = path.string() + " is missing", .remedy = remedy, .keys = {key}};
    std::error_code ignored;
    if (fs::is_symlink(fs::symlink_status(path, ignored)) && !is_there(path)) {
      mistake.what = fmt::format("{} is a link to {}, which is missing", path.string(),
                                 fs::read_symlink(path, ignored).string());
    } else if (is_there(path)) {
      try {
        const ReadOnlyFile readable(path.string());
        return true;
      } catch (const UserError& error) {
        mistake.what = path.string() + " " + error.mistake().what;
        mistake.remedy = error.mistake().remedy;
      }
    }
    found_.missing.push_back(mistake);
    return false;
  }

  /// Images may be in directories, whose files are read with the samples.
  bool is_directory_of_images(const std::string& path) const {
    std::error_code error;
    return settings_.data.kind == DataKind::images && fs::is_directory(path, error);
  }

  static constexpr const char* kPutThere = "put the data there or name another file";

  void texts() {
    const DataSettings& data = settings_.data;
    found_.texts = true;
    for (const auto& [key, files] :
         {std::pair{"data.train", &data.train}, std::pair{"data.validation", &data.validation}})
      for (const std::string& name : *files)
        if (!is_directory_of_images(name) && !file(name, key, kPutThere)) found_.texts = false;
  }

  void prompts() {
    for (const std::string& name : settings_.data.answers.files)
      file(name, "evaluation.prompts", kPutThere);
  }

  /// True if the deck or the model names tokenizer files.
  bool has_tokenizer_files() const {
    const std::string& own = settings_.tokenizer.path;
    const std::string& path = own.empty() ? settings_.model.path : own;
    std::error_code error;
    return !path.empty() &&
           (deltapipe::has_tokenizer_files(path) || fs::is_regular_file(path, error));
  }

  void model() {
    const fs::path directory = settings_.model.path;
    found_.config = file(directory / "config.json", "model.path", download("config.json"));
    // An index of shards may stand for it, and is read before them.
    const bool sharded = !is_there(directory / "model.safetensors") &&
                         is_there(directory / "model.safetensors.index.json");
    const char* const name = sharded ? "model.safetensors.index.json" : "model.safetensors";
    const bool pickled = is_there(directory / "pytorch_model.bin") ||
                         is_there(directory / "pytorch_model.bin.index.json");
    found_.weights =
        file(directory / name, "model.path",
             pickled ? "convert pytorch_model.bin: load the model with transformers and save it "
                       "with save_pretrained"
                     : download("model.safetensors"));
  }

  void tokenizer(InputUse use) {
    if (settings_.tokenizer.train_vocabulary > 0) {
      found_.tokenizer = found_.texts && !settings_.data.train.empty();
      return;
    }
    const bool of_model = settings_.tokenizer.path.empty();
    const std::string& path = of_model ? settings_.model.path : settings_.tokenizer.path;
    std::error_code error;
    if (!of_model && is_there(path) && !fs::is_directory(path, error)) {
      found_.tokenizer = file(path, "tokenizer.path", {});
      return;
    }
    found_.tokenizer = !path.empty() && deltapipe::has_tokenizer_files(path);
    if (found_.tokenizer) return;
    const bool trains = use == InputUse::train || use == InputUse::train_between;
    if (of_model && trains && has_tokens_only()) return;
    if (path.empty())
      found_.missing.push_back(no_tokenizer(use == InputUse::generate   ? "generate"
                                            : use == InputUse::tokenize ? "tokenize"
                                                                        : "text"));
    else
      found_.missing.push_back(
          {.what = "a tokenizer in " + path + " is missing",
           .remedy = of_model ? download("tokenizer.json") + ", or set tokenizer.path"
                              : "set tokenizer.path to a directory or file "
                                "that has one",
           .keys = {of_model ? "model.path" : "tokenizer.path"}});
  }

 private:
  bool has_tokens_only() const { return found_.texts && holds_tokens_only(settings_.data); }

  std::string download(const std::string& files) const {
    return fmt::format("fetch it: hf download REPOSITORY {} --local-dir {}", files,
                       settings_.model.path);
  }

  const Settings& settings_;
  InputFiles& found_;
};

}  // namespace

InputFiles find_input_files(const Settings& settings, InputUse use) {
  InputFiles found;
  Search search(settings, found);
  const bool is_new = settings.model.path.empty();
  const bool texts = is_text(settings.data.kind);
  if (use != InputUse::tokenize && !is_new) search.model();
  // Generation needs no data but to train a tokenizer from.
  // All ranks read the classes of a new classifier.
  const bool reads_classes = is_new && settings.data.kind != DataKind::text;
  const bool reads_texts = use == InputUse::train_between
                               ? reads_classes || (texts && !search.has_tokenizer_files())
                               : use != InputUse::generate;
  if (reads_texts || settings.tokenizer.train_vocabulary > 0) search.texts();
  if (use == InputUse::train) search.prompts();
  if (texts) search.tokenizer(use);
  const bool has_some = !settings.data.train.empty() ||
                        ((use == InputUse::tokenize || settings.data.labels_optional) &&
                         !settings.data.validation.empty());
  if (use != InputUse::generate && !has_some)
    found.missing.push_back({.what = "there are no data to work on",
                             .remedy = "name files in data.train",
                             .keys = {"data.train"}});
  return found;
}

void require(const InputFiles& files) {
  if (files.missing.empty()) return;
  Mistake first = files.missing.front();
  const std::size_t others = files.missing.size() - 1;
  if (others > 0) first.what += fmt::format(" (and {} more, see `deltapipe check`)", others);
  throw UserError(first);
}

Mistake no_tokenizer(const std::string& needed_for) {
  return {.what = needed_for + " needs a tokenizer and the deck names none",
          .remedy =
              "set tokenizer.path, or tokenizer.train_vocabulary to train one, or model.path "
              "to a directory that has one",
          .keys = {"tokenizer.path", "model.path", "data.train"}};
}

}  // namespace deltapipe
