// SPDX-License-Identifier: BSD-3-Clause
// Micro-batches of texts.
#pragma once

#include <cstdint>

#include "core/stage/stage.hpp"

namespace deltapipe::test {

/// The values outlive the micro-batch.
inline MicroBatch text_batch(int samples, int tokens, const Vector<std::uint64_t>& ids,
                             const Vector<std::int32_t>& rows, const Vector<std::int32_t>& targets,
                             double loss_scale = 1) {
  MicroBatch batch;
  batch.samples = samples;
  batch.tokens = tokens;
  batch.sample_id_B = ids;
  batch.fields.set(Field::tokens, rows);
  batch.fields.set(Field::next_tokens, targets);
  batch.loss_scale = loss_scale;
  return batch;
}

}  // namespace deltapipe::test
