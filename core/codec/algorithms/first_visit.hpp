// SPDX-License-Identifier: BSD-3-Clause
// How codecs of changes send the first visits of a sample, and the second one that refines them.
#pragma once

#include "core/codec/rows/quantized_rows.hpp"

namespace deltapipe::codec {

/// A codec without memory that sends what codecs of changes send at first visits. Not for
/// FirstVisit::zero.
CodecSettings first_visit_settings(const CodecSettings& settings);
RowFormat first_visit_format(const CodecSettings& settings, int channels);

/// Format of changes at the second visit, for FirstVisit::refine.
RowFormat refined_format(const CodecSettings& settings, int channels);

/// Which visits refine the first one.
class Refinement {
 public:
  explicit Refinement(const CodecSettings& settings)
      : refines_(settings.first_visit == FirstVisit::refine),
        warmup_epochs_(settings.warmup_epochs) {}
  bool refines_now(const Crossing& crossing, std::size_t b) const {
    return crossing.visits[b] == 1 && refines_ && first_was_coarse(crossing);
  }

 private:
  bool first_was_coarse(const Crossing& crossing) const;

  bool refines_;
  double warmup_epochs_;
};

}  // namespace deltapipe::codec
