// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/restart_state.hpp"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "comm/boundary/end_name.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/replicas/replica_sum.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/files/state_file.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

/// Takes the names of items and drops their elements.
class ItemNames final : public StateWriter {
 public:
  const std::vector<std::string>& names() const { return names_; }

 protected:
  void open_part(const std::string&) override {}
  void close_part() override {}
  void open_item(const StateItem& item) override { names_.push_back(item.name); }
  void write(const void*, std::uint64_t) override {}
  void close_item() override {}

 private:
  std::vector<std::string> names_;
};

std::vector<std::string> items_of(const StatePart& part) {
  ItemNames writer;
  write_state(std::span(&part, 1), writer);
  return writer.names();
}

/// Source of one part of a rank's state after a change of the layout.
struct PartSource {
  std::string name;
  std::string former_name;
  std::vector<std::string> files;  ///< each item is in one of them
  std::vector<std::string> items;  ///< those to read; empty: all
};

/// Parts gathered from the files of several ranks.
class GatheredReader final : public StateReader {
 public:
  explicit GatheredReader(std::vector<PartSource> parts) : parts_(std::move(parts)) {}

  std::vector<std::string> part_names() override {
    std::vector<std::string> names;
    for (const PartSource& part : parts_) names.push_back(part.name);
    return names;
  }

 protected:
  std::string file_name() const override { return "the checkpoint"; }

  void open_part(const std::string& name) override {
    const PartSource& part = *std::find_if(parts_.begin(), parts_.end(),
                                           [&](const PartSource& p) { return p.name == name; });
    for (const std::string& path : part.files) {
      auto file = std::make_unique<StateFileReader>(path);
      file->begin_part(part.former_name);
      for (const std::string& item : file->items_left())
        if (part.items.empty() ||
            std::find(part.items.begin(), part.items.end(), item) != part.items.end())
          items_[item] = file.get();
      files_.push_back(std::move(file));
    }
  }
  void close_part() override {
    items_.clear();
    files_.clear();
  }
  std::vector<std::string> item_names() override {
    std::vector<std::string> names;
    for (const auto& [name, file] : items_) names.push_back(name);
    return names;
  }
  StateItem item(const std::string& name) override {
    StateFileReader& file = *items_.at(name);
    file.allow_again(name);  // whether it may be read again is decided by this reader
    return file.find(name);
  }
  void open_item(const StateItem& item) override {
    throw_if_interrupted();
    source_ = items_.at(item.name);
    source_->begin_item(item);
  }
  void read(void* elements, std::uint64_t bytes) override { source_->take(elements, bytes); }
  void close_item() override {}

 private:
  std::vector<PartSource> parts_;
  std::vector<std::unique_ptr<StateFileReader>> files_;  ///< of the open part
  std::map<std::string, StateFileReader*> items_;        ///< in which of them each is
  StateFileReader* source_ = nullptr;
};

bool has_part(const std::string& path, const std::string& name) {
  const std::vector<std::string> names = StateFileReader(path).part_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The ranks that wrote the state that another layout now reads.
class FormerLayout {
 public:
  FormerLayout(const Restart& restart, const std::vector<int>& partition, int replica,
               bool takes_memories)
      : restart_(restart),
        partition_(partition),
        replica_(replica),
        takes_memories_(takes_memories && restart.with_memories) {}

  /// Empty: the part starts from scratch.
  std::optional<PartSource> source_of(const StatePart& part) const {
    if (part.name.starts_with(kTargetPart)) return target(part.name);
    // Errors of sums belong to replicas and their parts of the sums.
    if (part.name.starts_with(kReplicaErrorsPart)) return std::nullopt;
    const std::optional<EndName> end = EndName::of_part(part.name);
    if (!end) return PartSource{part.name, part.name, ranks(), items_of(part)};
    if (!takes_memories_) return std::nullopt;
    const std::optional<EndName> former = former_end(*end);
    if (!former) return std::nullopt;
    const std::string path = file_of(*former, replica_);
    // Records in spill files are those of the former ends.
    if (restart_.refers_to_files || !has_part(path, former->part())) return std::nullopt;
    return PartSource{part.name, former->part(), {path}, {}};
  }

  std::string file(int rank) const { return restart_.checkpoint + "/" + rank_file_name(rank); }

 private:
  /// Ranks of one replica, which holds the state of all.
  std::vector<std::string> ranks() const {
    std::vector<std::string> files;
    for (int rank = 0; rank < restart_.marker.pipeline_ranks(); ++rank) files.push_back(file(rank));
    return files;
  }

  /// The file that has the state of a former end.
  std::string file_of(const EndName& end, int replica) const {
    const bool sends = end.side == BoundarySide::sender;
    int stage = sends ? restart_.marker.stages - 1 : 0;  // of token rows
    if (end.boundary) stage = *end.boundary + (end.backward == sends ? 1 : 0);
    const int ranks = restart_.marker.pipeline_ranks();
    return file(replica * ranks + stage % ranks);
  }

  /// The end of the former boundary with as many blocks before it, or of the token rows.
  std::optional<EndName> former_end(const EndName& end) const {
    if (!end.boundary && restart_.marker.stages == 1) return std::nullopt;
    if (!end.boundary) return end;
    const std::optional<EndName> nearest = nearest_end(end);
    return nearest && distance(end, *nearest->boundary) == 0 ? nearest : std::nullopt;
  }

  /// The end of the former boundary with about as many blocks before it; none: there was no
  /// boundary.
  std::optional<EndName> nearest_end(const EndName& end) const {
    std::optional<int> nearest;
    for (int i = 0; i + 1 < restart_.marker.stages; ++i)
      if (!nearest || distance(end, i) < distance(end, *nearest)) nearest = i;
    if (!nearest) return std::nullopt;
    return EndName{nearest, end.backward, end.side};
  }

  /// Blocks between an end's boundary and a former boundary.
  int distance(const EndName& end, int former) const {
    return std::abs(blocks_before_cut(restart_.marker.partition, former) -
                    blocks_before_cut(partition_, *end.boundary));
  }

  /// A boundary has the account of the nearest former one, and a replica that of one of the former
  /// replicas, which are all alike.
  std::optional<PartSource> target(const std::string& name) const {
    const auto end = EndName::of_part(std::string_view(name).substr(kTargetPart.size()));
    const auto former = end && end->boundary ? nearest_end(*end) : std::nullopt;
    if (!former) return std::nullopt;
    const std::string path = file_of(*former, replica_ % restart_.marker.replicas);
    const std::string former_name = std::string(kTargetPart) + former->part();
    if (!has_part(path, former_name)) return std::nullopt;
    return PartSource{name, former_name, {path}, {}};
  }

  const Restart& restart_;
  const std::vector<int>& partition_;
  int replica_;
  bool takes_memories_;
};

/// Counts the ends of boundaries that the parts belong to; token rows are not counted.
int count_ends(const std::vector<StatePart>& parts) {
  return static_cast<int>(std::ranges::count_if(parts, [](const StatePart& part) {
    const std::optional<EndName> end = EndName::of_part(part.name);
    return end && end->boundary;
  }));
}

/// Sums of ranks that no longer exist, or hold other blocks, are reported under the same number.
void read_totals(const std::string& path, int former_ranks, RunTotals& totals) {
  RunTotals former = totals;
  former.ranks.assign(static_cast<std::size_t>(former_ranks), {});
  StateFileReader reader(path);
  reader.begin_part("run");
  former.state().read(reader);
  reader.end_part();
  former.ranks.resize(totals.ranks.size());
  totals = std::move(former);
}

}  // namespace

int read_restart(const Restart& restart, const Settings& settings,
                 const std::vector<int>& partition, int rank, std::vector<StatePart> parts,
                 RunTotals& totals) {
  const int ends = count_ends(parts);
  if (!restart.with_memories) parts = without_memories(std::move(parts));
  const PipelineSettings& pipeline = settings.pipeline;
  const FormerLayout former(restart, partition, rank / pipeline.pipeline_ranks(),
                            restart.marker.replicas == pipeline.replicas &&
                                has_same_micro_batches(restart.marker, settings));
  std::vector<PartSource> sources;
  if (is_same_layout(restart.marker, settings, partition)) {
    for (const StatePart& part : parts)
      sources.push_back({part.name, part.name, {former.file(rank)}, {}});
    GatheredReader reader(std::move(sources));
    read_state(parts, reader);
    return ends - count_ends(parts);
  }
  std::erase_if(parts, [&](const StatePart& part) {
    if (part.name == "run") return true;
    auto source = former.source_of(part);
    if (source) sources.push_back(std::move(*source));
    return !source;
  });
  GatheredReader reader(std::move(sources));
  read_state(parts, reader);
  read_totals(former.file(0), restart.marker.pipeline_ranks(), totals);
  return ends - count_ends(parts);
}

void read_parameters(const std::string& checkpoint, const CheckpointMarker& marker,
                     const StatePart& parameters) {
  std::vector<std::string> files;
  for (int rank = 0; rank < marker.pipeline_ranks(); ++rank)
    files.push_back(checkpoint + "/" + rank_file_name(rank));
  GatheredReader reader({{parameters.name, parameters.name, files, items_of(parameters)}});
  read_state(std::span(&parameters, 1), reader);
}

}  // namespace deltapipe
