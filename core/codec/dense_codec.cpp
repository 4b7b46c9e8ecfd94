// none, fp16, bf16: every value by itself.
#include "core/codec/row_codec.hpp"

namespace deltapipe {
namespace codec {
namespace {

enum class DenseFormat { fp32, fp16, bf16 };

constexpr std::size_t bytes_of(DenseFormat format) {
  return format == DenseFormat::fp32 ? 4 : 2;
}

template <DenseFormat format>
KOKKOS_INLINE_FUNCTION void pack_row(const Team& team, int n, const float* x,
                                     std::uint8_t* packed) {
  if constexpr (format == DenseFormat::fp32) {
    float* values = reinterpret_cast<float*>(packed);
    row_for(team, n, [&](int c) { values[c] = x[c]; });
  } else if constexpr (format == DenseFormat::fp16) {
    halves_of_row(team, n, x, reinterpret_cast<std::uint16_t*>(packed));
  } else {
    std::uint16_t* values = reinterpret_cast<std::uint16_t*>(packed);
    row_for(team, n, [&](int c) { values[c] = bfloat_of(x[c]); });
  }
}

template <DenseFormat format>
KOKKOS_INLINE_FUNCTION void unpack_row(const Team& team, int n, const std::uint8_t* packed,
                                       float* x) {
  if constexpr (format == DenseFormat::fp32) {
    const float* values = reinterpret_cast<const float*>(packed);
    row_for(team, n, [&](int c) { x[c] = values[c]; });
  } else if constexpr (format == DenseFormat::fp16) {
    floats_of_halves(team, n, reinterpret_cast<const std::uint16_t*>(packed), x);
  } else {
    const std::uint16_t* values = reinterpret_cast<const std::uint16_t*>(packed);
    row_for(team, n, [&](int c) { x[c] = float_of_bfloat(values[c]); });
  }
}

template <DenseFormat format>
KOKKOS_INLINE_FUNCTION float rounded(float x) {
  if constexpr (format == DenseFormat::fp16) return float_of_half(half_of(x));
  if constexpr (format == DenseFormat::bf16) return float_of_bfloat(bfloat_of(x));
  return x;
}

template <DenseFormat format>
struct DenseEncode {
  RowArguments a;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team) const {
    const int row = team.league_rank();
    const SampleEntry& sample = a.samples[row / a.tokens];
    const int t = row % a.tokens;
    if (t >= sample.tokens) return;
    const int n = a.channels;
    const float* x = a.x + static_cast<std::size_t>(row) * n;
    pack_row<format>(
        team, n, x,
        a.payload + sample.payload + bytes_of(format) * static_cast<std::size_t>(t) * n);
    const std::uint32_t nonfinite =
        row_sum<std::uint32_t>(team, n, [&](int c) { return is_nonfinite(x[c]); });
    float error2 = 0;
    float signal2 = 0;
    if (a.measure) {
      signal2 = row_sum<float>(
          team, n, [&](int c) { return is_nonfinite(rounded<format>(x[c])) ? 0.0f : x[c] * x[c]; });
      if constexpr (format != DenseFormat::fp32)
        error2 = row_sum<float>(team, n, [&](int c) {
          const float error = rounded<format>(x[c]) - x[c];
          return is_nonfinite(error) ? 0.0f : error * error;
        });
    }
    Kokkos::single(Kokkos::PerTeam(team), [&]() {
      RowSums& sums = a.sums[row];
      sums.nonfinite += nonfinite;
      if (!a.measure) return;
      sums.error2 += error2;
      sums.signal2 += signal2;
      sums.elements += n;
    });
  }
};

template <DenseFormat format>
struct DenseDecode {
  RowArguments a;

  KOKKOS_INLINE_FUNCTION void operator()(const Team& team) const {
    const int row = team.league_rank();
    const int b = row / a.tokens;
    const int t = row % a.tokens;
    const int n = a.channels;
    float* x = a.x + static_cast<std::size_t>(row) * n;
    if (b >= a.sample_count || t >= a.samples[b].tokens) {
      row_for(team, n, [&](int c) { x[c] = 0.0f; });
      return;
    }
    unpack_row<format>(
        team, n,
        a.payload + a.samples[b].payload + bytes_of(format) * static_cast<std::size_t>(t) * n, x);
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
  int format_of(const Visit&, std::size_t) const override { return 0; }
  std::size_t block_bytes(int, int tokens) const override {
    return bytes_of(format) * tokens * shape_.channels;
  }
  void run_encode(const ExecSpace& exec, const RowArguments& arguments) override {
    Kokkos::parallel_for("deltapipe::DenseCodec::encode",
                         row_policy(exec, arguments.sample_count * arguments.tokens),
                         DenseEncode<format>{arguments});
  }
  void run_decode(const ExecSpace& exec, int rows, const RowArguments& arguments) override {
    Kokkos::parallel_for("deltapipe::DenseCodec::decode", row_policy(exec, rows),
                         DenseDecode<format>{arguments});
  }
};

template <DenseFormat format>
void add_dense(CodecRegistry& registry, CodecKind kind) {
  registry.add(kind,
               [](const CodecSettings& settings, const CodecShape& shape,
                  MemoryStorage storage) -> std::unique_ptr<Codec> {
                 return std::make_unique<DenseCodec<format>>(
                     shape, settings_hash(settings, shape, storage, 1));
               });
}

}  // namespace
}  // namespace codec

void register_dense_codec(CodecRegistry& registry) {
  using codec::DenseFormat;
  codec::add_dense<DenseFormat::fp32>(registry, CodecKind::none);
  codec::add_dense<DenseFormat::fp16>(registry, CodecKind::fp16);
  codec::add_dense<DenseFormat::bf16>(registry, CodecKind::bf16);
}

}  // namespace deltapipe
