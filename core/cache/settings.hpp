// SPDX-License-Identifier: BSD-3-Clause
// Where the memories m(s) of delta codecs and the errors of quantize with error feedback live.
#pragma once

#include <cstdint>
#include <string>

#include "core/codec/settings.hpp"

namespace deltapipe {

struct CacheSettings {
  MemoryStorage storage = MemoryStorage::fp16;
  std::uint64_t budget_bytes = 0;  ///< per rank and boundary end; 0: all in memory, nothing spills
  std::string directory;           ///< for spill files; empty: the output directory
  int prefetch = 8;                ///< micro-batches read ahead
  bool keep = false;               ///< spill files stay after the run
  /// A sample's memory at both ends is compared at every so many of its visits; 0: never.
  std::uint64_t verify_every = 64;

  bool operator==(const CacheSettings&) const = default;
};

}  // namespace deltapipe
