// SPDX-License-Identifier: BSD-3-Clause
#include "app/checkpoint/restart.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>

#include "app/checkpoint/spill_references.hpp"
#include "app/deck/deck.hpp"
#include "app/output/run_file.hpp"
#include "comm/boundary/end_name.hpp"
#include "comm/pipeline/stage_plan.hpp"
#include "comm/replicas/reduce_scatter_sum.hpp"
#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/interruption.hpp"
#include "core/files/state_file.hpp"

namespace deltapipe {

namespace {

/// All that a restart may change: where and how results go, what only takes time, and the layout.
bool may_change(const std::string& key) {
  constexpr std::string_view kKeys[] = {"output.",
                                        "checkpoint.",
                                        "network.",
                                        "generate.",
                                        "plan.",
                                        "evaluation.prompts",
                                        "model.path",
                                        "tokenizer.path",
                                        "data.train",
                                        "data.validation",
                                        "data.predict",
                                        "training.evaluate_every",
                                        "training.patience",
                                        "training.recompute",
                                        "training.recompute_stages",
                                        "training.micro_batches",
                                        "pipeline.stages",
                                        "pipeline.stages_per_rank",
                                        "pipeline.replicas",
                                        "pipeline.partition",
                                        "pipeline.schedule",
                                        "pipeline.in_flight",
                                        "pipeline.timeout",
                                        "pipeline.step_timeout",
                                        "pipeline.verify_replicas",
                                        "pipeline.gpu_aware_mpi",
                                        "cache.budget",
                                        "cache.directory",
                                        "cache.keep",
                                        "cache.prefetch"};
  return is_listed(key, kKeys);
}

bool is_length(const std::string& key) {
  return key == "training.steps" || key == "training.epochs";
}

/// True for keys that checkpoint.change_optimizer may change. Tensors that are frozen have no
/// moments, and each optimizer has its own.
bool is_of_optimizer(const std::string& key) {
  return (key.starts_with("training.optimizer.") && key != "training.optimizer.frozen" &&
          key != "training.optimizer.relative_embeddings" && key != "training.optimizer.name") ||
         is_length(key);
}

std::string way_to_change(const std::string& key) {
  return is_of_optimizer(key)
             ? "let it change from here on with checkpoint.change_optimizer = true, "
             : "";
}

[[noreturn]] void refuse_change(const CheckpointMarker& marker, const std::string& key,
                                const std::string& old_value, const std::string& new_value,
                                const std::string& why) {
  throw UserError({.what = key + " must not change at a restart" + why +
                           ": the checkpoint of step " + std::to_string(marker.step) +
                           " was written with " + key + " = " + old_value,
                   .value = new_value,
                   .remedy = "set it back, " + way_to_change(key) +
                             "or start from scratch with output.overwrite = true or another "
                             "output.directory",
                   .keys = {key}});
}

std::uint64_t batch(const Settings& settings) {
  return std::uint64_t{1} * settings.training.micro_batch_size * settings.training.micro_batches *
         settings.pipeline.replicas;
}

/// Steps may be added where that changes no learning rate of the past.
void check_length(const Settings& settings, const Settings& former,
                  const CheckpointMarker& marker) {
  if (settings.training.optimizer.schedule == LearningRateSchedule::constant ||
      settings.checkpoint.change_optimizer)
    return;
  const std::string why = " but with a constant learning rate, which depends on it";
  if (settings.training.steps != former.training.steps)
    refuse_change(marker, "training.steps", std::to_string(former.training.steps),
                  std::to_string(settings.training.steps), why);
  if (settings.training.epochs != former.training.epochs)
    refuse_change(marker, "training.epochs", std::to_string(former.training.epochs),
                  std::to_string(settings.training.epochs), why);
}

void check_batch(const Settings& settings, const Settings& former, const CheckpointMarker& marker) {
  if (batch(settings) == batch(former)) return;
  const bool by_replicas = settings.pipeline.replicas != former.pipeline.replicas;
  const auto value = [by_replicas](const Settings& s) {
    return std::to_string(by_replicas ? s.pipeline.replicas : s.training.micro_batches);
  };
  refuse_change(marker, by_replicas ? "pipeline.replicas" : "training.micro_batches", value(former),
                value(settings),
                " unless micro_batch_size x micro_batches x replicas stays the same");
}

/// As far as it is known before the model is read: without a partition in the deck it is the one of
/// a deck without a partition.
bool has_partition_of(const CheckpointMarker& marker, const Settings& settings) {
  if (!settings.pipeline.partition.empty()) return settings.pipeline.partition == marker.partition;
  return parse_stored_deck(marker.deck, "the checkpoint's deck").pipeline.partition.empty();
}

bool has_same_ranks(const CheckpointMarker& marker, const PipelineSettings& pipeline) {
  return marker.stages == pipeline.stages && marker.stages_per_rank == pipeline.stages_per_rank &&
         marker.replicas == pipeline.replicas;
}

bool reads_own_file_only(const CheckpointMarker& marker, const Settings& settings) {
  return has_same_ranks(marker, settings.pipeline) && has_partition_of(marker, settings);
}

std::vector<std::string> files_to_read(const CheckpointMarker& marker, const Settings& settings,
                                       int rank) {
  std::vector<std::string> names;
  const bool same = reads_own_file_only(marker, settings);
  for (int r = 0; r < marker.ranks(); ++r)
    if (!same || r == rank) names.push_back(rank_file_name(r));
  if (rank == 0) names.emplace_back(kRunFileCopy);
  return names;
}

/// Files of ranks that this rank looks into for all: of its own layout its own.
std::vector<int> share_of_ranks(const CheckpointMarker& marker, const Settings& settings,
                                int rank) {
  if (reads_own_file_only(marker, settings)) return {rank};
  const int ranks = settings.pipeline.pipeline_ranks() * settings.pipeline.replicas;
  std::vector<int> share;
  for (int former = rank; former < marker.ranks(); former += ranks) share.push_back(former);
  return share;
}

bool refers_to_spill_files(const std::string& path) {
  const std::vector<std::string> parts = StateFileReader(path).part_names();
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return spilled_part(path, part) != nullptr; });
}

/// UserError unless the spill files that a rank's state refers to are there.
void check_spill_files(const std::string& path, const std::string& directory) {
  for (const SpillReference& reference : spill_references(path, directory))
    check_spill_file(reference);
}

/// One rank's look at one checkpoint.
struct Inspection {
  std::optional<CheckpointMarker> marker;
  std::string problem;  ///< empty: none, or it is another run's
};

Inspection inspect(const std::string& checkpoint, const std::string& run_id,
                   const Settings& settings, int rank) {
  try {
    CheckpointMarker marker = read_marker(checkpoint);
    if (marker.run_id != run_id) return {};
    for (const std::string& name : files_to_read(marker, settings, rank))
      check_file_size(checkpoint, marker.file(name));
    for (const std::string& name : files_to_hash(marker, settings, rank))
      check_file(checkpoint, marker.file(name), throw_if_interrupted);
    if (reads_own_file_only(marker, settings) && settings.checkpoint.mode == CheckpointMode::exact)
      check_spill_files(checkpoint + "/" + rank_file_name(rank), cache_directory(settings));
    return {std::move(marker), ""};
  } catch (const UserError& error) {
    return {std::nullopt, error.what()};
  }
}

void tell_skipped(std::uint64_t step, const std::vector<std::string>& problems) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    std::fprintf(stderr,
                 "deltapipe: warning: the checkpoint of step %llu is skipped: rank %zu: %s\n",
                 static_cast<unsigned long long>(step), rank, problems[rank].c_str());
    return;
  }
}

bool has_checkpoint_of(const std::string& directory, const std::vector<std::uint64_t>& steps,
                       const std::string& run_id) {
  return std::any_of(steps.begin(), steps.end(), [&](std::uint64_t step) {
    try {
      return read_marker(directory + "/" + checkpoint_name(step)).run_id == run_id;
    } catch (const UserError&) {
      return false;
    }
  });
}

/// A run from scratch would remove checkpoints whose disk may only be missing for now.
[[noreturn]] void refuse_to_begin_anew(const Settings& settings) {
  throw UserError(
      {.what = "this unfinished run has written checkpoints, and there is none that "
               "all ranks find whole",
       .file = checkpoint_directory(settings),
       .remedy = "put back what is missing (checkpoints, spill files of "
                 "cache.directory), go on without what spill files had with "
                 "checkpoint.mode = \"resync\", or start from scratch " +
                 std::string(settings.output.overwrite ? "in another output.directory"
                                                       : "with output.overwrite = true or another "
                                                         "output.directory"),
       .keys = {"checkpoint.directory", "output.directory"}});
}

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

/// Collective.
bool refers_to_spill_files(const Restart& restart, const Settings& settings,
                           const ProcessGrid& grid, ProgressThread& progress) {
  std::uint64_t refers = 0;
  for (const int r : share_of_ranks(restart.marker, settings, grid.rank()))
    if (refers_to_spill_files(restart.checkpoint + "/" + rank_file_name(r))) refers = 1;
  return all_reduce(progress, grid.world(), refers, Reduction::max) == 1;
}

bool reads_memories(const Restart& restart, const Settings& settings) {
  return restart.marker.with_memories &&
         (settings.checkpoint.mode == CheckpointMode::exact || !restart.refers_to_files ||
          !reads_own_file_only(restart.marker, settings));
}

}  // namespace

std::vector<std::string> files_to_hash(const CheckpointMarker& marker, const Settings& settings,
                                       int rank) {
  std::vector<std::string> names;
  for (const int former : share_of_ranks(marker, settings, rank))
    names.push_back(rank_file_name(former));
  if (rank == 0) names.emplace_back(kRunFileCopy);
  return names;
}

std::optional<Restart> find_restart(const Settings& settings, const FormerRun& former,
                                    const ProcessGrid& grid, ProgressThread& progress) {
  const std::string directory = checkpoint_directory(settings);
  const std::string& run_id = former.run_id;
  if (run_id.empty()) return std::nullopt;
  std::vector<std::uint64_t> steps = checkpoint_steps(directory);
  bool skipped = false;
  for (;;) {
    // The newest that all ranks have, by its name.
    const std::uint64_t mine = steps.empty() ? 0 : steps.back();
    const std::uint64_t step = all_reduce(progress, grid.world(), mine, Reduction::min);
    if (step == 0) {
      const bool had_one =
          skipped || former.has_checkpoints || has_checkpoint_of(directory, steps, run_id);
      const std::uint64_t has_one = had_one ? 1 : 0;
      if (all_reduce(progress, grid.world(), has_one, Reduction::max) > 0)
        refuse_to_begin_anew(settings);
      return std::nullopt;
    }
    while (!steps.empty() && steps.back() > step) steps.pop_back();
    const bool is_here = !steps.empty() && steps.back() == step;
    Restart restart{directory + "/" + checkpoint_name(step), {}};
    Inspection found;
    if (is_here) {
      steps.pop_back();
      found = inspect(restart.checkpoint, run_id, settings, grid.rank());
    } else {
      found.problem = directory + " has no " + checkpoint_name(step);
    }
    const std::uint64_t whole = found.marker ? 1 : 0;
    const bool agreed = all_reduce(progress, grid.world(), whole, Reduction::min) == 1;
    if (agreed) {
      restart.marker = std::move(*found.marker);
      restart.refers_to_files = refers_to_spill_files(restart, settings, grid, progress);
      restart.with_memories = reads_memories(restart, settings);
      return restart;
    }
    skipped = skipped || !found.problem.empty();
    const auto problems = gather(progress, grid.world(), found.problem, 0);
    if (grid.rank() == 0) tell_skipped(step, problems);
  }
}

std::string absolute_output_directory(const Settings& settings) {
  std::error_code error;
  const std::filesystem::path path =
      std::filesystem::weakly_canonical(settings.output.directory, error);
  return error ? settings.output.directory : path.string();
}

void check_deck_of_restart(const Settings& settings, const CheckpointMarker& marker) {
  const Settings former = parse_stored_deck(marker.deck, "the checkpoint's deck");
  check_batch(settings, former, marker);
  check_length(settings, former, marker);
  const bool changes_optimizer = settings.checkpoint.change_optimizer;
  for (const auto& [key, left, right] : differences(former, settings))
    if (!may_change(key) && !is_length(key) && !(changes_optimizer && is_of_optimizer(key)))
      refuse_change(marker, key, left, right, "");
}

std::string changes_of_optimizer(const Settings& settings, const CheckpointMarker& marker) {
  std::string text;
  for (const auto& [key, left, right] :
       differences(parse_stored_deck(marker.deck, "the checkpoint's deck"), settings))
    if (is_of_optimizer(key))
      text += (text.empty() ? "" : ", ") + key + " = " + left + " -> " + right;
  return text;
}

void check_data_of_restart(const CheckpointMarker& marker, std::uint64_t train_fingerprint,
                           std::uint64_t validation_fingerprint) {
  for (const auto& [what, key, former, now] :
       {std::tuple{"training", "data.train", marker.train_fingerprint, train_fingerprint},
        std::tuple{"validation", "data.validation", marker.validation_fingerprint,
                   validation_fingerprint}})
    if (former != now)
      throw UserError({.what = "the checkpoint of step " + std::to_string(marker.step) +
                               " was written with other " + what + " samples",
                       .remedy = "train with the files of that run, or start from scratch with "
                                 "output.overwrite = true or another output.directory",
                       .keys = {key}});
}

namespace {

bool has_same_micro_batches(const CheckpointMarker& marker, const Settings& settings) {
  return parse_stored_deck(marker.deck, "the checkpoint's deck").training.micro_batches ==
         settings.training.micro_batches;
}

}  // namespace

bool is_same_layout(const CheckpointMarker& marker, const Settings& settings,
                    const std::vector<int>& partition) {
  return has_same_ranks(marker, settings.pipeline) && marker.partition == partition &&
         has_same_micro_batches(marker, settings);
}

void read_restart(const Restart& restart, const Settings& settings,
                  const std::vector<int>& partition, int rank, std::vector<StatePart> parts,
                  RunTotals& totals) {
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
    return read_state(parts, reader);
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
}

namespace {

/// References of the ranks whose spill files this one continues or sets aside.
std::vector<SpillReference> references_of(const Restart& restart, const Settings& settings,
                                          bool is_same, int rank) {
  std::vector<SpillReference> references;
  if (!restart.refers_to_files) return references;
  for (int r = 0; r < restart.marker.ranks(); ++r) {
    if (is_same && r != rank) continue;
    for (SpillReference& reference :
         spill_references(restart.checkpoint + "/" + rank_file_name(r), cache_directory(settings)))
      references.push_back(std::move(reference));
  }
  return references;
}

}  // namespace

FormerSpillFiles former_spill_files(const Restart& restart, const Settings& settings,
                                    const std::vector<int>& partition, int rank) {
  const bool is_same = is_same_layout(restart.marker, settings, partition);
  FormerSpillFiles files;
  if (is_same && !restart.with_memories) return files;
  for (const SpillReference& reference : references_of(restart, settings, is_same, rank))
    if (is_same)
      files.reopened.insert(reference.path);
    else if (is_in_place(reference))
      files.set_aside.insert(reference.path);
  return files;
}

void check_budget_of_restart(const Restart& restart, const Settings& settings,
                             const FormerSpillFiles& former_files,
                             const std::vector<std::string>& spill_files) {
  const std::set<std::string>& reopened = former_files.reopened;
  if (std::all_of(reopened.begin(), reopened.end(), [&](const std::string& path) {
        return std::find(spill_files.begin(), spill_files.end(), path) != spill_files.end();
      }))
    return;
  const Settings former = parse_stored_deck(restart.marker.deck, "the checkpoint's deck");
  Settings now = former;
  now.cache.budget_bytes = settings.cache.budget_bytes;
  const auto difference = first_difference(former, now);
  refuse_change(restart.marker, "cache.budget", difference ? difference->left : "another value",
                difference ? difference->right : std::to_string(now.cache.budget_bytes),
                " so that nothing spills while the checkpoint refers to spill files");
}

void make_room_for_spill_files(const Restart& restart, const Settings& settings,
                               const std::vector<int>& partition, int rank,
                               const CacheOwner& owner) {
  const bool is_same = is_same_layout(restart.marker, settings, partition);
  const std::vector<SpillReference> references = references_of(restart, settings, is_same, rank);
  is_same ? put_back(references, owner) : set_aside(references, owner);
}

void read_parameters(const std::string& checkpoint, const CheckpointMarker& marker,
                     const StatePart& parameters) {
  std::vector<std::string> files;
  for (int rank = 0; rank < marker.pipeline_ranks(); ++rank)
    files.push_back(checkpoint + "/" + rank_file_name(rank));
  GatheredReader reader({{parameters.name, parameters.name, files, items_of(parameters)}});
  read_state(std::span(&parameters, 1), reader);
}

std::vector<StatePart> without_memories(std::vector<StatePart> parts) {
  std::erase_if(parts,
                [](const StatePart& part) { return EndName::of_part(part.name).has_value(); });
  return parts;
}

}  // namespace deltapipe
