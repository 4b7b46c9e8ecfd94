// SPDX-License-Identifier: BSD-3-Clause
#include "comm/pipeline/step_plan.hpp"

#include <algorithm>
#include <cmath>

#include "core/base/error.hpp"

namespace deltapipe {

StepPlanner::StepPlanner(const Dataset& data, std::uint64_t seed, bool shuffle,
                         const Layout& layout)
    : data_(data), layout_(layout) {
  for (int r = 0; r < layout.replicas; ++r) {
    const std::uint64_t samples = samples_of_replica(data.size(), r, layout.replicas);
    if (samples == 0) break;
    samplers_.emplace_back(samples, seed, shuffle, static_cast<std::uint32_t>(r));
  }
  DELTAPIPE_ASSERT(!samplers_.empty(), "a plan for no samples");
  // The first replica has the most samples.
  steps_per_epoch_ = samplers_.front().steps_per_epoch(samples_per_step());
}

std::uint64_t StepPlanner::samples_per_step() const {
  return static_cast<std::uint64_t>(layout_.micro_batch_size) * layout_.micro_batches;
}

std::uint64_t StepPlanner::samples_of_replica(std::uint64_t samples, int replica, int replicas) {
  return samples / replicas + (static_cast<std::uint64_t>(replica) < samples % replicas ? 1 : 0);
}

std::vector<std::uint64_t> StepPlanner::samples(std::uint64_t step, int replica) const {
  std::vector<std::uint64_t> ids;
  if (replica >= static_cast<int>(samplers_.size())) return ids;
  const Sampler& sampler = samplers_[replica];
  const std::uint64_t begin =
      std::min(step % steps_per_epoch_ * samples_per_step(), sampler.size());
  const std::uint64_t end = std::min(begin + samples_per_step(), sampler.size());
  for (std::uint64_t p = begin; p < end; ++p)
    ids.push_back(sampler.at(step / steps_per_epoch_, p) * layout_.replicas + replica);
  return ids;
}

StepPlan StepPlanner::plan(std::uint64_t step, int replica) const {
  StepPlan plan;
  plan.step = step;
  plan.epoch = static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
  for (int r = 0; r < layout_.replicas; ++r) {
    const std::vector<std::uint64_t> ids = samples(step, r);
    plan.samples += ids.size();
    for (const std::uint64_t id : ids) plan.targets += data_.targets(id);
    if (r != replica) continue;
    for (std::size_t i = 0; i < ids.size(); i += layout_.micro_batch_size) {
      const std::size_t end = std::min(ids.size(), i + layout_.micro_batch_size);
      plan.micro_batches.emplace_back(ids.begin() + i, ids.begin() + end);
    }
  }
  return plan;
}

std::uint64_t total_steps(std::uint64_t steps, double epochs, std::uint64_t steps_per_epoch) {
  if (steps > 0) return steps;
  return std::max<std::uint64_t>(
      1,
      static_cast<std::uint64_t>(std::ceil(epochs * static_cast<double>(steps_per_epoch) - 1e-9)));
}

}  // namespace deltapipe
