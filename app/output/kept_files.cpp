// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/kept_files.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "app/output/image_preprocessor.hpp"
#include "core/base/error.hpp"
#include "core/base/printable.hpp"
#include "core/files/input_file.hpp"
#include "core/files/replacement.hpp"
#include "core/text/tokenizer_files.hpp"

namespace deltapipe {

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMostBytes = std::uint64_t{16} << 20;

/// The run writes these itself, or they hold weights or the state of another training: copies would
/// contradict the trained weights.
bool is_left_out(const std::string& name) {
  constexpr std::array<std::string_view, 16> endings = {
      ".safetensors", ".index.json", ".bin", ".pt",   ".pth",  ".ckpt",   ".h5",     ".hdf5",
      ".msgpack",     ".ot",         ".npz", ".onnx", ".gguf", ".tflite", ".pickle", ".pkl"};
  constexpr std::array<std::string_view, 2> names = {"config.json", "trainer_state.json"};
  return name.starts_with(".") || std::ranges::find(names, name) != names.end() ||
         std::ranges::any_of(endings, [&](std::string_view end) { return name.ends_with(end); });
}

/// Adds the files of model.path that are neither weights nor the tokenizer's.
void add_other_files(const Settings& settings, std::vector<KeptFile>& files,
                     std::vector<std::string>& warnings) {
  std::error_code error;
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::directory_iterator(settings.model.path, error)) {
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (entry.is_regular_file(ignored) && !is_left_out(name) && !is_tokenizer_file(name))
      others.push_back(entry.path());
  }
  std::ranges::sort(others);
  for (const fs::path& path : others) {
    std::error_code ignored;
    if (fs::file_size(path, ignored) > kMostBytes) {
      warnings.push_back(printable(path.string(), 200) +
                         " is larger than 16 MiB and is not copied to the trained model");
      continue;
    }
    try {
      files.push_back({path.filename().string(), read_text_file(path.string(), kMostBytes)});
    } catch (const UserError& unreadable) {
      warnings.push_back(std::string(unreadable.what()) +
                         ": it is not copied to the trained model");
    }
  }
}

}  // namespace

std::vector<KeptFile> read_tokenizer_copies(const Settings& settings) {
  std::vector<KeptFile> files;
  if (settings.tokenizer.train_vocabulary > 0) return files;
  const std::string& path =
      settings.tokenizer.path.empty() ? settings.model.path : settings.tokenizer.path;
  if (path.empty()) return files;
  for (const TokenizerFile& file : tokenizer_files(path))
    files.push_back({file.name, read_text_file(file.path, file_limit::tokenizer)});
  return files;
}

std::vector<KeptFile> read_kept_files(const Settings& settings, const ImageShape& image,
                                      std::vector<std::string>& warnings) {
  std::vector<KeptFile> files = read_tokenizer_copies(settings);
  if (!settings.model.path.empty()) add_other_files(settings, files, warnings);
  if (settings.data.kind == DataKind::images)
    add_image_preprocessor(settings.data.images, image, files);
  return files;
}

void write_kept_files(const std::vector<KeptFile>& files, const std::string& directory) {
  for (const KeptFile& file : files) {
    const fs::path path = fs::path(directory) / file.name;
    make_directory(path.parent_path().string());
    write_file_atomically(path.string(), file.bytes);
  }
}

}  // namespace deltapipe
