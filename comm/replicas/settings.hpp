// SPDX-License-Identifier: BSD-3-Clause
// Settings of sums over replicas.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace deltapipe {

/// Compression of the gradients that the replicas of a stage exchange.
enum class ReplicaCodec {
  none,        ///< fp32
  bf16,        ///< bf16 on the wire, added in fp32
  quantized,   ///< codes of `bits` bits with error feedback on both legs
  topk,        ///< as quantized, but the largest `topk` of the values only
  adam_moment  ///< as quantized, but AdamW's first moments travel in place of gradients
};
inline constexpr std::array<const char*, 5> kReplicaCodecNames = {"none", "bf16", "quantized",
                                                                  "topk", "adam_moment"};
/// Returns true if replicas retain the errors of what they send.
constexpr bool has_errors(ReplicaCodec codec) {
  return codec != ReplicaCodec::none && codec != ReplicaCodec::bf16;
}

struct ReplicaSettings {
  ReplicaCodec codec = ReplicaCodec::none;
  int bits = 8;        ///< 1 ... 8, of codes
  double topk = 0.05;  ///< fraction of the values that topk sends, up to 1/4
  /// Epochs in which gradients travel in fp32, with a codec that has errors. adam_moment freezes
  /// the second moments when they are over.
  double warmup_epochs = 0;
  /// Above 0: replicas take this many steps of their own, and then sum the changes of their
  /// parameters, in `codec`, for one outer step (DiLoCo, arXiv 2311.08105). 0: they sum gradients
  /// in every step.
  int local_steps = 0;
  double outer_learning_rate = 1;
  double outer_momentum = 0.5;

  /// Returns true if an outer step follows `steps_done` steps of the run. One follows its last
  /// step.
  bool is_outer_step(std::uint64_t steps_done, std::uint64_t steps) const {
    return local_steps > 0 &&
           (steps_done % static_cast<std::uint64_t>(local_steps) == 0 || steps_done == steps);
  }
  /// Returns the sums of gradients or changes in the first `count` of a run's steps.
  std::uint64_t sums_until(std::uint64_t count, std::uint64_t steps) const {
    if (local_steps == 0) return count;
    const auto interval = static_cast<std::uint64_t>(local_steps);
    return count / interval + (count == steps && steps % interval != 0 ? 1 : 0);
  }
  /// Returns true if replicas have the same parameters after `steps_done` steps of the run.
  bool replicas_agree(std::uint64_t steps_done, std::uint64_t steps) const {
    return local_steps == 0 || is_outer_step(steps_done, steps);
  }
  /// Returns the number of steps until replicas next agree, at least 1.
  std::uint64_t steps_to_agreement(std::uint64_t steps_done, std::uint64_t steps) const {
    if (local_steps == 0) return 1;
    const auto interval = static_cast<std::uint64_t>(local_steps);
    const std::uint64_t more = interval - steps_done % interval;
    return steps_done < steps ? std::min(more, steps - steps_done) : more;
  }
  bool sums_moments(double epoch) const {
    return codec == ReplicaCodec::adam_moment && epoch >= warmup_epochs;
  }
  /// Returns the number of steps n with n / steps_per_epoch < warmup_epochs, rounded as epochs are.
  std::uint64_t warmup_steps(std::uint64_t steps_per_epoch) const {
    const auto all = static_cast<double>(steps_per_epoch);
    auto steps = static_cast<std::uint64_t>(std::ceil(warmup_epochs * all));
    while (steps > 0 && static_cast<double>(steps - 1) / all >= warmup_epochs) --steps;
    while (static_cast<double>(steps) / all < warmup_epochs) ++steps;
    return steps;
  }
  /// Returns the settings of the sums of gradients and of those of moments.
  ReplicaSettings of_gradients() const {
    return codec == ReplicaCodec::adam_moment ? ReplicaSettings{} : *this;
  }
  ReplicaSettings of_moments() const {
    return {.codec = ReplicaCodec::quantized, .bits = bits, .warmup_epochs = 0};
  }
  bool operator==(const ReplicaSettings&) const = default;
};

}  // namespace deltapipe
