// SPDX-License-Identifier: BSD-3-Clause
// Parts in b-bit codes with error feedback. A group of kSumGroup elements shares a scale; with
// x = value + error and its code's value x^ (code_levels.hpp), error := half(x - x^), in units of
// the scale. A group with a value that is not finite has the scale NaN, and so do its decoded
// values.
#pragma once

#include "comm/replicas/part_codec.hpp"
#include "comm/replicas/part_errors.hpp"

namespace deltapipe {

class QuantizedParts final : public PartCodec {
 public:
  QuantizedParts(int bits, std::size_t elements, const ViewAllocator& memory = {});

  static std::size_t payload_bytes(int bits, std::size_t elements);

  std::uint32_t id() const override { return 0x100u + static_cast<std::uint32_t>(bits_); }
  std::size_t payload_bytes(std::size_t elements) const override {
    return payload_bytes(bits_, elements);
  }
  void encode(const ExecSpace& exec, const VectorRef<const float>& values, std::size_t place,
              std::uint8_t* payload) override;
  void decode(const ExecSpace& exec, const std::uint8_t* payload, const VectorRef<float>& values,
              bool adds) const override;
  PartErrors* errors() override { return &errors_; }

 private:
  int bits_;
  PartErrors errors_;
};

}  // namespace deltapipe
