// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/replica_check.hpp"

#include <fmt/format.h>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/kernels/content_hash.hpp"

namespace deltapipe {

ReplicaCheck::ReplicaCheck(const ParameterArena<float>& parameters, const ProcessGrid& grid,
                           ProgressThread& progress, int local)
    : parameters_(parameters), grid_(grid), progress_(progress), local_(local) {
  if (grid.replicas() == 1) return;
  std::size_t ranges = 0;
  for (std::size_t i = 0; i < parameters.info().size(); ++i)
    ranges += parameters.value_bytes(static_cast<int>(i)).size();
  hash_ = Vector<std::uint64_t>(uninitialized("deltapipe::ReplicaCheck::hashes"), ranges);
  hash_host_ = Kokkos::create_mirror_view(hash_);
  start_ = Vector<std::uint64_t>("deltapipe::ReplicaCheck::start", 1);
}

void ReplicaCheck::compare(const ExecSpace& exec, std::uint64_t steps_done) {
  if (grid_.replicas() == 1) return;
  std::vector<std::size_t> parameter_of;  // parameter of each hash
  for (std::size_t i = 0; i < parameters_.info().size(); ++i)
    for (const VectorRef<const std::uint8_t>& bytes :
         parameters_.value_bytes(static_cast<int>(i))) {
      hash_ranges(exec, bytes.data(), start_, bytes.extent(0),
                  VectorRef<std::uint64_t>(hash_.data() + parameter_of.size(), 1));
      parameter_of.push_back(i);
    }
  Kokkos::deep_copy(exec, hash_host_, hash_);
  exec.fence();
  // For each hash, the minimum and, by its complement, the maximum over all replicas.
  std::vector<std::uint64_t> extremes;
  for (std::size_t h = 0; h < parameter_of.size(); ++h)
    extremes.insert(extremes.end(), {hash_host_(h), ~hash_host_(h)});
  all_reduce(progress_, grid_.stage_comm(local_), extremes, Reduction::min);
  for (std::size_t h = 0; h < parameter_of.size(); ++h) {
    if (extremes[2 * h] == ~extremes[2 * h + 1]) continue;
    throw UserError(
        {.what = fmt::format(
             "the replicas of stage {} no longer hold the same weights after step {}: {} differs",
             grid_.stage(local_), steps_done, parameters_.info()[parameter_of[h]].name),
         .remedy = "start all ranks with the same model, on machines whose memory and "
                   "network are sound; pipeline.verify_replicas = 1 finds the step"});
  }
}

}  // namespace deltapipe
