// SPDX-License-Identifier: BSD-3-Clause
// A stage's part in the generation of texts.
#include <fmt/format.h>

#include <algorithm>

#include "comm/pipeline/pipeline_stage.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

void PipelineStage::begin_text(EvaluationMode mode) {
  text_.clear();
  text_mode_ = mode;
}

void PipelineStage::load_text_step(std::span<const std::int32_t> tokens, std::uint64_t call) {
  const std::size_t known = text_.size();
  DELTAPIPE_ASSERT(
      !tokens.empty() && known + tokens.size() <= static_cast<std::size_t>(shape_.tokens),
      fmt::format("{} + {} tokens", known, tokens.size()));
  text_.insert(text_.end(), tokens.begin(), tokens.end());
  const bool continues = continues_texts_[static_cast<std::size_t>(text_mode_)];
  begin_evaluation_step(call, text_mode_);
  load_text(std::span<const std::int32_t>(text_).subspan(continues ? known : 0));
  if (continues) kept_tokens_ = static_cast<int>(known);
}

/// Loads a text as one sample; a whole text is padded to T with one of its tokens.
void PipelineStage::load_text(std::span<const std::int32_t> tokens) {
  const int count = static_cast<int>(tokens.size());
  if (continues_texts_[static_cast<std::size_t>(text_mode_)]) step_tokens_ = count;
  const std::span<std::int32_t> inputs = samples_.integers(Field::tokens, 0, 1);
  const std::span<std::int32_t> targets = samples_.integers(Field::next_tokens, 0, 1);
  if (!inputs.empty()) {
    std::copy(tokens.begin(), tokens.end(), inputs.begin());
    std::fill(inputs.begin() + count, inputs.end(), tokens.front());
  }
  std::fill(targets.begin(), targets.end(), -1);
  const std::uint64_t id = 0;
  add_micro_batch({&id, 1}, {&count, 1});
  finish_load(0);
}

std::vector<float> PipelineStage::text_logits() {
  const int rows = static_cast<int>(text_.size()) - std::max(0, kept_tokens_);
  const VectorRef<const float> logits = stage_.logits(exec(), 0, rows - 1);
  std::vector<float> values(logits.extent(0));
  Kokkos::deep_copy(exec(),
                    Kokkos::View<float*, Layout, Kokkos::HostSpace>(values.data(), values.size()),
                    logits);
  exec().fence();
  return values;
}

}  // namespace deltapipe
