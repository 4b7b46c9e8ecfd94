// SPDX-License-Identifier: BSD-3-Clause
// Warnings about errors and rates that codecs do not hold.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "app/deck/settings.hpp"
#include "comm/pipeline/step_record.hpp"

namespace deltapipe {

/// After a run: targets of bits and errors that were missed, from the sum over all ranks of
/// Pipeline::step_totals().
std::vector<std::string> warnings_of_targets(const Settings& settings,
                                             std::span<const double> step_totals);

/// During a run: codecs whose relative error stays above kLargestError.
class ErrorWatch {
 public:
  /// Half of the signal's energy is then lost.
  static constexpr double kLargestError = 0.7;

  explicit ErrorWatch(const Settings& settings);
  /// Warnings of boundaries and directions that are above it in this step and were in the last one
  /// whose errors were measured; once for each.
  std::vector<std::string> look_at(const StepRecord& record);

 private:
  struct Seen {
    std::uint64_t large_since = 0;  ///< step; 0: the last error was not large
    bool is_said = false;
  };
  const Settings& settings_;
  std::vector<Seen> forward_, backward_;  ///< by boundary
};

}  // namespace deltapipe
