// SPDX-License-Identifier: BSD-3-Clause
// AQ-SGD with TopK as its quantiser (arXiv 2206.01299 with arXiv 2401.07788). If C(y) denotes the k
// values of y of largest magnitude, and zeros elsewhere,
//
//   first visit    x_hat = x in first_visit_format()      m(s) := x_hat
//   later visits   x_hat = m(s) + C(x - m(s))             m(s) := x_hat
//
// EF21 with TopK is the same with memories that begin as zeros, without a separate first visit
// (ef21.cpp). Memories of gradients do not contain the factor Crossing::scale.
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/algorithms/topk_codec.hpp"

namespace deltapipe::codec {

std::unique_ptr<Codec> make_aqsgd_topk(const CodecSettings& settings, const CodecShape& shape,
                                       MemoryStorage storage) {
  return with_storage(storage, [&]<MemoryStorage stored>() -> std::unique_ptr<Codec> {
    return std::make_unique<TopKCodec<Memory<stored>, Keeps::memory>>(settings, shape, storage);
  });
}

}  // namespace deltapipe::codec
