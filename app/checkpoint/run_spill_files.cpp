// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/run_spill_files.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

#include "app/checkpoint/spill_references.hpp"
#include "comm/transport/collectives.hpp"

namespace deltapipe {

RunSpillFiles::RunSpillFiles(const Settings& settings, CacheOwner owner,
                             std::vector<ActivationCache*> caches, const ProcessGrid& grid,
                             ProgressThread& progress)
    : settings_(settings),
      owner_(std::move(owner)),
      caches_(std::move(caches)),
      grid_(grid),
      progress_(progress) {}

bool RunSpillFiles::exist() const {
  const bool some =
      std::ranges::any_of(caches_, [](const ActivationCache* cache) { return cache->has_file(); });
  return all_reduce(progress_, grid_.world(), std::uint64_t{some}, Reduction::max) > 0;
}

void RunSpillFiles::flush() const {
  for (ActivationCache* const cache : caches_) cache->flush();
}

void RunSpillFiles::remove_former() const {
  remove_other_spill_files(cache_directory(settings_), owner_, ids());
}

void RunSpillFiles::finish() const {
  for (ActivationCache* const cache : caches_)
    settings_.cache.keep ? cache->let_replace_file() : cache->remove_file_at_end();
  const std::set<std::string> mine = ids();
  remove_other_spill_files(cache_directory(settings_), owner_,
                           settings_.cache.keep ? mine : std::set<std::string>());
}

/// Collective. The identities of all ranks' files.
std::set<std::string> RunSpillFiles::ids() const {
  std::string mine;
  for (ActivationCache* const cache : caches_)
    if (cache->has_file()) mine += fmt::format("{} ", cache->file_id());
  std::istringstream words(all_gather(progress_, grid_.world(), mine));
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace deltapipe
