// SPDX-License-Identifier: BSD-3-Clause
// The codecs, one source file each. They all have the form
//
//   x_hat = base + Q(x - base);  keep(x_hat)
//
// with a base (zero or the sample's memory), a quantiser Q with a wire format, and the state that
// each end keeps of the sample. make_codec() checks settings and adds the warm-up and the moves of
// memories.
#pragma once

#include <memory>

#include "core/codec/codec.hpp"

namespace deltapipe::codec {

/// dense.cpp: values unchanged (fp32), in bf16, or in fp16 with a power of two per row.
std::unique_ptr<Codec> make_dense(const CodecSettings& settings, const CodecShape& shape);

/// directq.cpp: x_hat = Q(x).
std::unique_ptr<Codec> make_directq(const CodecSettings& settings, const CodecShape& shape);

/// error_feedback.cpp, EF: x_hat = Q(x + e), e := x + e - x_hat at the sender.
std::unique_ptr<Codec> make_error_feedback(const CodecSettings& settings, const CodecShape& shape,
                                           MemoryStorage storage);

/// aqsgd.cpp: x_hat = m + Q(x - m), m := x_hat at both ends.
std::unique_ptr<Codec> make_aqsgd(const CodecSettings& settings, const CodecShape& shape,
                                  MemoryStorage storage);

/// topk.cpp, Q selects the k largest values: TopK, and TopK with EF or EF-mixed.
std::unique_ptr<Codec> make_topk(const CodecSettings& settings, const CodecShape& shape,
                                 MemoryStorage storage);

/// aqsgd_topk.cpp: AQ-SGD whose Q is TopK.
std::unique_ptr<Codec> make_aqsgd_topk(const CodecSettings& settings, const CodecShape& shape,
                                       MemoryStorage storage);

/// ef21.cpp, EF21: g := g + Q(x - g) at both ends from g = 0, x_hat = g.
std::unique_ptr<Codec> make_ef21(const CodecSettings& settings, const CodecShape& shape,
                                 MemoryStorage storage);

/// warmup.cpp: `main` after settings.warmup_epochs epochs of fp32.
std::unique_ptr<Codec> make_warmup(const CodecSettings& settings, const CodecShape& shape,
                                   MemoryStorage storage, std::unique_ptr<Codec> main);

/// moved_memory.cpp: `main` with records that Crossing::views move over shape.grid.
std::unique_ptr<Codec> make_moved_memory(const CodecShape& shape, MemoryStorage storage,
                                         std::unique_ptr<Codec> main);

}  // namespace deltapipe::codec
