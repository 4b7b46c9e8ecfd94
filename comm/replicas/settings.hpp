// SPDX-License-Identifier: BSD-3-Clause
// Settings of sums over replicas.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

namespace deltapipe {

/// Compression of the gradients that the replicas of a stage exchange.
enum class ReplicaCodec {
  none,        ///< fp32
  bf16,        ///< bf16 on the wire, added in fp32
  quantized,   ///< codes of `bits` bits with error feedback on both legs
  adam_moment  ///< as quantized, but AdamW's first moments travel in place of gradients
};
inline constexpr std::array<const char*, 4> kReplicaCodecNames = {"none", "bf16", "quantized",
                                                                  "adam_moment"};
/// Returns true if codes travel, whose errors the replicas retain.
constexpr bool is_quantized(ReplicaCodec codec) {
  return codec == ReplicaCodec::quantized || codec == ReplicaCodec::adam_moment;
}

struct ReplicaSettings {
  ReplicaCodec codec = ReplicaCodec::none;
  int bits = 8;  ///< 1 ... 8, of quantized
  /// Epochs in which gradients travel in fp32, with quantized and adam_moment. adam_moment freezes
  /// the second moments when they are over.
  double warmup_epochs = 0;

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
