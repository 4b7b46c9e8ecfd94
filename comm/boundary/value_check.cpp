// SPDX-License-Identifier: BSD-3-Clause
#include "comm/boundary/value_check.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>

#include "core/base/error.hpp"
#include "core/base/number_text.hpp"
#include "core/base/numeric/number_formats.hpp"

namespace deltapipe {

namespace {

/// Location of a value: sample and token of the crossing, and channel.
struct Place {
  std::size_t sample = 0, token = 0, channel = 0;
  float value = 0;
};

float magnitude(float value) {
  return std::isnan(value) ? std::numeric_limits<float>::infinity() : std::abs(value);
}

Place find(const Crossing& crossing, const MatrixRef<float>& x_BTC, int tokens) {
  const auto x = Kokkos::create_mirror_view_and_copy(Kokkos::HostSpace(), x_BTC);
  Place place;
  for (std::size_t b = 0; b < crossing.samples(); ++b)
    for (std::size_t t = 0; t < static_cast<std::size_t>(crossing.tokens[b]); ++t)
      for (std::size_t c = 0; c < x.extent(1); ++c) {
        const float value = x(b * static_cast<std::size_t>(tokens) + t, c);
        if (magnitude(value) > magnitude(place.value)) place = {b, t, c, value};
      }
  return place;
}

std::string sender_of(const Crossing& crossing) {
  switch (crossing.kind) {
    case CrossingKind::gradient:
      return fmt::format("stage {} sends gradients", crossing.boundary + 1);
    case CrossingKind::tied_rows:
      return fmt::format("stage {} sends rows of the token embedding", crossing.boundary);
    case CrossingKind::tied_gradients:
      return "stage 0 sends gradients of rows of the token embedding";
    case CrossingKind::common_gradients:
      return fmt::format("stage {} sends gradients of common parameters", crossing.boundary + 1);
    case CrossingKind::common_values:
      return fmt::format("stage {} sends common parameters", crossing.boundary);
    default:
      return fmt::format("stage {} sends activations", crossing.boundary);
  }
}

std::string place_name(const Place& place, const Crossing& crossing) {
  if (crossing.kind == CrossingKind::common_gradients ||
      crossing.kind == CrossingKind::common_values)
    return fmt::format("row {}, channel {}", place.token, place.channel);
  const std::uint64_t id = crossing.sample_ids[place.sample];
  const bool is_row =
      crossing.kind == CrossingKind::tied_rows || crossing.kind == CrossingKind::tied_gradients;
  if (is_row) return fmt::format("token {}, channel {}", id, place.channel);
  return fmt::format("sample {}, token {}, channel {}", id, place.token, place.channel);
}

}  // namespace

void refuse_values(const Crossing& crossing, const MatrixRef<float>& x_BTC, int tokens,
                   bool keeps_halves) {
  const Place place = find(crossing, x_BTC, tokens);
  const bool is_finite = std::isfinite(place.value);
  const bool fits = magnitude(place.value) < 0x1p100F;
  Mistake mistake;
  mistake.what = fmt::format("{} that are {} over boundary {} {}, {} {}, micro-batch {}: {}",
                             sender_of(crossing),
                             !is_finite             ? "no longer finite"
                             : keeps_halves && fits ? "too large for fp16 memories"
                                                    : "too large to cross",
                             crossing.boundary, deltapipe::name_of(crossing.direction()),
                             crossing.training ? "step" : "step of the evaluation or generation",
                             crossing.step + 1, crossing.micro_batch, place_name(place, crossing));
  mistake.value = number_text("%g", place.value);
  if (is_finite && keeps_halves && fits) {
    mistake.remedy = "set cache.storage = \"bf16\" or \"fp32\", whose range is fp32's";
    mistake.keys = {"cache.storage"};
  } else if (crossing.training) {
    mistake.remedy =
        "lower training.optimizer.learning_rate (a run with checkpoints resumes with "
        "checkpoint.change_optimizer = true), add warm-up steps, or use more bits at the "
        "boundaries";
  } else {
    mistake.remedy =
        "the model has diverged: use weights from before that, or train with a lower learning rate";
  }
  throw UserError(mistake);
}

}  // namespace deltapipe
