// SPDX-License-Identifier: BSD-3-Clause
// Parts in b-bit codes with error feedback: what a code leaves out is added to the values of the
// next sum (1-bit SGD; both legs of an exchange, as in arXiv 2102.02888).
//
// A group of kSumGroup elements shares a scale s. With x = value + error, and the largest |x| = a:
//   b >= 3: x^ = s c,        c = rint(x / s),  |c| <= L = 2^(b-1) - 1,  s >= a / L
//   b = 2:  x^ = s c,        c in {-3, -1, 1, 3}, the nearest,          s >= a / 4
//   b = 1:  x^ = s sign(x),  s >= mean |x|
// and error := half(x - x^), in units of s. s is rounded up to 16 bits (core/codec/quantizer).
// A group with a value that is not finite has the scale NaN, and so do its decoded values.
#pragma once

#include "comm/replicas/part_codec.hpp"

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
  std::vector<StatePart> state(const ExecSpace& exec, const std::string& name) override;
  SumStatistics errors(const ExecSpace& exec) const override;
  void reset(const ExecSpace& exec) override;

 private:
  int bits_;
  Vector<std::uint16_t> error_;        ///< fp16, in units of the group's error_scale_
  Vector<std::uint16_t> error_scale_;  ///< as scales travel
  Matrix<float> squares_;              ///< [groups, 2] of the last encoding: errors, values
};

}  // namespace deltapipe
