// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/codec.hpp"

#include <fmt/format.h>

#include <limits>
#include <string>

#include "core/base/error.hpp"
#include "core/codec/algorithms/algorithms.hpp"
#include "core/codec/settings_check.hpp"

namespace deltapipe {

namespace {

void require(bool in_range, const char* key, double value, const char* remedy) {
  if (!in_range)
    throw UserError({.what = fmt::format("a codec's {} is out of range", key),
                     .value = std::to_string(value),
                     .remedy = remedy});
}

void check(const CodecSettings& settings, const CodecShape& shape) {
  DELTAPIPE_ASSERT(shape.max_samples > 0 && shape.tokens > 0 && shape.channels > 0,
                   "a codec's shape has positive extents");
  DELTAPIPE_ASSERT(static_cast<std::int64_t>(shape.max_samples) * shape.tokens <=
                       std::numeric_limits<int>::max(),
                   "rows are counted in int");
  require(settings.bits >= 2 && settings.bits <= 8, "bits", settings.bits, "use 2 to 8");
  require(settings.tile >= 1, "tile", settings.tile, "use 1 or more channels");
  require(settings.rms_step == 0 ||
              (settings.rms_step >= kLeastRmsStep && settings.rms_step <= kLargestRmsStep),
          "step", settings.rms_step, "use 0, or 0.01 to 2.5");
  require(
      settings.first_visit_step >= kLeastRmsStep && settings.first_visit_step <= kLargestRmsStep,
      "first_visit_step", settings.first_visit_step, "use 0.01 to 2.5");
  require(settings.warmup_epochs >= 0, "warmup_epochs", settings.warmup_epochs, "use 0 or more");
  if (sends_positions(settings)) {
    require(settings.topk > 0 && settings.topk <= 1, "topk", settings.topk,
            "use a part above 0 and up to 1");
    const double values = static_cast<double>(shape.tokens) * shape.channels;
    require(values < 0x1p31, "number of values in a sample", values,
            "topk counts them in 31 bits: use shorter samples or another codec");
  }
  if (const auto mistake = contradiction_in(settings)) throw UserError(*mistake);
}

std::unique_ptr<Codec> make_without_warmup(const CodecSettings& settings, const CodecShape& shape,
                                           MemoryStorage storage) {
  const bool feedback = has_feedback(settings);
  if (feedback && settings.feedback_kind == FeedbackKind::ef21)
    return codec::make_ef21(settings, shape, storage);
  switch (settings.kind) {
    case CodecKind::none:
    case CodecKind::fp16:
    case CodecKind::bf16:
      return codec::make_dense(settings, shape);
    case CodecKind::directq:
      return feedback ? codec::make_error_feedback(settings, shape, storage)
                      : codec::make_directq(settings, shape);
    case CodecKind::aqsgd:
      return codec::make_aqsgd(settings, shape, storage);
    case CodecKind::topk:
      return codec::make_topk(settings, shape, storage);
    case CodecKind::aqsgd_topk:
      break;
  }
  return codec::make_aqsgd_topk(settings, shape, storage);
}

}  // namespace

std::unique_ptr<Codec> make_codec(const CodecSettings& settings, const CodecShape& shape,
                                  MemoryStorage storage) {
  check(settings, shape);
  // Errors of gradients are too small for fp16.
  if (has_feedback(settings) && storage == MemoryStorage::fp16) storage = MemoryStorage::bf16;
  auto made = make_without_warmup(settings, shape, storage);
  if (settings.warmup_epochs > 0 && settings.kind != CodecKind::none)
    made = codec::make_warmup(settings, shape, storage, std::move(made));
  if (shape.grid.has_places() && has_memory_of_samples(settings))
    made = codec::make_moved_memory(shape, storage, std::move(made));
  return made;
}

}  // namespace deltapipe
