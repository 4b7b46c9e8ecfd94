// SPDX-License-Identifier: BSD-3-Clause
// Pipeline's texts that grow.
#include <algorithm>

#include "comm/pipeline/pipeline.hpp"
#include "core/base/error.hpp"

namespace deltapipe {

void Pipeline::begin_text(EvaluationMode mode) {
  text_.clear();
  text_mode_ = mode;
}

std::vector<float> Pipeline::continue_text(std::span<const std::int32_t> tokens,
                                           std::uint64_t call) {
  const std::size_t known = text_.size();
  DELTAPIPE_ASSERT(
      !tokens.empty() && known + tokens.size() <= static_cast<std::size_t>(shape_.tokens),
      std::to_string(known) + " + " + std::to_string(tokens.size()) + " tokens");
  text_.insert(text_.end(), tokens.begin(), tokens.end());
  const bool continues = continues_texts_[static_cast<std::size_t>(text_mode_)];
  const std::size_t first = continues ? known : 0;
  begin_evaluation_step(call, text_mode_);
  load_text(std::span<const std::int32_t>(text_).subspan(first));
  if (continues) kept_tokens_ = static_cast<int>(known);
  forward_only();
  if (!grid_.last()) return {};
  return logits_of_row(static_cast<int>(text_.size() - first) - 1);
}

/// One sample; a whole text is padded to T with a token that it has.
void Pipeline::load_text(std::span<const std::int32_t> tokens) {
  const int count = static_cast<int>(tokens.size());
  if (continues_texts_[static_cast<std::size_t>(text_mode_)]) step_tokens_ = count;
  std::copy(tokens.begin(), tokens.end(), inputs_.begin());
  std::fill(inputs_.begin() + count, inputs_.begin() + shape_.tokens, tokens.front());
  std::fill_n(target_host_.data(), shape_.tokens, -1);
  const std::uint64_t id = 0;
  add_micro_batch({&id, 1}, {&count, 1});
  finish_load(0);
}

std::vector<float> Pipeline::logits_of_row(int row) {
  const VectorRef<const float> logits = stage_.logits(exec(), 0, row);
  std::vector<float> values(logits.extent(0));
  Kokkos::deep_copy(exec(),
                    Kokkos::View<float*, Layout, Kokkos::HostSpace>(values.data(), values.size()),
                    logits);
  exec().fence();
  return values;
}

}  // namespace deltapipe
