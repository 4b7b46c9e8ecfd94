// SPDX-License-Identifier: BSD-3-Clause
#include "app/preflight/memory_prediction.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "app/output/progress_display.hpp"
#include "app/output/run_file.hpp"
#include "app/output/save_model.hpp"
#include "comm/pipeline/step_samples.hpp"
#include "comm/pipeline/token_index.hpp"
#include "comm/replicas/replica_sum.hpp"
#include "comm/transport/mpi_session.hpp"
#include "core/base/error.hpp"
#include "core/base/observe/machine_memory.hpp"
#include "core/base/parallel/host_team.hpp"
#include "core/kernels/gemm/bf16_gemm.hpp"
#include "models/model.hpp"
#include "models/optimizer.hpp"
#include "models/outer_optimizer.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace fs = std::filesystem;

namespace {

/// The ends that a plan has, tied embeddings' excepted.
std::vector<const BoundaryEndPlan*> ends_of(const StagePlan& plan) {
  std::vector<const BoundaryEndPlan*> ends;
  for (const auto* end :
       {&plan.send_forward, &plan.receive_forward, &plan.send_backward, &plan.receive_backward})
    if (*end) ends.push_back(&**end);
  return ends;
}
std::vector<const BoundaryEndPlan*> ends_of(StagePlan&&) = delete;  // the ends are the plan's

/// A stage without memory, and what will be built of it.
struct PlannedStage {
  std::unique_ptr<Stage<float>> stage;
  StagePlan plan;
  StagePlace place;
};

/// All that the rank holds.
std::vector<PlannedStage> planned_stages(const Settings& settings, const ModelLayout& model,
                                         const PipelineShape& shape, int rank) {
  std::vector<PlannedStage> stages;
  for (const StagePlace& place : places_of_rank(settings.pipeline, rank)) {
    std::unique_ptr<Stage<float>> stage =
        model.model->make_stage(stage_part(model.partition, place.stage));
    stage->parameters().set_moments(settings.training.optimizer.moments());
    StagePlan plan = plan_stage(pipeline_options(settings), shape, *stage, place);
    stages.push_back({std::move(stage), std::move(plan), place});
  }
  return stages;
}

std::uint64_t size_of_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = fs::file_size(path, error);
  return error ? 0 : size;
}

}  // namespace

StagePlan stage_plan_of(const Settings& settings, const ModelLayout& model,
                        const PipelineShape& shape, int stage) {
  const PipelineSettings& p = settings.pipeline;
  return plan_stage(pipeline_options(settings), shape,
                    *model.model->make_stage(stage_part(model.partition, stage)),
                    {stage, p.stages, 0, p.replicas, p.stages_per_rank});
}

int ranks_of(const PipelineSettings& settings) {
  return settings.pipeline_ranks() * settings.replicas;
}

std::vector<StagePlace> places_of_rank(const PipelineSettings& settings, int rank) {
  const int ranks = settings.pipeline_ranks();
  std::vector<StagePlace> places;
  for (int stage = rank % ranks; stage < settings.stages; stage += ranks)
    places.push_back(
        {stage, settings.stages, rank / ranks, settings.replicas, settings.stages_per_rank});
  return places;
}

std::uint64_t RankMemory::host_peak() const {
  const std::uint64_t built = ledger.host(MemoryUse::weights) + ledger.host(MemoryUse::optimizer);
  return process + std::max(built + loading, ledger.host_bytes() + std::max(saving, checkpoint));
}

std::uint64_t process_bytes(const Settings& settings) {
  constexpr std::uint64_t kGeneratedKernels = 5 << 20;  // oneDNN's, of a GPT-2: measured
  const bool generates = kHostExecution && settings.training.precision == ProductPrecision::bf16 &&
                         has_fast_bf16_gemm();
  // In bf16 a boundary's predictions are made in fp32 as well.
  constexpr std::uint64_t kMpi = 10 << 20;  // Open MPI 4.1's, which a check alone does not start
  return process_memory().resident + (is_mpi_running() ? 0 : kMpi) +
         (generates ? kGeneratedKernels : 0);
}

RankMemory predict_memory(const Settings& settings, const ModelLayout& model,
                          const PipelineShape& shape, int rank, std::uint64_t process_bytes) {
  RankMemory memory;
  memory.process = process_bytes;
  if (shape.training && rank == 0)
    memory.process += RunFile::memory_bytes(
        settings.pipeline, settings.training.steps > 0 ? settings.training.steps
                                                       : std::numeric_limits<std::uint64_t>::max());
  for (const auto& [stage, plan, place] : planned_stages(settings, model, shape, rank)) {
    const std::vector<ParameterInfo>& parameters = stage->parameters().info();
    memory.ledger.add(stage->memory(plan.capacity));
    memory.ledger.add(StepSamples::memory(shape.fields, shape.samples, shape.micro_batches,
                                          place.first(), place.last()));
    if (shape.training) {
      memory.ledger.add(Optimizer<float>::memory(parameters));
      if (settings.replicas.local_steps > 0)
        memory.ledger.add(OuterOptimizer<float>::memory(stage->parameters().gradient_size()));
      const auto add_sum = [&](const std::vector<std::size_t>& sizes, const ReplicaSettings& sums) {
        memory.ledger.add(replica_sum_memory(sizes, settings.pipeline.replicas, sums,
                                             settings.pipeline.payload_memory()));
      };
      add_sum(bucket_sizes(stage->parameters()), settings.replicas);
      add_sum(statistic_sizes(stage->parameters()), {});
    }
    for (const BoundaryEndPlan* end : ends_of(plan)) memory.ledger.add(boundary_end_memory(*end));
    if (plan.tokens) memory.ledger.add(embedding_exchange_memory(*plan.tokens));
    make_padded_rows(plan, ViewAllocator(memory.ledger));
    if (plan.common) memory.ledger.add(common_exchange_memory(*plan.common));
    if (plan.has_token_index)
      memory.ledger.add(TokenIndex::memory(shape.vocabulary, step_rows(shape)));
    memory.loading =
        std::max(memory.loading, loading_memory_bytes(parameters, !settings.model.path.empty()));
  }
  if (shape.training && !saved_models(settings).empty() &&
      rank < settings.pipeline.pipeline_ranks())
    memory.saving = saving_memory_bytes();
  memory.checkpoint = checkpoint_bytes(settings, model, shape, rank);
  return memory;
}

std::uint64_t checkpoint_bytes(const Settings& settings, const ModelLayout& model,
                               const PipelineShape& shape, int rank) {
  if (!shape.training || !writes_checkpoints(settings)) return 0;
  const bool copies_files = settings.checkpoint.milestone_every > 0;
  std::uint64_t bytes = 0;
  std::set<std::string> names;
  for (const auto& [stage, plan, place] : planned_stages(settings, model, shape, rank)) {
    // Values, and the moments of what is trained. Copies of a rank's stages are written once.
    const int outer = settings.replicas.local_steps > 0 ? 2 : 0;  // anchors and velocities
    const int moments = stage->parameters().moments() + outer;
    for (const ParameterInfo& p : stage->parameters().info())
      if (names.insert(p.name).second)
        bytes += sizeof(float) * p.size * static_cast<std::uint64_t>(p.frozen ? 1 : 1 + moments);
    if (settings.checkpoint.mode == CheckpointMode::resync) continue;
    for (const BoundaryEndPlan* end : ends_of(plan)) bytes += end_state_bytes(*end, copies_files);
    if (plan.tokens) bytes += end_state_bytes(plan.tokens->rows, copies_files);
  }
  return bytes;
}

std::vector<RankMemory> predict_memory(const Settings& settings, const ModelLayout& model,
                                       const PipelineShape& shape, std::uint64_t process_bytes) {
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < ranks_of(settings.pipeline); ++rank)
    ranks.push_back(predict_memory(settings, model, shape, rank, process_bytes));
  return ranks;
}

std::vector<int> ranks_here(std::size_t ranks, const std::vector<RankMachine>& machines) {
  std::vector<int> here;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (machines.empty() || machines[rank].machine == 0) here.push_back(static_cast<int>(rank));
  return here;
}

std::vector<DiskNeed> disk_needs(const Settings& settings, const ModelLayout& model,
                                 const PipelineShape& shape, const std::vector<int>& ranks) {
  std::map<std::string, std::uint64_t> needs;
  for (const int rank : ranks) {
    for (const auto& [stage, plan, place] : planned_stages(settings, model, shape, rank))
      for (const BoundaryEndPlan* end : ends_of(plan)) {
        const std::uint64_t bytes = cache_need(*end).disk_bytes;
        const std::uint64_t there = size_of_file(spill_file_path(*end));
        if (bytes > there) needs[end->memory.directory] += bytes - there;
      }
    // The one that is being written, beside those that stay.
    const std::uint64_t checkpoint = checkpoint_bytes(settings, model, shape, rank);
    if (checkpoint > 0)
      needs[checkpoint_directory(settings)] +=
          checkpoint * (static_cast<std::uint64_t>(settings.checkpoint.keep) + 1);
    if (rank > 0) continue;
    needs[settings.output.directory] += RunFile::disk_bytes(
        settings.pipeline,
        settings.training.patience > 0 ? 0 : std::max(settings.training.steps, shape.steps));
    // The best model is written beside its predecessor.
    const std::uint64_t models =
        (settings.output.save_model ? 1 : 0) + (settings.training.keep_best ? 2 : 0);
    if (models == 0) continue;
    std::uint64_t parameters = 0;
    for (int s = 0; s < settings.pipeline.stages; ++s)
      for (const ParameterInfo& p : model.model->parameters(stage_part(model.partition, s)))
        parameters += p.copied ? 0 : p.size;
    needs[settings.output.directory] +=
        models * parameters * (settings.output.model_precision == Precision::fp32 ? 4 : 2);
  }
  std::vector<DiskNeed> list;
  for (const auto& [directory, bytes] : needs) list.push_back({directory, bytes});
  return list;
}

std::uint64_t new_spill_bytes(const CacheNeed& need, const std::string& path, std::uint64_t there,
                              const FormerSpillFiles& former) {
  // A larger copy is written beside the file.
  const bool grows = former.reopened.contains(path) && there < need.row_bytes;
  if (grows || former.set_aside.contains(path)) return need.disk_bytes;
  return need.disk_bytes - std::min(need.disk_bytes, there);
}

SpillNeed spill_need(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
                     int rank, int machine, const FormerSpillFiles& former) {
  SpillNeed need;
  need.machine = machine;
  need.directory = cache_directory(settings);
  for (const auto& [stage, plan, place] : planned_stages(settings, model, shape, rank))
    for (const BoundaryEndPlan* end : ends_of(plan)) {
      const std::string path = spill_file_path(*end);
      need.bytes += new_spill_bytes(cache_need(*end), path, size_of_file(path), former);
    }
  struct stat status {};
  struct statvfs space {};
  const std::string parent = existing_parent(need.directory).string();
  if (::stat(parent.c_str(), &status) != 0 || ::statvfs(parent.c_str(), &space) != 0) {
    need.bytes = 0;  // what cannot be looked at is refused where the file is made
    return need;
  }
  need.file_system = status.st_dev;
  need.available = std::uint64_t{space.f_bavail} * space.f_frsize;
  return need;
}

std::vector<std::string> spill_files(const Settings& settings, const ModelLayout& model,
                                     const PipelineShape& shape, int rank) {
  std::vector<std::string> paths;
  for (const auto& [stage, plan, place] : planned_stages(settings, model, shape, rank))
    for (const BoundaryEndPlan* end : ends_of(plan))
      if (cache_need(*end).disk_bytes > 0) paths.push_back(spill_file_path(*end));
  return paths;
}

void check_spill_space(const std::vector<SpillNeed>& needs) {
  std::map<std::pair<int, std::uint64_t>, SpillNeed> sums;  // of each file system
  for (const SpillNeed& need : needs) {
    if (need.bytes == 0) continue;
    const auto [sum, is_new] = sums.try_emplace({need.machine, need.file_system}, need);
    if (!is_new) sum->second.bytes += need.bytes;
  }
  for (const auto& [place, need] : sums) {
    if (need.bytes <= need.available) continue;
    throw UserError({.what = fmt::format("too little disk space in {} on the machine of rank {}: "
                                         "the activation caches need {}, {} are free",
                                         need.directory, need.machine, bytes_text(need.bytes),
                                         bytes_text(need.available)),
                     .remedy =
                         "free space, set cache.directory to a larger disk or choose a smaller "
                         "cache.storage",
                     .keys = {"cache.directory", "output.directory"}});
  }
}

fs::path existing_parent(fs::path directory) {
  std::error_code error;
  directory = fs::absolute(directory, error);
  while (!fs::is_directory(directory, error) && directory.has_relative_path())
    directory = directory.parent_path();
  return directory;
}

namespace {

/// Ranks that take from the same memory.
struct SharedMemory {
  std::uint64_t total = 0;
  std::uint64_t need = 0;
  int ranks = 0;
  std::size_t first_rank = 0;

  void add(std::size_t rank, std::uint64_t bytes, std::uint64_t memory) {
    if (ranks == 0) first_rank = rank;
    total = memory;
    need += bytes;
    ++ranks;
  }
};

void check_shared(const SharedMemory& memory, const std::string& owner, const char* remedy) {
  if (memory.total == 0 || memory.need <= memory.total) return;
  throw UserError({.what = fmt::format("the run needs more memory than the {} of rank {} has",
                                       owner, memory.first_rank),
                   .value = fmt::format("{} for {} rank(s), {} there", bytes_text(memory.need),
                                        memory.ranks, bytes_text(memory.total)),
                   .remedy = remedy,
                   .keys = {"pipeline.stages", "training.micro_batch_size"}});
}

}  // namespace

void check_memory(std::span<const RankPeak> peaks, const std::vector<RankMachine>& machines) {
  DELTAPIPE_ASSERT(peaks.size() == machines.size(), "one machine a rank");
  std::map<int, SharedMemory> hosts;
  std::map<std::pair<int, std::uint64_t>, SharedMemory> devices;
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    const auto& [machine, memory, device] = machines[rank];
    hosts[machine].add(rank, peaks[rank].host, memory.total);
    devices[{machine, device.device}].add(rank, peaks[rank].device, device.total);
  }
  for (const auto& [machine, memory] : hosts)
    check_shared(memory, "machine",
                 "use more stages or machines, smaller micro-batches, training.recompute or a "
                 "cache.budget; `deltapipe check` says what takes it");
  for (const auto& [device, memory] : devices)
    check_shared(memory, "device",
                 "use more stages, a device for each rank, smaller micro-batches, "
                 "training.recompute or a cache.budget; `deltapipe check` says what takes it");
}

void check_budgets(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
                   int rank) {
  for (const auto& [stage, plan, place] : planned_stages(settings, model, shape, rank))
    for (const BoundaryEndPlan* end : ends_of(plan)) check_cache_budget(*end);
}

std::vector<std::string> warnings_of_disk(const std::vector<DiskNeed>& needs) {
  std::vector<std::string> warnings;
  for (const DiskNeed& need : needs) {
    std::error_code error;
    const fs::space_info space = fs::space(existing_parent(need.directory), error);
    if (!error && space.available < need.bytes)
      warnings.push_back(fmt::format("too little disk space in {}: {} free, {} needed",
                                     need.directory, bytes_text(space.available),
                                     bytes_text(need.bytes)));
  }
  return warnings;
}

}  // namespace deltapipe
