// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/replica_check.hpp"

#include <string>

#include "comm/transport/collectives.hpp"
#include "core/base/error.hpp"
#include "core/kernels/content_hash.hpp"

namespace deltapipe {

ReplicaCheck::ReplicaCheck(const ParameterArena<float>& parameters, const ProcessGrid& grid,
                           ProgressThread& progress, int local)
    : parameters_(parameters), grid_(grid), progress_(progress), local_(local) {
  if (grid.replicas() == 1) return;
  hash_P_ = Vector<std::uint64_t>(uninitialized("deltapipe::ReplicaCheck::hashes"),
                                  parameters.info().size());
  hash_host_ = Kokkos::create_mirror_view(hash_P_);
  start_ = Vector<std::uint64_t>("deltapipe::ReplicaCheck::start", 1);
}

void ReplicaCheck::compare(const ExecSpace& exec, std::uint64_t steps_done) {
  if (grid_.replicas() == 1) return;
  const std::size_t count = parameters_.info().size();
  for (std::size_t i = 0; i < count; ++i) {
    const VectorRef<const float> values = parameters_.value(static_cast<int>(i));
    hash_ranges(exec, reinterpret_cast<const std::uint8_t*>(values.data()), start_,
                values.extent(0) * sizeof(float), VectorRef<std::uint64_t>(hash_P_.data() + i, 1));
  }
  Kokkos::deep_copy(exec, hash_host_, hash_P_);
  exec.fence();
  // Of each hash the least and, by its complement, the largest of all replicas.
  std::vector<std::uint64_t> extremes;
  for (std::size_t i = 0; i < count; ++i)
    extremes.insert(extremes.end(), {hash_host_(i), ~hash_host_(i)});
  all_reduce(progress_, grid_.stage_comm(local_), extremes, Reduction::min);
  for (std::size_t i = 0; i < count; ++i) {
    if (extremes[2 * i] == ~extremes[2 * i + 1]) continue;
    throw UserError({.what = "the replicas of stage " + std::to_string(grid_.stage(local_)) +
                             " no longer hold the same weights after step " +
                             std::to_string(steps_done) + ": " + parameters_.info()[i].name +
                             " differs",
                     .remedy = "start all ranks with the same model, on machines whose memory and "
                               "network are sound; pipeline.verify_replicas = 1 finds the step"});
  }
}

}  // namespace deltapipe
