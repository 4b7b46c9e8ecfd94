// SPDX-License-Identifier: BSD-3-Clause
// AQ-SGD (arXiv 2206.01299): at the first visit x := a(s) as it was sent, later x := m(s) +
// Q(a(s) - m(s)). The receiver sees x; both ends then store m(s) := x, whose rounding to the
// storage's precision is part of the next change.
//
// First visits in codes have a scale per tile of channels and are rounded to nearest: no error
// averages out before the sample's next visit. NaN is sent as no change (a first visit: 0),
// infinities as the largest code or number; neither counts into scales.
//
// EF21 with quantised values (arXiv 2401.07788) is the same from memories of zeros; memories of
// gradients leave the factor Crossing::scale out.
#include "core/codec/first_visit.hpp"

namespace deltapipe {
namespace codec {
namespace {

enum Format { first_visit, second_visit, later_visit };

RowFormats formats_of(const CodecSettings& settings, int channels) {
  RowFormats formats;
  for (RowFormat& format : formats.format)
    format = code_format(settings, settings.scale, settings.bits, channels);
  formats.format[second_visit].uses_memory = true;
  formats.format[later_visit].uses_memory = true;
  if (settings.first_visit != FirstVisit::zero)
    formats.format[first_visit] = first_visit_format(settings, channels);
  if (settings.first_visit == FirstVisit::refine)
    formats.format[second_visit] = refined_format(settings, channels);
  for (int f = 0; f < RowFormats::kCount; ++f) formats.format[f].table = f;
  return formats;
}

template <MemoryStorage storage>
class DeltaCodec final : public QuantizedCodec<Memory<storage>> {
 public:
  DeltaCodec(const CodecSettings& settings, const CodecShape& shape)
      : QuantizedCodec<Memory<storage>>(shape, settings_hash(settings, shape, storage, 2),
                                        formats_of(settings, shape.channels)),
        refinement_(settings),
        record_bytes_(record_bytes_of<Memory<storage>>(shape)) {}

  RecordLayout record() const override { return {.shared_bytes = record_bytes_}; }

 private:
  int format_of(const Crossing& crossing, std::size_t b) const override {
    if (crossing.visits[b] == 0) return first_visit;
    return refinement_.refines_now(crossing, b) ? second_visit : later_visit;
  }

  const Refinement refinement_;
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
