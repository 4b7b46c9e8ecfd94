// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "comm/transport/collectives.hpp"
#include "core/files/replacement.hpp"

namespace deltapipe {
namespace {

using nlohmann::json;

json metadata(int rank, const char* what, int track, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", track}, {"args", {{"name", name}}}};
}

/// Returns this rank's events as JSON objects joined by commas; times in microseconds from
/// `origin_ns`.
std::string render(int rank, std::int64_t offset_ns, std::int64_t origin_ns,
                   const std::vector<TraceEvent>& events) {
  std::map<std::string, int> tracks;
  std::string text = metadata(rank, "process_name", 0, fmt::format("rank {}", rank)).dump();
  for (const TraceEvent& event : events) {
    const auto [track, is_new] = tracks.try_emplace(event.track, static_cast<int>(tracks.size()));
    if (is_new) {
      text += ",\n" + metadata(rank, "thread_name", track->second, event.track).dump();
    }
    const json item = {{"name", event.name},
                       {"cat", name_of(event.category)},
                       {"ph", "X"},
                       {"pid", rank},
                       {"tid", track->second},
                       {"ts", static_cast<double>(event.start_ns + offset_ns - origin_ns) * 1e-3},
                       {"dur", static_cast<double>(event.duration_ns) * 1e-3}};
    text += ",\n" + item.dump();
  }
  return text;
}

void write(const std::string& path, const std::vector<std::string>& parts) {
  std::string text = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";
  for (std::size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? ",\n" : "") + parts[i];
  write_file_atomically(path, text + "\n]}\n");
}

}  // namespace

void write_trace(ProgressThread& progress, const std::vector<TraceEvent>& events,
                 const std::string& path) {
  const std::int64_t offset = progress.clock_offset().count();
  std::uint64_t origin = std::numeric_limits<std::uint64_t>::max();
  for (const TraceEvent& event : events) {
    origin = std::min(origin, static_cast<std::uint64_t>(event.start_ns + offset));
  }
  origin = all_reduce(progress, progress.world(), origin, Reduction::min);
  const std::vector<std::string> parts =
      gather(progress, progress.world(),
             render(progress.rank(), offset, static_cast<std::int64_t>(origin), events), 0);
  if (progress.rank() == 0) write(path, parts);
}

}  // namespace deltapipe
