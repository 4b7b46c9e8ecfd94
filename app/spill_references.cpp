// SPDX-License-Identifier: BSD-3-Clause
#include "app/spill_references.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <system_error>

#include "core/base/error.hpp"
#include "core/cache/spill_file.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kEnding = ".h5";

std::string aside(const std::string& path) {
  return path.substr(0, path.size() - kEnding.size()) + "-former.h5";
}

bool is_at(const SpillReference& reference, const std::string& path) {
  return spill_file_id(path) == std::to_string(reference.id);
}

/// Another rank may have done it.
void move(const std::string& from, const std::string& to) {
  if (std::rename(from.c_str(), to.c_str()) != 0 && errno != ENOENT)
    throw_system_error("cannot be renamed", from, errno);
  sync_directory(fs::path(to).parent_path().string());
}

bool is_spill_file_name(const std::string& name) {
  static const std::regex pattern(
      R"(cache-replica\d+-boundary\d+-(forward|backward)-(sender|receiver)(-former)?\.h5)");
  return std::regex_match(name, pattern);
}

}  // namespace

std::unique_ptr<StateFileReader> spilled_part(const std::string& state_file,
                                              const std::string& part) {
  auto file = std::make_unique<StateFileReader>(state_file);
  file->begin_part(part);
  const std::vector<std::string> items = file->items_left();
  if (std::find(items.begin(), items.end(), "spill_file") == items.end()) return nullptr;
  return file;
}

std::vector<SpillReference> spill_references(const std::string& state_file,
                                             const std::string& directory) {
  std::vector<SpillReference> references;
  for (const std::string& part : StateFileReader(state_file).part_names()) {
    const std::unique_ptr<StateFileReader> file = spilled_part(state_file, part);
    if (file == nullptr) continue;
    const std::string name = fs::path(read_text(*file, "spill_file")).filename().string();
    references.push_back(
        {directory + "/" + name, read_scalar<std::uint64_t>(*file, "spill_file_id")});
  }
  return references;
}

std::string spill_file_id(const std::string& path) try {
  return hdf5::File::open_read_only(path).find_plain_attribute("file_id").value_or("");
} catch (const UserError&) {
  return "";
}

void check_spill_file(const SpillReference& reference) {
  if (is_at(reference, aside(reference.path))) return;
  const std::string found =
      hdf5::File::open_read_only(reference.path).find_plain_attribute("file_id").value_or("none");
  const std::string id = std::to_string(reference.id);
  if (found == id) return;
  throw UserError({.what = "is not the activation cache that the checkpoint refers to: its "
                           "file_id is " +
                           found + ", not " + id,
                   .file = reference.path,
                   .remedy = "put the run's cache files back"});
}

void set_aside(const std::vector<SpillReference>& references) {
  for (const SpillReference& reference : references)
    if (is_at(reference, reference.path)) move(reference.path, aside(reference.path));
}

void put_back(const std::vector<SpillReference>& references) {
  for (const SpillReference& reference : references) {
    if (!is_at(reference, aside(reference.path)) || is_at(reference, reference.path)) continue;
    std::error_code error;
    if (fs::exists(fs::symlink_status(reference.path, error)) &&
        spill_file_id(reference.path).empty())
      throw UserError({.what = "a file that is no sound activation cache is in the way",
                       .file = reference.path,
                       .remedy = "move or remove it"});
    move(aside(reference.path), reference.path);
  }
}

void remove_other_spill_files(const std::string& directory, const CacheOwner& owner,
                              const std::set<std::string>& ids) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, error)) {
    const std::string path = directory + "/" + entry.path().filename().string();
    if (!is_spill_file_name(entry.path().filename().string())) continue;
    if (!entry.is_regular_file(error) || entry.is_symlink(error)) continue;
    const std::string id = spill_file_id(path);
    if (!id.empty() && !ids.contains(id) && is_spill_file_of(path, owner)) fs::remove(path, error);
  }
}

}  // namespace deltapipe
