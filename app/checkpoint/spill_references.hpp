// SPDX-License-Identifier: BSD-3-Clause
// The spill files that checkpoints refer to. A start on another layout needs their names for its
// own files; until it has a complete checkpoint they are set aside under other names, so that the
// run can go back to the layout it had.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/cache/settings.hpp"
#include "core/files/state_file.hpp"

namespace deltapipe {

/// A part of a rank's state, begun, if some of its records are in a spill file; else nullptr.
std::unique_ptr<StateFileReader> spilled_part(const std::string& state_file,
                                              const std::string& part);

struct SpillReference {
  std::string path;  ///< where the file is while a run uses it
  std::uint64_t id = 0;
};

/// Existing spill files that a start keeps, by their paths. It replaces all others.
struct FormerSpillFiles {
  std::set<std::string> reopened;   ///< the rank continues them, or larger copies
  std::set<std::string> set_aside;  ///< leave their names to new ones
};

/// References in a rank's state in a checkpoint; `directory`: where the spill files are now.
std::vector<SpillReference> spill_references(const std::string& state_file,
                                             const std::string& directory);

/// UserError unless the file is there, in its place or set aside.
void check_spill_file(const SpillReference& reference);
/// True if the file is in its place.
bool is_in_place(const SpillReference& reference);

/// Renames the files that exist. Several ranks may do it, and their files be the same.
/// UserError, and nothing is moved: a file cannot be read, or the new name is that of a file that
/// is no spill file or that another run needs.
void set_aside(const std::vector<SpillReference>& references, const CacheOwner& owner);
/// Restores the names of the files that were set aside. UserErrors as above.
void put_back(const std::vector<SpillReference>& references, const CacheOwner& owner);

/// The file_id of the spill file at `path`; empty: there is no such file.
std::string spill_file_id(const std::string& path);

/// Removes the run's spill files in `directory` but those with one of `ids`.
void remove_other_spill_files(const std::string& directory, const CacheOwner& owner,
                              const std::set<std::string>& ids);
/// Lets any run replace the spill files of a finished one. Files that cannot be written stay
/// unchanged.
void let_replace_spill_files(const std::string& directory, const CacheOwner& owner);

/// The runs that may continue spill files in `directory`.
std::vector<CacheOwner> runs_that_need_spill_files(const std::string& directory);

}  // namespace deltapipe
