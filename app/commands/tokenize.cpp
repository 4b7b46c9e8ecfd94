// SPDX-License-Identifier: BSD-3-Clause
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "app/commands/commands.hpp"
#include "app/output/kept_files.hpp"
#include "app/preflight/warnings.hpp"
#include "app/session/input_files.hpp"
#include "app/session/session.hpp"
#include "core/base/error.hpp"
#include "core/base/parallel/helper_thread.hpp"
#include "core/data/corpus.hpp"
#include "core/data/token_file.hpp"
#include "core/files/directory_lock.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

namespace {

void expect_free(const std::string& path, bool overwrites) {
  std::error_code error;
  if (overwrites || !std::filesystem::exists(std::filesystem::symlink_status(path, error))) return;
  throw UserError(
      {.what = "is there already",
       .file = path,
       .remedy = "set another output.directory, or output.overwrite = true to replace it",
       .keys = {"output.directory"}});
}

void write_tokens(const std::string& path, const char* key, const std::vector<std::string>& files,
                  const DataSettings& settings, const Tokenizer& tokenizer) {
  for (const std::string& file : files) {
    if (data_format(file, settings.format) == DataFormat::hdf5)
      throw UserError({.what = file + " holds tokens already",
                       .remedy = "name text or JSONL files in data.train and data.validation",
                       .keys = {key}});
  }
  TokenFileWriter writer(path, tokenizer, files);
  for (const std::string& file : files)
    read_tokens(file, settings, tokenizer, writer, process_core_count());
  writer.close();
  print_warnings(texts_of(writer.skipped()));
  std::printf("%s: %llu documents, %llu tokens\n", path.c_str(),
              static_cast<unsigned long long>(writer.documents()),
              static_cast<unsigned long long>(writer.tokens()));
}

}  // namespace

void run_tokenize(const Settings& settings) {
  const std::string& directory = settings.output.directory;
  if (settings.data.kind != DataKind::text)
    throw UserError({.what = "tokenize writes the texts of a language model",
                     .value = fmt::format("data.kind = \"{}\"", name_of(settings.data.kind)),
                     .remedy = "train from the files; they are read at each start",
                     .keys = {"data.kind"}});
  require(find_input_files(settings, InputUse::tokenize));
  const std::unique_ptr<const Tokenizer> tokenizer = load_tokenizer(settings);
  DELTAPIPE_ASSERT(tokenizer, "required above");
  print_warnings(tokenizer->warnings());
  for (const char* const name : {"tokenizer", "train.h5", "validation.h5"})
    expect_free(directory + "/" + name, settings.output.overwrite);
  make_directory(directory);
  const DirectoryLock lock(directory, new_run_id());
  if (lock.is_holder()) remove_leftovers(directory);
  const std::vector<KeptFile> copies = read_tokenizer_copies(settings);
  write_kept_files(copies, directory + "/tokenizer");
  if (copies.empty()) tokenizer->save(directory + "/tokenizer");
  std::printf("%s/tokenizer: %d tokens, hash %s\n", directory.c_str(), tokenizer->vocabulary_size(),
              tokenizer->hash().c_str());
  if (!settings.data.train.empty())
    write_tokens(directory + "/train.h5", "data.train", settings.data.train, settings.data,
                 *tokenizer);
  if (!settings.data.validation.empty())
    write_tokens(directory + "/validation.h5", "data.validation", settings.data.validation,
                 settings.data, *tokenizer);
  else if (settings.data.validation_fraction > 0)
    std::printf(
        "no validation.h5: data.validation names no files. Runs hold out the last %g of the "
        "samples of train.h5, as they would of the texts (data.validation_fraction)\n",
        settings.data.validation_fraction);
}

}  // namespace deltapipe
