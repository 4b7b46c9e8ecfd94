// SPDX-License-Identifier: BSD-3-Clause
// e5m2: each value as the upper byte of its fp16, with a power of two for each token: 8 bits per
// value and 16 per token. The example of docs/adding_a_codec.md;
// tests/unit/core/codec/example_codec_test.cpp compiles and runs it.
#include "core/codec/quantizer/half_rows.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_sums.hpp"

namespace deltapipe::codec {

namespace {

/// A token in its sample's payload block, which has the exponents of all tokens and then the bytes
/// of all tokens.
struct E5m2Row {
  std::int16_t* exponent;
  std::uint8_t* bytes;

  KOKKOS_INLINE_FUNCTION static E5m2Row of(const RowArguments& a, const SampleEntry& sample,
                                           int t) {
    std::uint8_t* block = a.payload + sample.payload;
    return {reinterpret_cast<std::int16_t*>(block) + t,
            block + std::size_t{2} * sample.tokens + static_cast<std::size_t>(t) * a.channels};
  }
  static std::size_t block_bytes(int tokens, int channels) {
    return static_cast<std::size_t>(tokens) * (2 + static_cast<std::size_t>(channels));
  }
};

/// Rounds to nearest, ties to even. NaN becomes 0: what travels is finite, and add_row_sums reports
/// what was not.
KOKKOS_INLINE_FUNCTION std::uint8_t e5m2_of(float x) {
  constexpr float kLargest = 57344.0f;
  const std::uint32_t half = half_of(saturate(x, kLargest));
  return static_cast<std::uint8_t>((half + 0x7fu + ((half >> 8) & 1u)) >> 8);
}
KOKKOS_INLINE_FUNCTION float float_of_e5m2(std::uint8_t byte) {
  return float_of_half(static_cast<std::uint16_t>(byte << 8));
}

/// One team for each token of the micro-batch.
struct E5m2Encode {
  RowArguments a;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank(), n = a.channels;
    const SampleEntry& sample = a.samples[index / a.tokens];
    const int t = index % a.tokens;
    if (t >= sample.tokens) return;  // padding
    const float* x = a.x + static_cast<std::size_t>(index) * n;
    const E5m2Row row = E5m2Row::of(a, sample, t);
    const std::uint32_t largest =
        row_max(team, n, 0u, [=](int c) { return bits_of(x[c]) & 0x7fffffffu; });
    // The largest value comes to between 2^14 and 2^15, below e5m2's largest.
    const int exponent = half_exponent_of_row(team, n, x) - 1;
    const float down = power_of_two(exponent), up = power_of_two(-exponent);
    auto* seen = static_cast<float*>(team.team_scratch(0).get_shmem(sizeof(float) * n));
    row_once(team, [=]() { *row.exponent = static_cast<std::int16_t>(exponent); });
    row_for_synced(team, n, [=](int c) {
      row.bytes[c] = e5m2_of(down * x[c]);
      seen[c] = up * float_of_e5m2(row.bytes[c]);
    });
    if (t + 1 == sample.tokens)
      clear_block_end(team, a.payload + sample.payload, E5m2Row::block_bytes(sample.tokens, n));
    add_row_sums(team, a, index, x, largest, kMaxFloat, seen);
  }
};

struct E5m2Decode {
  RowArguments a;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank(), n = a.channels;
    const int b = index / a.tokens, t = index % a.tokens;
    float* x = a.x + static_cast<std::size_t>(index) * n;
    if (b >= a.sample_count || t >= a.samples[b].tokens) {
      row_for(team, n, [=](int c) { x[c] = 0.0f; });
      return;
    }
    const E5m2Row row = E5m2Row::of(a, a.samples[b], t);
    // A damaged payload has passed a checksum by now; any exponent gives numbers.
    const int exponent = *row.exponent < -126 ? -126 : *row.exponent > 126 ? 126 : *row.exponent;
    const float up = power_of_two(-exponent);
    row_for(team, n, [=](int c) { x[c] = up * float_of_e5m2(row.bytes[c]); });
  }
};

class E5m2Codec final : public RowCodec {
 public:
  E5m2Codec(const CodecSettings& settings, const CodecShape& shape)
      : RowCodec(shape, settings_hash(settings, shape, MemoryStorage::fp32, 1)) {}

  std::size_t max_payload_bytes() const override {
    return shape_.max_samples * round_up(block_bytes(0, shape_.tokens), 4);
  }

 private:
  int format_of(const Crossing&, std::size_t) const override { return 0; }
  std::size_t block_bytes(int, int tokens) const override {
    return E5m2Row::block_bytes(tokens, shape_.channels);
  }
  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override {
    const int rows = arguments.sample_count * arguments.tokens;
    for_rows("deltapipe::E5m2Codec::encode",
             row_policy(exec, rows, sizeof(float) * shape_.channels + 64), E5m2Encode{arguments});
    return max_bytes;
  }
  void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) override {
    for_rows("deltapipe::E5m2Codec::decode", row_policy(exec, rows), E5m2Decode{arguments});
  }
};

}  // namespace

std::unique_ptr<Codec> make_e5m2(const CodecSettings& settings, const CodecShape& shape) {
  return std::make_unique<E5m2Codec>(settings, shape);
}

}  // namespace deltapipe::codec
