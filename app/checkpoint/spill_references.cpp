// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/spill_references.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "comm/boundary/end_name.hpp"
#include "core/base/error.hpp"
#include "core/cache/spill_file.hpp"
#include "core/files/hdf5.hpp"
#include "core/files/replacement.hpp"
#include "core/files/system_error.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kEnding = ".h5", kAsideEnding = "-former.h5";

std::string aside(const std::string& path) {
  return path.substr(0, path.size() - kEnding.size()).append(kAsideEnding);
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

/// UserError when a file has that name that is no spill file, or cannot be read.
void check_sound(const std::string& path) {
  const auto is_there = [&] {
    std::error_code error;
    return fs::exists(fs::symlink_status(path, error));
  };
  // Once more: another rank may have moved it meanwhile.
  if (is_there() && spill_file_id(path).empty() && is_there())
    throw UserError({.what = "a file that is not a valid activation cache is in the way",
                     .file = path,
                     .remedy = "move or remove it"});
}

/// Refuses a path that must not be replaced: anything but a spill file that no other run needs.
void check_free(const std::string& path, const CacheOwner& owner) {
  check_sound(path);
  check_spill_file_owner(path, owner);
}

/// True for names of spill files in their places and aside.
bool is_of_spill_file(const std::string& name) {
  if (!name.ends_with(kAsideEnding)) return is_spill_file_name(name);
  const std::string place = name.substr(0, name.size() - kAsideEnding.size()).append(kEnding);
  return is_spill_file_name(place);
}

/// Whatever can be read of the directory.
std::vector<std::string> spill_files_in(const std::string& directory) {
  std::vector<std::string> paths;
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    std::error_code ignored;
    if (is_of_spill_file(name) && fs::is_regular_file(entry->symlink_status(ignored)))
      paths.push_back(directory + "/" + name);
  }
  return paths;
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

bool is_in_place(const SpillReference& reference) {
  return is_at(reference, reference.path);
}

void check_spill_file(const SpillReference& reference) {
  if (is_at(reference, aside(reference.path))) return;
  const std::string found =
      hdf5::File::open_read_only(reference.path).find_plain_attribute("file_id").value_or("none");
  const std::string id = std::to_string(reference.id);
  if (found == id) return check_spill_file_datasets(reference.path);
  throw UserError(
      {.what = fmt::format(
           "is not the activation cache that the checkpoint refers to: its file_id is {}, not {}",
           found, id),
       .file = reference.path,
       .remedy = "restore the run's cache files"});
}

void set_aside(const std::vector<SpillReference>& references, const CacheOwner& owner) {
  std::vector<std::string> here;
  for (const SpillReference& reference : references) {
    if (is_at(reference, aside(reference.path))) continue;
    check_sound(reference.path);  // what cannot be read may be what the checkpoint refers to
    if (!is_at(reference, reference.path)) continue;
    check_free(aside(reference.path), owner);
    here.push_back(reference.path);
  }
  for (const std::string& path : here) move(path, aside(path));
}

void put_back(const std::vector<SpillReference>& references, const CacheOwner& owner) {
  std::vector<std::string> away;
  for (const SpillReference& reference : references) {
    if (!is_at(reference, aside(reference.path)) || is_at(reference, reference.path)) continue;
    check_free(reference.path, owner);
    away.push_back(reference.path);
  }
  for (const std::string& path : away) move(aside(path), path);
}

void remove_other_spill_files(const std::string& directory, const CacheOwner& owner,
                              const std::set<std::string>& ids) {
  std::error_code error;
  for (const std::string& path : spill_files_in(directory)) {
    const std::string id = spill_file_id(path);
    if (!id.empty() && !ids.contains(id) && is_spill_file_of(path, owner)) fs::remove(path, error);
  }
}

void let_replace_spill_files(const std::string& directory, const CacheOwner& owner) {
  for (const std::string& path : spill_files_in(directory)) try {
      if (is_spill_file_of(path, owner)) let_replace_spill_file(path);
    } catch (const UserError&) {
    }
}

std::vector<CacheOwner> runs_that_need_spill_files(const std::string& directory) {
  std::vector<CacheOwner> runs;
  for (const std::string& path : spill_files_in(directory))
    if (std::optional<CacheOwner> run = run_that_needs(path)) runs.push_back(std::move(*run));
  return runs;
}

}  // namespace deltapipe
