#include "app/memory_prediction.hpp"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "app/progress_display.hpp"
#include "app/save_model.hpp"
#include "app/token_table.hpp"
#include "comm/gradient_all_reduce.hpp"
#include "core/error.hpp"
#include "models/gpt2_weights.hpp"
#include "models/optimizer.hpp"
#include "models/partition.hpp"

namespace deltapipe {

namespace {

RankPlan plan_of(const Settings& settings, const ModelLayout& model, const PipelineShape& shape,
                 const RankPlace& place) {
  return plan_rank(settings, shape, {model.config.n_embd, model.config.tie_word_embeddings}, place);
}

/// The ends that a plan has, tied embeddings' excepted.
std::vector<const BoundaryEndPlan*> ends_of(const RankPlan& plan) {
  std::vector<const BoundaryEndPlan*> ends;
  for (const auto* end :
       {&plan.send_forward, &plan.receive_forward, &plan.send_backward, &plan.receive_backward})
    if (*end) ends.push_back(&**end);
  return ends;
}

int ranks_of(const PipelineSettings& settings) {
  return settings.stages * settings.replicas;
}

std::uint64_t size_of_file(const std::string& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  return error ? 0 : size;
}

std::string bytes_text(std::uint64_t bytes) {
  return with_prefix(static_cast<double>(bytes)) + "B";
}

}  // namespace

RankPlace place_of_rank(const PipelineSettings& settings, int rank) {
  return {rank % settings.stages, settings.stages, rank / settings.stages, settings.replicas};
}

std::uint64_t RankMemory::host_peak() const {
  const std::uint64_t built = ledger.host(MemoryUse::weights) + ledger.host(MemoryUse::optimizer);
  return process + std::max(built + loading, ledger.host_bytes() + saving);
}

RankMemory predict_memory(const Settings& settings, const ModelLayout& model,
                          const PipelineShape& shape, const RankPlace& place,
                          std::uint64_t process_bytes) {
  const RankPlan plan = plan_of(settings, model, shape, place);
  const StagePart part = stage_part(model.partition, place.stage);
  const std::vector<ParameterInfo> parameters = gpt2_parameters(model.config, part);
  RankMemory memory;
  memory.process = process_bytes;
  memory.ledger = gpt2_memory(model.config, part, plan.capacity);
  if (shape.training) {
    memory.ledger.add(Optimizer<float>::memory(parameters));
    std::size_t elements = 0;
    for (const ParameterInfo& p : parameters) elements += p.size;
    memory.ledger.add_host(MemoryUse::replicas,
                           gradient_all_reduce_bytes(elements, place.replicas));
  }
  for (const BoundaryEndPlan* end : ends_of(plan)) memory.ledger.add(boundary_end_memory(*end));
  if (plan.tokens) memory.ledger.add(token_exchange_memory(*plan.tokens));
  if (plan.has_token_index)
    memory.ledger.add(TokenIndex::memory(shape.vocabulary, step_rows(shape)));
  memory.loading = loading_memory_bytes(parameters, !settings.model.path.empty());
  if (shape.training && settings.output.save_model && place.replica == 0)
    memory.saving = saving_memory_bytes();
  return memory;
}

std::vector<RankMemory> predict_memory(const Settings& settings, const ModelLayout& model,
                                       const PipelineShape& shape, std::uint64_t process_bytes) {
  std::vector<RankMemory> ranks;
  for (int rank = 0; rank < ranks_of(settings.pipeline); ++rank)
    ranks.push_back(predict_memory(settings, model, shape, place_of_rank(settings.pipeline, rank),
                                   process_bytes));
  return ranks;
}

std::vector<DiskNeed> disk_needs(const Settings& settings, const ModelLayout& model,
                                 const PipelineShape& shape, const std::vector<int>& ranks) {
  std::map<std::string, std::uint64_t> needs;
  for (const int rank : ranks) {
    const RankPlan plan = plan_of(settings, model, shape, place_of_rank(settings.pipeline, rank));
    for (const BoundaryEndPlan* end : ends_of(plan)) {
      const std::uint64_t bytes = cache_need(*end).disk_bytes;
      const std::uint64_t there = size_of_file(spill_file_path(*end));
      if (bytes > there) needs[end->memory.directory] += bytes - there;
    }
    if (rank > 0 || !settings.output.save_model) continue;
    std::uint64_t parameters = 0;
    for (int s = 0; s < settings.pipeline.stages; ++s)
      for (const ParameterInfo& p : gpt2_parameters(model.config, stage_part(model.partition, s)))
        parameters += p.size;
    needs[settings.output.directory] +=
        parameters * (settings.output.model_precision == Precision::fp32 ? 4 : 2);
  }
  std::vector<DiskNeed> list;
  for (const auto& [directory, bytes] : needs) list.push_back({directory, bytes});
  return list;
}

void check_memory(std::span<const std::uint64_t> peaks, const std::vector<RankMachine>& machines) {
  DELTAPIPE_ASSERT(peaks.size() == machines.size(), "one machine a rank");
  std::map<int, std::pair<std::uint64_t, int>> needs;  // of each machine: bytes, ranks
  for (std::size_t rank = 0; rank < peaks.size(); ++rank) {
    auto& [bytes, count] = needs[machines[rank].machine];
    bytes += peaks[rank];
    ++count;
  }
  for (const auto& [machine, need] : needs) {
    const std::uint64_t total = machines[static_cast<std::size_t>(machine)].memory.total;
    if (total == 0 || need.first <= total) continue;
    throw UserError(
        {.what = "the run needs more memory than the machine of rank " + std::to_string(machine) +
                 " has",
         .value = bytes_text(need.first) + " for " + std::to_string(need.second) + " rank(s), " +
                  bytes_text(total) + " there",
         .remedy = "use more stages or machines, smaller micro-batches, training.recompute or a "
                   "cache.budget; `deltapipe check` says what takes it"});
  }
}

void check_budgets(const Settings& settings, const ModelLayout& model, const PipelineShape& shape) {
  for (int rank = 0; rank < ranks_of(settings.pipeline); ++rank)
    for (const BoundaryEndPlan* end :
         ends_of(plan_of(settings, model, shape, place_of_rank(settings.pipeline, rank))))
      check_cache_budget(*end);
}

}  // namespace deltapipe
