// SPDX-License-Identifier: BSD-3-Clause
// EF21 (Richtarik, Sokolov, Fatkhullin, arXiv 2106.05203; for boundaries arXiv 2401.07788): both
// ends keep g(s), and the sender sends the change from it,
//
//   g(s) := g(s) + Q(x - g(s))      x_hat = g(s)      g(s) = 0 at first
//
// This is AQ-SGD without a separate first visit: the first change is relative to zeros. Memories of
// gradients do not contain the factor Crossing::scale.
#include "core/codec/algorithms/algorithms.hpp"

namespace deltapipe::codec {

std::unique_ptr<Codec> make_ef21(const CodecSettings& settings, const CodecShape& shape,
                                 MemoryStorage storage) {
  CodecSettings from_zeros = settings;
  from_zeros.first_visit = FirstVisit::zero;
  return settings.kind == CodecKind::topk ? make_aqsgd_topk(from_zeros, shape, storage)
                                          : make_aqsgd(from_zeros, shape, storage);
}

}  // namespace deltapipe::codec
