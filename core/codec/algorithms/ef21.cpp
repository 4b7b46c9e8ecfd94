// SPDX-License-Identifier: BSD-3-Clause
// EF21 (Richtarik, Sokolov, Fatkhullin, arXiv 2106.05203; for boundaries arXiv 2401.07788): both
// ends keep g(s) and send the change against it,
//
//   g(s) := g(s) + Q(x - g(s))      x_hat = g(s)      g(s) = 0 at first
//
// That is AQ-SGD without a first visit of its own: the first change is counted from zeros. Memories
// of gradients leave the factor Crossing::scale out.
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
