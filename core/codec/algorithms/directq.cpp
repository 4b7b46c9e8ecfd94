// SPDX-License-Identifier: BSD-3-Clause
// DirectQ: the values themselves as b-bit codes, x_hat = Q(x). Neither end keeps anything of a
// sample.
//
// NaN is sent as 0 and an infinity as the largest code. Neither counts in scales.
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/rows/quantized_rows.hpp"

namespace deltapipe::codec {

namespace {

class DirectQCodec final : public QuantizedCodec<NoMemory> {
 public:
  DirectQCodec(const CodecSettings& settings, const CodecShape& shape)
      : QuantizedCodec(shape, settings_hash(settings, shape, MemoryStorage::fp32, 2),
                       RowFormats::all(code_format(settings, shape.channels))) {}

 private:
  int format_of(const Crossing&, std::size_t) const override { return kLaterVisit; }
};

}  // namespace

std::unique_ptr<Codec> make_directq(const CodecSettings& settings, const CodecShape& shape) {
  return std::make_unique<DirectQCodec>(settings, shape);
}

}  // namespace deltapipe::codec
