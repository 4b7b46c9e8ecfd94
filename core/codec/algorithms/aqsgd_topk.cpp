// SPDX-License-Identifier: BSD-3-Clause
// AQ-SGD whose quantiser is TopK (arXiv 2206.01299 with arXiv 2401.07788): with C(y) being the k
// values of y of largest magnitude, and zeros elsewhere,
//
//   first visit    x_hat = what first_visit_format() makes of x      m(s) := x_hat
//   later visits   x_hat = m(s) + C(x - m(s))                        m(s) := x_hat
//
// EF21 with TopK is the same from memories of zeros, without a first visit of its own (ef21.cpp).
// Memories of gradients leave the factor Crossing::scale out.
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
