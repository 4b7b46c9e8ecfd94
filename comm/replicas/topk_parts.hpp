// SPDX-License-Identifier: BSD-3-Clause
// The largest values of a part, in b-bit codes, with error feedback: for outer steps, after
// SparseLoCo (arXiv 2508.15706). Unlike there, the owner of a part compresses the sum a second
// time, and errors do not decay. Of each group of n elements, the k = max(1, round(n topk)) largest
// |x|, x = value + error, are sent; k <= n / 4 except in groups of fewer than 4. Codes share a
// scale (code_levels.hpp); error := half(x - x^), with x^ = 0 for all others.
//
// Positions p_0 < p_1 < ... are sent in the code of Elias and Fano (Elias 1974): the lower
// l = min(8, floor(log2(n / k))) bits of each, and a row of bits with ones at (p_j >> l) + j. Its
// size is fixed: with k = n / 50 half a bit, with n / 4 0.8 bits per position above the entropy of
// k places among n.
//
// A group with a value that is not finite has the scale NaN; the values that it sends decode to
// NaN.
#pragma once

#include "comm/replicas/part_codec.hpp"
#include "comm/replicas/part_errors.hpp"

namespace deltapipe {

class TopkParts final : public PartCodec {
 public:
  /// `topk` is the fraction of values to send, up to 1/4.
  TopkParts(double topk, int bits, std::size_t elements, const ViewAllocator& memory = {});

  static std::size_t payload_bytes(double topk, int bits, std::size_t elements);

  std::uint32_t id() const override { return 0x200u + static_cast<std::uint32_t>(bits_); }
  std::size_t payload_bytes(std::size_t elements) const override {
    return payload_bytes(topk_, bits_, elements);
  }
  void encode(const ExecSpace& exec, const VectorRef<const float>& values, std::size_t place,
              std::uint8_t* payload) override;
  void decode(const ExecSpace& exec, const std::uint8_t* payload, const VectorRef<float>& values,
              bool adds) const override;
  PartErrors* errors() override { return &errors_; }

 private:
  double topk_;
  int bits_;
  PartErrors errors_;
};

}  // namespace deltapipe
