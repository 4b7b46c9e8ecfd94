// SPDX-License-Identifier: BSD-3-Clause
#include "comm/replicas/part_codec.hpp"

#include "comm/replicas/quantized_parts.hpp"
#include "comm/replicas/topk_parts.hpp"
#include "core/base/numeric/number_formats.hpp"
#include "core/base/parallel/row.hpp"

namespace deltapipe {

namespace {

KOKKOS_FORCEINLINE_FUNCTION float value_of(float x) {
  return x;
}
KOKKOS_FORCEINLINE_FUNCTION float value_of(Bf16 x) {
  return float_of_bfloat(static_cast<std::uint16_t>(x));
}

/// Values in fp32 or Bf16.
template <class Wire>
class DenseParts final : public PartCodec {
 public:
  std::uint32_t id() const override { return sizeof(Wire); }
  std::size_t payload_bytes(std::size_t elements) const override { return sizeof(Wire) * elements; }

  void encode(const ExecSpace& exec, const VectorRef<const float>& values, std::size_t,
              std::uint8_t* payload) override {
    const float* const from = values.data();
    auto* const to = reinterpret_cast<Wire*>(payload);
    for_tiles(
        "deltapipe::DenseParts::encode", exec, static_cast<std::int64_t>(values.extent(0)),
        DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
          for (std::int64_t i = first; i < end; ++i) to[i] = rounded_to<Wire>(from[i]);
        });
  }

  void decode(const ExecSpace& exec, const std::uint8_t* payload, const VectorRef<float>& values,
              bool adds) const override {
    const auto* const from = reinterpret_cast<const Wire*>(payload);
    float* const to = values.data();
    for_tiles(
        "deltapipe::DenseParts::decode", exec, static_cast<std::int64_t>(values.extent(0)),
        DELTAPIPE_LAMBDA(std::int64_t first, std::int64_t end) {
          for (std::int64_t i = first; i < end; ++i) {
            const float x = value_of(from[i]);
            to[i] = adds ? to[i] + x : x;
          }
        });
  }
};

}  // namespace

std::unique_ptr<PartCodec> make_part_codec(const ReplicaSettings& settings, std::size_t elements) {
  switch (settings.codec) {
    case ReplicaCodec::none:
      return std::make_unique<DenseParts<float>>();
    case ReplicaCodec::bf16:
      return std::make_unique<DenseParts<Bf16>>();
    case ReplicaCodec::quantized:
    case ReplicaCodec::adam_moment:
      return std::make_unique<QuantizedParts>(settings.bits, elements);
    case ReplicaCodec::topk:
      return std::make_unique<TopkParts>(settings.topk, settings.bits, elements);
  }
  return nullptr;
}

MemoryLedger part_codec_memory(const ReplicaSettings& settings, std::size_t elements) {
  MemoryLedger ledger;
  if (has_errors(settings.codec)) PartErrors(elements, ViewAllocator(ledger));
  return ledger;
}

std::size_t part_payload_bytes(const ReplicaSettings& settings, std::size_t elements) {
  switch (settings.codec) {
    case ReplicaCodec::none:
      return sizeof(float) * elements;
    case ReplicaCodec::bf16:
      return sizeof(Bf16) * elements;
    case ReplicaCodec::quantized:
    case ReplicaCodec::adam_moment:
      return QuantizedParts::payload_bytes(settings.bits, elements);
    case ReplicaCodec::topk:
      return TopkParts::payload_bytes(settings.topk, settings.bits, elements);
  }
  return 0;
}

}  // namespace deltapipe
