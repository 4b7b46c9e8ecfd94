// SPDX-License-Identifier: BSD-3-Clause
// AQ-SGD (arXiv 2206.01299): both ends keep a memory m(s) of each sample s, and later visits send
// the change from it,
//
//   first visit    x_hat = x in first_visit_format()      m(s) := x_hat
//   later visits   x_hat = m(s) + Q(x - m(s))             m(s) := x_hat
//
// The receiver computes with x_hat in fp32. Memories are rounded to the storage's precision, and
// this rounding is part of the next change.
//
// NaN is sent as no change (as 0 at a first visit), an infinity as the largest code or number.
// Neither counts in scales.
#include <memory>

#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/algorithms/first_visit.hpp"
#include "core/codec/rows/quantized_rows.hpp"

namespace deltapipe::codec {

namespace {

RowFormats change_formats(const CodecSettings& settings, int channels) {
  RowFormats formats = RowFormats::all(code_format(settings, channels));
  const bool from_zeros = settings.first_visit == FirstVisit::zero;
  if (!from_zeros) formats.format[kFirstVisit] = first_visit_format(settings, channels);
  RowFormat& change = formats.format[kLaterVisit];
  change.uses_memory = true;
  // Rows of activations differ in size, and the next layer normalises them. Gradients are not
  // normalised.
  change.is_relative = !from_zeros;
  for (int f = 0; f < RowFormats::kCount; ++f) formats.format[f].table = f;
  return formats;
}

template <MemoryStorage storage>
class AqsgdCodec final : public QuantizedCodec<Memory<storage>> {
 public:
  AqsgdCodec(const CodecSettings& settings, const CodecShape& shape)
      : QuantizedCodec<Memory<storage>>(shape, settings_hash(settings, shape, storage, 2),
                                        change_formats(settings, shape.channels)),
        record_bytes_(record_bytes_of<Memory<storage>>(shape)) {}

  RecordLayout record() const override { return {.shared_bytes = record_bytes_}; }

 private:
  int format_of(const Crossing& crossing, std::size_t b) const override {
    return crossing.visits[b] == 0 ? kFirstVisit : kLaterVisit;
  }

  const std::size_t record_bytes_;
};

}  // namespace

std::unique_ptr<Codec> make_aqsgd(const CodecSettings& settings, const CodecShape& shape,
                                  MemoryStorage storage) {
  return with_storage(storage, [&]<MemoryStorage stored>() -> std::unique_ptr<Codec> {
    return std::make_unique<AqsgdCodec<stored>>(settings, shape);
  });
}

}  // namespace deltapipe::codec
