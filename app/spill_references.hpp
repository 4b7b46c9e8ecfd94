// SPDX-License-Identifier: BSD-3-Clause
// The spill files that checkpoints refer to. A start on another layout needs their names for files
// of its own; until it has a complete checkpoint they are set aside under other names, so that the
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

/// Of a rank's state in a checkpoint; `directory`: the spill files are there now.
std::vector<SpillReference> spill_references(const std::string& state_file,
                                             const std::string& directory);

/// UserError unless the file is there, in its place or set aside.
void check_spill_file(const SpillReference& reference);

/// Those that are there get other names. Several ranks may do it, and their files be the same.
void set_aside(const std::vector<SpillReference>& references);
/// Those that are set aside take their places again. UserError when what is there is no spill file.
void put_back(const std::vector<SpillReference>& references);

/// The file_id of the spill file at `path`; empty: there is none.
std::string spill_file_id(const std::string& path);

/// Removes the run's spill files in `directory` but those with one of `ids`.
void remove_other_spill_files(const std::string& directory, const CacheOwner& owner,
                              const std::set<std::string>& ids);

}  // namespace deltapipe
