// DirectQ: the values themselves as b-bit codes.
//
// NaN is sent as 0 and infinities as the largest code; neither counts into scales.
#include "core/codec/quantized_rows.hpp"

namespace deltapipe {
namespace codec {
namespace {

RowFormats formats_of(const CodecSettings& settings, int channels) {
  RowFormats formats;
  for (RowFormat& format : formats.format)
    format = code_format(settings, settings.scale, settings.bits, channels);
  return formats;
}

class QuantizeCodec final : public QuantizedCodec<NoMemory> {
 public:
  QuantizeCodec(const CodecSettings& settings, const CodecShape& shape, MemoryStorage storage)
      : QuantizedCodec(shape, settings_hash(settings, shape, storage, 2),
                       formats_of(settings, shape.channels)) {}

 private:
  int format_of(const Visit&, std::size_t) const override { return RowFormats::kCount - 1; }
};

}  // namespace
}  // namespace codec

void register_quantize_codec(CodecRegistry& registry) {
  registry.add(CodecKind::quantize,
               [](const CodecSettings& settings, const CodecShape& shape,
                  MemoryStorage storage) -> std::unique_ptr<Codec> {
                 return std::make_unique<codec::QuantizeCodec>(settings, shape, storage);
               });
}

}  // namespace deltapipe
