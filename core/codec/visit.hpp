// What both ends of a boundary know about one crossing before a byte is sent.
#pragma once

#include <cstdint>
#include <vector>

#include "core/views.hpp"

namespace deltapipe {

/// One crossing of a boundary by a micro-batch. Vectors have one entry a sample: B entries, fewer
/// in an incomplete micro-batch. Both ends of a boundary must hold equal Visits.
struct Visit {
  std::uint64_t seed = 0;      ///< of the run; keys stochastic rounding
  std::uint64_t step = 0;      ///< optimizer step
  double epoch = 0;            ///< epochs begun and done at this step; decides on warm-up
  std::uint32_t boundary = 0;  ///< i: between stages i and i+1
  bool backward = false;       ///< gradients, from stage i+1 to i
  std::vector<std::uint64_t> sample_ids;
  std::vector<int> tokens;  ///< valid tokens, 0 ... T; the rows after them are padding. A sample
                            ///< has the same number at each of its visits.
  /// Crossings of the sample before this one; 0: first visit. Codecs without memory ignore it.
  std::vector<std::uint32_t> visits;
};

/// Memories m(s) of a visit's samples: the record of its b-th sample is the
/// Codec::record_bytes() bytes from pool(offset_B[b]) on. Offsets are multiples of
/// kRecordAlignment; records do not overlap. A first visit reads nothing of them.
struct MemoryRecords {
  DeviceBytes pool;
  std::vector<std::uint64_t> offset_B;
};

inline constexpr std::size_t kRecordAlignment = 64;

}  // namespace deltapipe
