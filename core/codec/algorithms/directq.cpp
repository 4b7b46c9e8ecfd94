// SPDX-License-Identifier: BSD-3-Clause
// DirectQ: the values themselves as b-bit codes. With error feedback (EF: arXiv 2401.07788) the
// sender keeps of each sample what rounding left out, e(s), and adds it to the sample's next
// values: c = Q(x + e(s)), e(s) := x + e(s) - c; e(s) = 0 at first, and is bounded (ErrorBound).
// The receiver sees c and keeps nothing.
//
// NaN is sent as 0 and infinities as the largest code; neither counts into scales or leaves an
// error.
#include "core/codec/algorithms/error_bound.hpp"
#include "core/codec/rows/quantized_rows.hpp"

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

/// Largest ratio of the errors' norm to that of the values: about twice what the coarsest steps
/// leave out.
constexpr double kMostError = 2;

/// The record is the error e(s), in units of the step's scale. M: its rows.
template <class M>
struct ErrorSender {
  using Record = M;
  static std::size_t scratch_bytes(int channels) { return sum_bytes(channels) + 64; }
  /// Errors are smaller than the values.
  KOKKOS_INLINE_FUNCTION static float largest_kept(float) { return kMaxFloat; }

  /// work := -e, so that x - work is what is quantised.
  KOKKOS_INLINE_FUNCTION static void load(const RowMember& team, const MemoryRow& record,
                                          float* work, std::uint8_t* codes) {
    M::load(team, record, work, codes);
    const float scale = record.scale * record.share;
    row_for_synced(team, record.channels, [=](int c) { work[c] *= -scale; });
  }
  /// Returns x + e, in scratch memory.
  KOKKOS_INLINE_FUNCTION static float* begin(const RowMember& team, const RowFormat& format,
                                             const MemoryRow& record, const float* x,
                                             const RowBuffers& buffers) {
    const int n = record.channels;
    const float scale = record.scale * record.share;
    auto* sum = static_cast<float*>(team.team_scratch(0).get_shmem(sum_bytes(n)));
    if (format.uses_memory)
      M::load(team, record, sum, buffers.codes);
    else
      NoMemory::load(team, record, sum, buffers.codes);
    row_for_synced(team, n, [=](int c) { sum[c] = sum[c] * scale + x[c]; });
    NoMemory::load(team, record, buffers.work, buffers.codes);
    return sum;
  }
  KOKKOS_INLINE_FUNCTION static void keep(const RowMember& team, const MemoryRow& record,
                                          float* sum, const RowBuffers& buffers) {
    const float* work = buffers.work;
    const float scale = record.scale;
    row_for_synced(team, record.channels, [=](int c) {
      const float left_out = (sum[c] - work[c]) / scale;
      sum[c] = is_nonfinite(sum[c]) || is_nonfinite(left_out) ? 0.0f : left_out;
    });
    M::store(team, record, sum, buffers.codes);
  }

 private:
  KOKKOS_INLINE_FUNCTION static std::size_t sum_bytes(int channels) {
    return sizeof(float) * ((static_cast<std::size_t>(channels) + 15) / 16 * 16);
  }
};

template <MemoryStorage storage>
class ErrorFeedbackCodec final : public QuantizedCodec<NoMemory, ErrorSender<Memory<storage>>> {
  using Base = QuantizedCodec<NoMemory, ErrorSender<Memory<storage>>>;

 public:
  ErrorFeedbackCodec(const CodecSettings& settings, const CodecShape& shape)
      : Base(shape, settings_hash(settings, shape, storage, 2),
             formats_of(settings, shape.channels)),
        record_bytes_(record_bytes_of<Memory<storage>>(shape)),
        bound_(shape, kMostError) {}

  RecordLayout record() const override { return {.sender_bytes = record_bytes_}; }
  std::size_t memory_bytes() const override { return Base::memory_bytes() + bound_.memory_bytes(); }

 private:
  /// Both formats look the same on the wire: the receiver need not know the sender's visits.
  int format_of(const Crossing& crossing, std::size_t b) const override {
    return crossing.visits[b] == 0 ? first_visit : later_visit;
  }

  std::size_t run_encode(const ExecSpace& exec, const RowArguments& arguments,
                         std::size_t max_bytes) override {
    RowArguments bounded = arguments;
    bounded.error_share = bound_.template shares<Memory<storage>>(exec, arguments, this->formats());
    return Base::run_encode(exec, bounded, max_bytes);
  }

  const std::size_t record_bytes_;
  ErrorBound bound_;
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
                 if (settings.error_feedback)
                   return codec::with_storage(storage, codec::MakeWithFeedback{settings, shape});
                 return std::make_unique<codec::QuantizeCodec>(settings, shape, storage);
               });
}

}  // namespace deltapipe
