// SPDX-License-Identifier: BSD-3-Clause
// Settings of sums over replicas.
#pragma once

#include <array>

namespace deltapipe {

/// Compression of the gradients that the replicas of a stage exchange.
enum class ReplicaCodec {
  none,      ///< fp32
  bf16,      ///< bf16 on the wire, added in fp32
  quantized  ///< codes of `bits` bits with error feedback on both legs
};
inline constexpr std::array<const char*, 3> kReplicaCodecNames = {"none", "bf16", "quantized"};

struct ReplicaSettings {
  ReplicaCodec codec = ReplicaCodec::none;
  int bits = 8;              ///< 1 ... 8, of quantized
  double warmup_epochs = 0;  ///< epochs in which gradients travel in fp32, with quantized

  bool operator==(const ReplicaSettings&) const = default;
};

}  // namespace deltapipe
