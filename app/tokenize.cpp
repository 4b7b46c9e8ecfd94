#include <cstdio>

#include "app/commands.hpp"
#include "app/session.hpp"
#include "core/data/corpus.hpp"
#include "core/data/token_file.hpp"
#include "core/error.hpp"
#include "core/files/directory_lock.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {

namespace {

void write_tokens(const std::string& path, const std::vector<std::string>& files,
                  const DataSettings& settings, const Tokenizer& tokenizer) {
  for (const std::string& file : files) {
    if (data_format(file, settings.format) == DataFormat::hdf5)
      throw UserError({.what = "the file holds tokens already",
                       .file = file,
                       .remedy = "name text or JSONL files in data.train and data.validation"});
  }
  TokenFileWriter writer(path, tokenizer, files);
  for (const std::string& file : files) read_tokens(file, settings, tokenizer, writer);
  writer.close();
  std::printf("%s: %llu documents, %llu tokens\n", path.c_str(),
              static_cast<unsigned long long>(writer.documents()),
              static_cast<unsigned long long>(writer.tokens()));
}

}  // namespace

void run_tokenize(const Settings& settings) {
  const std::string& directory = settings.output.directory;
  const std::optional<Tokenizer> tokenizer = load_tokenizer(settings);
  if (!tokenizer) throw UserError(no_tokenizer("tokenize"));
  if (settings.data.train.empty() && settings.data.validation.empty())
    throw UserError({.what = "there is no text to tokenise", .remedy = "name files in data.train"});
  make_directory(directory);
  const DirectoryLock lock(directory, new_run_id());
  if (lock.is_holder()) remove_leftovers(directory);
  tokenizer->save(directory + "/tokenizer");
  std::printf("%s/tokenizer: %d tokens, hash %s\n", directory.c_str(), tokenizer->vocabulary_size(),
              tokenizer->hash().c_str());
  if (!settings.data.train.empty())
    write_tokens(directory + "/train.h5", settings.data.train, settings.data, *tokenizer);
  if (!settings.data.validation.empty())
    write_tokens(directory + "/validation.h5", settings.data.validation, settings.data, *tokenizer);
}

}  // namespace deltapipe
