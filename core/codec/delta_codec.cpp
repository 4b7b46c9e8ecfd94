// SPDX-License-Identifier: BSD-3-Clause
// AQ-SGD (arXiv 2206.01299): at the first visit x := a(s) as it was sent, later x := m(s) +
// Q(a(s) - m(s)). The receiver sees x; both ends then store m(s) := x, whose rounding to the
// storage's precision is part of the next change.
//
// First visits in codes have a scale per tile of channels and are rounded to nearest: no error
// averages out before the sample's next visit. NaN is sent as no change (a first visit: 0),
// infinities as the largest code or number; neither counts into scales.
#include <algorithm>
#include <cmath>

#include "core/codec/quantized_rows.hpp"

namespace deltapipe {
namespace codec {
namespace {

/// FirstVisit::refine: least bits of the first two visits. The second sends what the first left out
/// along with the change.
constexpr int kRefineBits = 4;

enum Format { first_visit, second_visit, later_visit };

int refine_bits(const CodecSettings& settings) {
  return std::max(settings.bits, kRefineBits);
}

RowFormat first_format(const CodecSettings& settings, int channels) {
  if (settings.first_visit == FirstVisit::fp32) return dense_format(RowKind::fp32);
  if (settings.first_visit == FirstVisit::fp16) return dense_format(RowKind::fp16);
  CodecSettings direct = settings;
  if (direct.scale_rule == ScaleRule::rms) direct.scale_rule = ScaleRule::max;
  direct.rounding = Rounding::nearest;
  direct.levels = Levels::symmetric;
  const int bits = settings.first_visit == FirstVisit::quantize8 ? 8 : refine_bits(settings);
  return code_format(direct, ScaleKind::tile, bits, channels);
}

RowFormat second_format(const CodecSettings& settings, int channels) {
  if (settings.first_visit != FirstVisit::refine)
    return code_format(settings, settings.scale, settings.bits, channels);
  CodecSettings refined = settings;
  if (refined.scale_rule == ScaleRule::rms) refined.scale_rule = ScaleRule::max;
  return code_format(refined, ScaleKind::tile, refine_bits(settings), channels);
}

RowFormats formats_of(const CodecSettings& settings, int channels) {
  RowFormats formats;
  formats.format[first_visit] = first_format(settings, channels);
  formats.format[second_visit] = second_format(settings, channels);
  formats.format[later_visit] = code_format(settings, settings.scale, settings.bits, channels);
  for (int f = 0; f < RowFormats::kCount; ++f) formats.format[f].table = f;
  formats.format[second_visit].uses_memory = true;
  formats.format[later_visit].uses_memory = true;
  return formats;
}

template <MemoryStorage storage>
class DeltaCodec final : public QuantizedCodec<Memory<storage>> {
 public:
  DeltaCodec(const CodecSettings& settings, const CodecShape& shape)
      : QuantizedCodec<Memory<storage>>(shape, settings_hash(settings, shape, storage, 2),
                                        formats_of(settings, shape.channels)),
        refines_(settings.first_visit == FirstVisit::refine),
        warmup_epochs_(settings.warmup_epochs),
        record_bytes_(record_bytes_of<Memory<storage>>(shape)) {}

  RecordLayout record() const override { return {.shared_bytes = record_bytes_}; }

 private:
  int format_of(const Crossing& crossing, std::size_t b) const override {
    if (crossing.visits[b] == 0) return first_visit;
    return crossing.visits[b] == 1 && refines_ && first_was_coarse(crossing) ? second_visit
                                                                             : later_visit;
  }
  /// A sample's former visit was an epoch ago: a warm-up that lasted until then left nothing out.
  bool first_was_coarse(const Crossing& crossing) const {
    return warmup_epochs_ == 0 || std::floor(crossing.epoch) - 1 >= warmup_epochs_;
  }

  const bool refines_;
  const double warmup_epochs_;
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
