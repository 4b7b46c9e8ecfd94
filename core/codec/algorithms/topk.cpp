// SPDX-License-Identifier: BSD-3-Clause
// TopK: the k values of largest magnitude of each sample are sent with their positions, and the
// receiver sees zeros elsewhere. If C(x) denotes this,
//
//   TopK        x_hat = C(x)
//   with EF     x_hat = C(x + a e)     e := x + a e - x_hat at the sender, a from ErrorBound
//   EF-mixed    the same, with positions chosen by |x| and by |e| (ef_mixed.hpp)
//
// (arXiv 2401.07788). Gradients may be sent at the positions of their activations instead
// (ForwardMasks), whatever their magnitude. Errors of gradients do not contain the factor
// Crossing::scale. NaN and zeros are never chosen, and NaN at a given position is sent as 0. An
// infinity is chosen before all numbers, is sent as the largest number or code, counts in no scale
// and leaves no error.
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/algorithms/topk_codec.hpp"

namespace deltapipe::codec {

std::unique_ptr<Codec> make_topk(const CodecSettings& settings, const CodecShape& shape,
                                 MemoryStorage storage) {
  if (!has_feedback(settings))
    return std::make_unique<TopKCodec<NoMemory, Keeps::nothing>>(settings, shape, storage);
  return with_storage(storage, [&]<MemoryStorage stored>() -> std::unique_ptr<Codec> {
    return std::make_unique<TopKCodec<Memory<stored>, Keeps::errors>>(settings, shape, storage);
  });
}

}  // namespace deltapipe::codec
