// SPDX-License-Identifier: BSD-3-Clause
// The first visit of a sample, when neither end has a memory of it (AQ-SGD, arXiv 2206.01299).
#pragma once

#include "core/codec/rows/row_format.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe::codec {

/// Returns the settings of a codec without memory that sends every sample as codecs of changes send
/// a first visit: fp32, or codes of 8 bits or in steps of the RMS with a scale per tile. Codes are
/// rounded to nearest, because no error averages out before the next visit. Not for
/// FirstVisit::zero.
CodecSettings first_visit_settings(const CodecSettings& settings);
RowFormat first_visit_format(const CodecSettings& settings, int channels);

}  // namespace deltapipe::codec
