// SPDX-License-Identifier: BSD-3-Clause
// One crossing of a boundary by a micro-batch: all that both ends know before a byte is sent.
// Boundaries, codecs and message headers read this description.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/base/row_grid.hpp"

namespace deltapipe {

/// Kind of values. The numbers are those on the wire.
enum class CrossingKind : std::uint8_t {
  activation = 1,
  gradient = 2,
  tied_rows = 3,       ///< token embeddings from the last stage to the first
  tied_gradients = 4,  ///< their gradients back
  // 5 and 6 cross no boundary (comm/transport/message.hpp).
  common_gradients = 7,  ///< sums of gradients of parameters that all stages use
  common_values = 8      ///< their new values back
};
enum class Direction : std::uint8_t { forward = 0, backward = 1 };

/// Values that evaluations and generation send: the activations themselves, in the precision of the
/// evaluation, or the output of the boundary's codec without memory.
enum class EvaluationMode : std::uint8_t { plain, codec };

const char* name_of(CrossingKind kind);
const char* name_of(Direction direction);
Direction direction_of(CrossingKind kind);

/// Vectors have one entry per sample: B entries, fewer in an incomplete micro-batch. For tied rows,
/// the samples are tokens of the vocabulary. Both ends of a boundary describe a crossing alike.
struct Crossing {
  CrossingKind kind = CrossingKind::activation;
  std::uint64_t seed = 0;         ///< the run's seed; keys stochastic rounding
  std::uint64_t step = 0;         ///< optimizer step
  double epoch = 0;               ///< epochs begun and done at this step; determines the warm-up
  std::uint32_t micro_batch = 0;  ///< tied rows: the first one that needs or completes them
  std::uint32_t boundary = 0;     ///< i: between stages i and i+1
  /// False for evaluation and generation, which leave the memories unchanged: their samples are not
  /// those of the training set, and their steps are counted separately.
  bool training = true;
  EvaluationMode evaluation = EvaluationMode::plain;  ///< used if not training
  /// Factor of all values, which differs from step to step: gradients are those of
  /// scale * (sum of losses). Records that outlive a step do not contain it. Positive and finite.
  double scale = 1;
  std::vector<std::uint64_t> sample_ids;
  /// Valid tokens, 0 ... T; the rows after them are padding. A sample has the same number at each
  /// of its crossings.
  std::vector<int> tokens;
  /// Number of earlier crossings of the sample; 0: first visit. An end of a boundary reads them
  /// from its records; zeros if it keeps none.
  std::vector<std::uint32_t> visits;
  /// Views of the samples' images at this crossing, for codecs whose records move with them
  /// (CodecShape::grid). Other codecs ignore them.
  std::vector<RowView> views;

  Direction direction() const { return direction_of(kind); }
  std::size_t samples() const { return sample_ids.size(); }
};

}  // namespace deltapipe
