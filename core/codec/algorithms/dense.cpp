// SPDX-License-Identifier: BSD-3-Clause
// none, bf16: each value on its own. fp16: each row with its own power of two.
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/quantizer/half_rows.hpp"
#include "core/codec/rows/row_codec.hpp"
#include "core/codec/rows/row_sums.hpp"

namespace deltapipe::codec {
namespace {

enum class DenseFormat { fp32, fp16, bf16 };

/// Rows of one format: bytes of a sample's block, reading and writing of a row, and rounding.
template <DenseFormat format>
struct DenseRows {
  using Value = std::conditional_t<format == DenseFormat::fp32, float, std::uint16_t>;
  /// The least magnitude, as bits, that becomes infinite at the receiver.
  static constexpr std::uint32_t kInfinite =
      format == DenseFormat::bf16 ? kInfinityBits - 0x8000u : kInfinityBits;

  KOKKOS_INLINE_FUNCTION static std::size_t block_bytes(int tokens, int channels) {
    return sizeof(Value) * tokens * channels;
  }
  KOKKOS_INLINE_FUNCTION static Value* values(std::uint8_t* block, int t, int n) {
    return reinterpret_cast<Value*>(block) + static_cast<std::size_t>(t) * n;
  }
  KOKKOS_INLINE_FUNCTION static int exponent(const RowMember&, int, const float*) { return 0; }
  KOKKOS_INLINE_FUNCTION static void write(const RowMember& team, int n, const float* x, int,
                                           std::uint8_t* block, int, int t) {
    Value* row = values(block, t, n);
    row_for_synced(team, n, [=](int c) {
      if constexpr (format == DenseFormat::fp32)
        row[c] = x[c];
      else
        row[c] = bfloat_of(x[c]);
    });
  }
  KOKKOS_INLINE_FUNCTION static void read(const RowMember& team, int n, std::uint8_t* block, int,
                                          int t, float* x) {
    const Value* row = values(block, t, n);
    row_for_synced(team, n, [=](int c) {
      if constexpr (format == DenseFormat::fp32)
        x[c] = row[c];
      else
        x[c] = float_of_bfloat(row[c]);
    });
  }
  KOKKOS_INLINE_FUNCTION static float rounded(float x, int) {
    if constexpr (format == DenseFormat::bf16) return float_of_bfloat(bfloat_of(x));
    return x;
  }
};

template <>
struct DenseRows<DenseFormat::fp16> {
  static constexpr std::uint32_t kInfinite = kInfinityBits;  // each row has its power of two

  KOKKOS_INLINE_FUNCTION static std::size_t block_bytes(int tokens, int channels) {
    return HalfRow::block_bytes(tokens, channels);
  }
  KOKKOS_INLINE_FUNCTION static int exponent(const RowMember& team, int n, const float* x) {
    return half_exponent_of_row(team, n, x);
  }
  KOKKOS_INLINE_FUNCTION static void write(const RowMember& team, int n, const float* x,
                                           int exponent, std::uint8_t* block, int tokens, int t) {
    write_half_row(team, n, x, exponent, HalfRow::of(block, tokens, t, n));
  }
  KOKKOS_INLINE_FUNCTION static void read(const RowMember& team, int n, std::uint8_t* block,
                                          int tokens, int t, float* x) {
    read_half_row(team, n, HalfRow::of(block, tokens, t, n), x);
  }
  KOKKOS_INLINE_FUNCTION static float rounded(float x, int exponent) {
    return float_of_half(half_of(x * power_of_two(exponent))) * power_of_two(-exponent);
  }
};

template <DenseFormat format>
struct DenseEncode {
  RowArguments a;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    using Rows = DenseRows<format>;
    const int row = team.league_rank();
    const SampleEntry& sample = a.samples[row / a.tokens];
    const int t = row % a.tokens;
    if (t >= sample.tokens) return;
    const int n = a.channels;
    const float* x = a.x + static_cast<std::size_t>(row) * n;
    const int exponent = Rows::exponent(team, n, x);
    prefetch_next_row(x, n);
    std::uint8_t* block = a.payload + sample.payload;
    Rows::write(team, n, x, exponent, block, sample.tokens, t);
    if (t + 1 == sample.tokens) clear_block_end(team, block, Rows::block_bytes(sample.tokens, n));
    const std::uint32_t nonfinite = row_sum<std::uint32_t>(
        team, n, [&](int c) { return (bits_of(x[c]) & 0x7fffffffu) >= Rows::kInfinite ? 1u : 0u; });
    double error2 = 0;
    double signal2 = 0;
    if (a.measure) {
      signal2 = row_squares(team, n, [=](int c) {
        return is_nonfinite(Rows::rounded(x[c], exponent)) ? 0.0f : x[c];
      });
      if constexpr (format != DenseFormat::fp32)
        error2 = row_squares(
            team, n, [=](int c) { return finite_or_zero(Rows::rounded(x[c], exponent) - x[c]); });
    }
    row_once(team, [&]() {
      count_nonfinite(a, row, nonfinite);
      if (!a.measure) return;
      CodecStatistics& sums = a.sums[row];
      sums.error2 += error2;
      sums.signal2 += signal2;
      sums.elements += n;
    });
  }
};

template <DenseFormat format>
struct DenseDecode {
  RowArguments a;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int row = team.league_rank();
    const int b = row / a.tokens;
    const int t = row % a.tokens;
    const int n = a.channels;
    float* x = a.x + static_cast<std::size_t>(row) * n;
    if (b >= a.sample_count || t >= a.samples[b].tokens) {
      row_for_synced(team, n, [&](int c) { x[c] = 0.0f; });
      return;
    }
    const SampleEntry& sample = a.samples[b];
    DenseRows<format>::read(team, n, a.payload + sample.payload, sample.tokens, t, x);
  }
};

template <DenseFormat format>
class DenseCodec final : public RowCodec {
 public:
  DenseCodec(const CodecShape& shape, std::uint32_t id) : RowCodec(shape, id) {}

  std::size_t max_payload_bytes() const override {
    return shape_.max_samples * round_up(block_bytes(0, shape_.tokens), 4);
  }

 private:
  int format_of(const Crossing&, std::size_t) const override { return 0; }
  std::size_t block_bytes(int, int tokens) const override {
    return DenseRows<format>::block_bytes(tokens, shape_.channels);
  }
  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override {
    for_rows("deltapipe::DenseCodec::encode",
             row_policy(exec, arguments.sample_count * arguments.tokens),
             DenseEncode<format>{arguments});
    return max_bytes;
  }
  void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) override {
    for_rows("deltapipe::DenseCodec::decode", row_policy(exec, rows),
             DenseDecode<format>{arguments});
  }
};

}  // namespace

std::unique_ptr<Codec> make_dense(const CodecSettings& settings, const CodecShape& shape) {
  const std::uint32_t id = settings_hash(settings, shape, MemoryStorage::fp32, 2);
  switch (settings.kind) {
    case CodecKind::fp16:
      return std::make_unique<DenseCodec<DenseFormat::fp16>>(shape, id);
    case CodecKind::bf16:
      return std::make_unique<DenseCodec<DenseFormat::bf16>>(shape, id);
    default:
      return std::make_unique<DenseCodec<DenseFormat::fp32>>(shape, id);
  }
}

}  // namespace deltapipe::codec
