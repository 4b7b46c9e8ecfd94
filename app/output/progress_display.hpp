// SPDX-License-Identifier: BSD-3-Clause
// Progress of long work for people: a bar on a terminal, a line every N steps in a batch log.
#pragma once

#include <cstdint>
#include <deque>
#include <string>

#include "core/base/observe/trace.hpp"

namespace deltapipe {

/// Figures of a step that are shown.
struct Progress {
  std::uint64_t step = 0;  ///< done so far
  double epoch = 0;
  double loss = 0;
  double learning_rate = 0;
  std::uint64_t tokens = 0;      ///< of this step
  std::uint64_t wire_bytes = 0;  ///< of this step
  double seconds = 0;            ///< of training so far, without evaluations
};

/// Means over the steps since a rate was last asked for, or over the last `window` seconds if that
/// is longer.
class RateMeter {
 public:
  explicit RateMeter(double window) : window_(window), marks_{{}} {}
  void add(double seconds, std::uint64_t tokens, std::uint64_t bytes);
  struct Rate {
    double tokens_per_second = 0;
    double bytes_per_second = 0;
  };
  Rate rate();

 private:
  struct Mark {
    double seconds = 0, tokens = 0, bytes = 0;  ///< since the start
  };
  double window_;
  double asked_ = 0;
  std::deque<Mark> marks_;  ///< the first one is where the mean begins
};

/// Writes to standard output from one rank. Whether that ends in a terminal cannot be seen through
/// an MPI launcher, so the environment may say it: DELTAPIPE_PROGRESS=bar or lines.
class ProgressDisplay {
 public:
  /// `first_step`: steps that were done before. `targets`: Task::target_name().
  ProgressDisplay(std::uint64_t steps, std::uint64_t log_every, bool speak,
                  std::uint64_t first_step = 0, const char* targets = "tokens");
  void step(const Progress& progress);
  /// Prints a separate line above the bar.
  void line(const std::string& text);
  void finish();

 private:
  bool speak_;
  bool bar_;
  bool bar_shown_ = false;
  std::uint64_t steps_, first_step_;
  std::uint64_t log_every_;
  TimePoint start_;
  TimePoint last_drawn_{};
  RateMeter meter_;
  const char* targets_;
};

/// 1234567 -> "1.23 M"
std::string with_prefix(double value);
/// The same of bytes: "1.25 MB".
std::string bytes_text(std::uint64_t bytes);
/// 95 s -> "1:35"
std::string duration_text(double seconds);

}  // namespace deltapipe
