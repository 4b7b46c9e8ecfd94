// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/spill_check.hpp"

#include <sstream>

#include "comm/transport/collectives.hpp"

namespace deltapipe {

namespace {

/// Numbers, a space and the directory, which may hold anything.
std::string text_of(const SpillNeed& need) {
  std::ostringstream text;
  text << need.machine << ' ' << need.file_system << ' ' << need.bytes << ' ' << need.available
       << ' ' << need.directory;
  return text.str();
}

SpillNeed need_in(const std::string& text) {
  std::istringstream stream(text);
  SpillNeed need;
  stream >> need.machine >> need.file_system >> need.bytes >> need.available;
  stream.get();
  need.directory = text.substr(static_cast<std::size_t>(stream.tellg()));
  return need;
}

}  // namespace

void compare_spill_space(ProgressThread& progress, const SpillNeed& mine) {
  std::vector<SpillNeed> needs;
  for (const std::string& text : gather(progress, progress.world(), text_of(mine), 0))
    needs.push_back(need_in(text));
  check_spill_space(needs);
}

}  // namespace deltapipe
