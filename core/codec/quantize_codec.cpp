// SPDX-License-Identifier: BSD-3-Clause
// DirectQ: the values themselves as b-bit codes. With error feedback (EF: arXiv 2401.07788) the
// sender keeps of each sample what rounding left out, e(s), and adds it to the sample's next
// values: c = Q(x + e(s)), e(s) := x + e(s) - c; e(s) = 0 at first. The receiver sees c and keeps
// nothing.
//
// NaN is sent as 0 and infinities as the largest code; neither counts into scales or leaves an
// error.
#include "core/codec/quantized_rows.hpp"

namespace deltapipe {
namespace codec {
namespace {

enum Format { first_visit, later_visit = RowFormats::kCount - 1 };

RowFormats formats_of(const CodecSettings& settings, int channels) {
  RowFormats formats;
  for (RowFormat& format : formats.format)
    format = code_format(settings, settings.scale, settings.bits, channels);
  formats.format[later_visit].uses_memory = settings.error_feedback;
  return formats;
}

class QuantizeCodec final : public QuantizedCodec<NoMemory> {
 public:
  QuantizeCodec(const CodecSettings& settings, const CodecShape& shape, MemoryStorage storage)
      : QuantizedCodec(shape, settings_hash(settings, shape, storage, 2),
                       formats_of(settings, shape.channels)) {}

 private:
  int format_of(const Crossing&, std::size_t) const override { return later_visit; }
};

/// Loads -e at the step's scale, so that x - (what is loaded) is what is quantised.
template <class M>
struct NegatedRows {
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& row, float* work,
                                          std::uint8_t* codes) {
    M::load(team, row, work, codes);
    const float scale = row.scale;
    row_for_synced(team, row.channels, [=](int c) { work[c] *= -scale; });
  }
};

/// Scratch memory for x + e, behind that of RowBuffers.
KOKKOS_INLINE_FUNCTION std::size_t sum_bytes(int channels) {
  return sizeof(float) * ((static_cast<std::size_t>(channels) + 15) / 16 * 16);
}

/// M: rows of errors.
template <class M>
struct EncodeWithFeedback {
  RowArguments a;
  RowFormats formats;

  KOKKOS_INLINE_FUNCTION void operator()(const RowMember& team) const {
    const int index = team.league_rank();
    const SampleEntry& sample = a.samples[index / a.tokens];
    const RowFormat& format = formats.format[sample.format];
    const int t = index % a.tokens;
    const int n = a.channels;
    const RowBuffers buffers = RowBuffers::of(team, n);
    auto* sum = static_cast<float*>(team.team_scratch(0).get_shmem(sum_bytes(n)));
    const MemoryRow error{a.pool + sample.record, a.tokens, t, n, a.scale};
    const float scale = a.scale;
    if (t == 0 && !format.uses_memory) clear_record_end<M>(team, error);
    if (t >= sample.tokens && format.uses_memory) return;
    if (format.uses_memory)
      M::load(team, error, sum, buffers.codes);
    else
      NoMemory::load(team, error, sum, buffers.codes);
    if (t < sample.tokens) {
      const float* x = a.x + static_cast<std::size_t>(index) * n;
      float* work = buffers.work;
      row_for_synced(team, n, [=](int c) { sum[c] = sum[c] * scale + x[c]; });
      NoMemory::load(team, error, work, buffers.codes);
      quantize_row(team, a, format, sample, t, sum, buffers);
      add_row_sums(team, a, index, x, work);
      row_for_synced(team, n, [=](int c) {
        const float left_out = (sum[c] - work[c]) / scale;
        sum[c] = is_nonfinite(sum[c]) || is_nonfinite(left_out) ? 0.0f : left_out;
      });
    }
    M::store(team, error, sum, buffers.codes);
  }
};

template <MemoryStorage storage>
class ErrorFeedbackCodec final : public QuantizedCodec<NoMemory> {
 public:
  ErrorFeedbackCodec(const CodecSettings& settings, const CodecShape& shape)
      : QuantizedCodec(shape, settings_hash(settings, shape, storage, 2),
                       formats_of(settings, shape.channels)),
        record_bytes_(record_bytes_of<Errors>(shape)) {}

  RecordLayout record() const override { return {.sender_bytes = record_bytes_}; }

 private:
  using Errors = Memory<storage>;

  /// Both formats look the same on the wire: the receiver need not know the sender's visits.
  int format_of(const Crossing& crossing, std::size_t b) const override {
    return crossing.visits[b] == 0 ? first_visit : later_visit;
  }
  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override {
    find_channel_steps<NegatedRows<Errors>>(exec, arguments);
    const std::size_t scratch =
        RowBuffers::bytes(shape_.channels) + sum_bytes(shape_.channels) + 64;
    Kokkos::parallel_for("deltapipe::QuantizeCodec::encode_with_feedback",
                         row_policy(exec, arguments.sample_count * arguments.tokens, scratch),
                         EncodeWithFeedback<Errors>{with_codes(arguments), formats()});
    return code_rows(exec, arguments, max_bytes);
  }

  const std::size_t record_bytes_;
};

struct MakeWithFeedback {
  const CodecSettings& settings;
  const CodecShape& shape;

  template <MemoryStorage storage>
  std::unique_ptr<Codec> operator()() const {
    return std::make_unique<ErrorFeedbackCodec<storage>>(settings, shape);
  }
};

}  // namespace
}  // namespace codec

void register_quantize_codec(CodecRegistry& registry) {
  registry.add(CodecKind::quantize,
               [](const CodecSettings& settings, const CodecShape& shape,
                  MemoryStorage storage) -> std::unique_ptr<Codec> {
                 if (settings.error_feedback) {
                   // Errors of gradients are too small for fp16.
                   const MemoryStorage errors =
                       storage == MemoryStorage::fp16 ? MemoryStorage::bf16 : storage;
                   return codec::with_storage(errors, codec::MakeWithFeedback{settings, shape});
                 }
                 return std::make_unique<codec::QuantizeCodec>(settings, shape, storage);
               });
}

}  // namespace deltapipe
