#include "app/step_plan.hpp"

#include <algorithm>

#include "core/random.hpp"

namespace deltapipe {

StepPlanner::StepPlanner(const TokenDataset& data, std::uint64_t seed, bool shuffle,
                         const Layout& layout)
    : data_(data), layout_(layout) {
  const std::uint64_t size = data.size();
  const auto replicas = static_cast<std::uint64_t>(layout.replicas);
  const std::uint64_t batch =
      static_cast<std::uint64_t>(layout.micro_batch_size) * layout.micro_batches;
  if (!layout.samples_stay || replicas == 1) {
    samplers_.emplace_back(size, seed, shuffle);
    steps_per_epoch_ = samplers_.front().steps_per_epoch(batch * replicas);
    return;
  }
  for (int r = 0; r < layout.replicas && samples_of_replica(size, r, layout.replicas) > 0; ++r) {
    samplers_.emplace_back(samples_of_replica(size, r, layout.replicas), mix_bits(seed + r),
                           shuffle);
    steps_per_epoch_ = std::max(steps_per_epoch_, samplers_.back().steps_per_epoch(batch));
  }
}

std::uint64_t StepPlanner::samples_of_replica(std::uint64_t samples, int replica, int replicas) {
  return samples / replicas + (static_cast<std::uint64_t>(replica) < samples % replicas ? 1 : 0);
}

std::vector<std::uint64_t> StepPlanner::samples(std::uint64_t step, int replica) const {
  const std::uint64_t epoch = step / steps_per_epoch_;
  const std::uint64_t step_in_epoch = step % steps_per_epoch_;
  const auto replicas = static_cast<std::uint64_t>(layout_.replicas);
  const std::uint64_t batch =
      static_cast<std::uint64_t>(layout_.micro_batch_size) * layout_.micro_batches;
  std::vector<std::uint64_t> ids;
  if (!layout_.samples_stay || replicas == 1) {
    const Sampler& sampler = samplers_.front();
    const std::uint64_t begin = std::min(step_in_epoch * batch * replicas, sampler.size());
    const std::uint64_t end = std::min(begin + batch * replicas, sampler.size());
    const std::uint64_t first = begin + (end - begin) * replica / replicas;
    const std::uint64_t last = begin + (end - begin) * (replica + 1) / replicas;
    for (std::uint64_t p = first; p < last; ++p) ids.push_back(sampler.at(epoch, p));
    return ids;
  }
  if (replica >= static_cast<int>(samplers_.size())) return ids;
  const Sampler& sampler = samplers_[replica];
  const std::uint64_t begin = std::min(step_in_epoch * batch, sampler.size());
  const std::uint64_t end = std::min(begin + batch, sampler.size());
  for (std::uint64_t p = begin; p < end; ++p)
    ids.push_back(sampler.at(epoch, p) * replicas + replica);
  return ids;
}

StepPlan StepPlanner::plan(std::uint64_t step, int replica) const {
  StepPlan plan;
  plan.step = step;
  plan.epoch = static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
  for (int r = 0; r < layout_.replicas; ++r) {
    const std::vector<std::uint64_t> ids = samples(step, r);
    plan.samples += ids.size();
    for (const std::uint64_t id : ids) plan.predicted_tokens += data_.length(id);
    if (r != replica) continue;
    for (std::size_t i = 0; i < ids.size(); i += layout_.micro_batch_size) {
      const std::size_t end = std::min(ids.size(), i + layout_.micro_batch_size);
      plan.micro_batches.emplace_back(ids.begin() + i, ids.begin() + end);
    }
  }
  return plan;
}

}  // namespace deltapipe
