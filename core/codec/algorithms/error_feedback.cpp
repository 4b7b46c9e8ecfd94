// SPDX-License-Identifier: BSD-3-Clause
// Error feedback (EF) around quantised values (arXiv 1901.09847; at boundaries arXiv 2401.07788):
// the sender keeps what rounding left out of each sample s and adds it to the sample's next values,
//
//   x_hat = Q(x + a e(s))      e(s) := x + a e(s) - x_hat      e(s) = 0 at first
//
// a <= 1 bounds the errors (ErrorBound). The receiver sees x_hat and keeps nothing. Values that are
// not finite leave no error. EF around TopK is in topk_codec.hpp.
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/algorithms/error_bound.hpp"
#include "core/codec/rows/quantized_rows.hpp"

namespace deltapipe::codec {

namespace {

RowFormats error_formats(const CodecSettings& settings, int channels) {
  RowFormats formats = RowFormats::all(code_format(settings, channels));
  formats.format[kLaterVisit].uses_memory = true;
  return formats;
}

/// Largest ratio of the errors' norm to that of the values: about twice what the coarsest steps
/// leave out.
constexpr double kMostError = 2;

/// The record is the error e(s), in units of the step's scale. M is the type of its rows.
template <class M>
struct ErrorSender {
  using Record = M;
  static std::size_t scratch_bytes(int channels) { return sum_bytes(channels) + 64; }
  /// Returns no limit: errors are smaller than the values.
  KOKKOS_INLINE_FUNCTION static float largest_kept(float) { return kMaxFloat; }

  /// Sets work to -e, so that x - work is quantised.
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
    const float* error = sum;
    if (format.uses_memory)
      error = values_of<M>(team, record, sum, buffers.codes);
    else
      NoMemory::load(team, record, sum, buffers.codes);
    row_for_synced(team, n, [=](int c) { sum[c] = error[c] * scale + x[c]; });
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
    return sizeof(float) * round_up(channels, 16);
  }
};

template <MemoryStorage storage>
class ErrorFeedbackCodec final : public QuantizedCodec<NoMemory, ErrorSender<Memory<storage>>> {
  using Base = QuantizedCodec<NoMemory, ErrorSender<Memory<storage>>>;

 public:
  ErrorFeedbackCodec(const CodecSettings& settings, const CodecShape& shape)
      : Base(shape, settings_hash(settings, shape, storage, 2),
             error_formats(settings, shape.channels)),
        record_bytes_(record_bytes_of<Memory<storage>>(shape)),
        bound_(shape, kMostError) {}

  RecordLayout record() const override { return {.sender_bytes = record_bytes_}; }
  std::size_t memory_bytes() const override { return Base::memory_bytes() + bound_.memory_bytes(); }

 private:
  /// The formats are the same on the wire: the receiver need not know the sender's visits.
  int format_of(const Crossing& crossing, std::size_t b) const override {
    return crossing.visits[b] == 0 ? kFirstVisit : kLaterVisit;
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

}  // namespace

std::unique_ptr<Codec> make_error_feedback(const CodecSettings& settings, const CodecShape& shape,
                                           MemoryStorage storage) {
  return with_storage(storage, [&]<MemoryStorage stored>() -> std::unique_ptr<Codec> {
    return std::make_unique<ErrorFeedbackCodec<stored>>(settings, shape);
  });
}

}  // namespace deltapipe::codec
