// AQ-SGD (arXiv 2206.01299): first visit m(s) := a(s), later m(s) += Q(a(s) - m(s)); the receiver
// sees m(s) as it is stored.
//
// First visits in codes have a scale per tile of channels and are rounded to nearest: no error
// averages out before the sample's next visit. NaN is sent as no change (a first visit: 0),
// infinities as the largest code or number; neither counts into scales.
#include <algorithm>

#include "core/codec/quantized_rows.hpp"

namespace deltapipe {
namespace codec {
namespace {

/// FirstVisit::refine: bits of the first visit and least bits of the second, which sends what the
/// first left out along with the change.
constexpr int kCoarseBits = 4;
constexpr int kRefineBits = 4;

enum Format { first_visit, second_visit, later_visit };

RowFormat first_format(const CodecSettings& settings, int channels) {
  if (settings.first_visit == FirstVisit::fp32) return dense_format(RowKind::fp32);
  if (settings.first_visit == FirstVisit::fp16) return dense_format(RowKind::fp16);
  CodecSettings direct = settings;
  direct.rounding = Rounding::nearest;
  direct.levels = Levels::symmetric;
  const int bits = settings.first_visit == FirstVisit::quantize8 ? 8 : kCoarseBits;
  return code_format(direct, ScaleKind::tile, bits, channels);
}

RowFormat second_format(const CodecSettings& settings, int channels) {
  if (settings.first_visit != FirstVisit::refine)
    return code_format(settings, settings.scale, settings.bits, channels);
  const int bits = std::max(settings.bits, kRefineBits);
  return code_format(settings, ScaleKind::tile, bits, channels);
}

RowFormats formats_of(const CodecSettings& settings, int channels) {
  RowFormats formats;
  formats.format[first_visit] = first_format(settings, channels);
  formats.format[second_visit] = second_format(settings, channels);
  formats.format[later_visit] = code_format(settings, settings.scale, settings.bits, channels);
  formats.format[second_visit].uses_memory = true;
  formats.format[later_visit].uses_memory = true;
  return formats;
}

template <MemoryStorage storage>
class DeltaCodec final : public QuantizedCodec<Memory<storage>> {
 public:
  DeltaCodec(const CodecSettings& settings, const CodecShape& shape)
      : QuantizedCodec<Memory<storage>>(shape, settings_hash(settings, shape, storage, 1),
                                        formats_of(settings, shape.channels)),
        refines_(settings.first_visit == FirstVisit::refine),
        record_bytes_(
            round_up(Memory<storage>::bytes(shape.tokens, shape.channels), kRecordAlignment)) {}

  std::size_t record_bytes() const override { return record_bytes_; }

 private:
  int format_of(const Visit& visit, std::size_t b) const override {
    if (visit.visits[b] == 0) return first_visit;
    return visit.visits[b] == 1 && refines_ ? second_visit : later_visit;
  }

  const bool refines_;
  const std::size_t record_bytes_;
};

struct MakeDelta {
  const CodecSettings& settings;
  const CodecShape& shape;

  template <MemoryStorage storage>
  std::unique_ptr<Codec> operator()() const {
    return std::make_unique<DeltaCodec<storage>>(settings, shape);
  }
};

}  // namespace
}  // namespace codec

void register_delta_codec(CodecRegistry& registry) {
  registry.add(CodecKind::delta,
               [](const CodecSettings& settings, const CodecShape& shape, MemoryStorage storage) {
                 return codec::with_storage(storage, codec::MakeDelta{settings, shape});
               });
}

}  // namespace deltapipe
