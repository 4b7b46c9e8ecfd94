// SPDX-License-Identifier: BSD-3-Clause
// Chooses the step of a sender's codes (CodecSettings::rms_step) for each message, so that the run
// holds a number of bits or an error. Steps are a function of earlier messages, so that a run sends
// the same bytes on every layout and after a restart.
#pragma once

#include <cstdint>

#include "core/base/state/state.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Range of chosen steps. Below it, codes need more than six bits.
inline constexpr double kLeastChosenStep = 0.05;
inline constexpr double kLargestChosenStep = kLargestRmsStep;  ///< unless StepTarget limits it

/// Target that steps hold: bits, an error, or neither.
struct StepTarget {
  /// Mean bits per value on the wire over all messages except those of a warm-up, headers and
  /// scales included; 0: any.
  double bits = 0;
  double error = 0;            ///< relative RMS error of what the receiver sees; 0: any
  std::uint64_t messages = 0;  ///< approximate number in the whole run; 0: unknown
  double largest_step = kLargestChosenStep;  ///< largest step that may be chosen
  std::uint64_t messages_per_step = 1;       ///< messages per optimizer step

  bool is_set() const { return bits > 0 || error > 0; }
  bool operator==(const StepTarget&) const = default;
};

/// Size and error of a message that was sent.
struct SentMessage {
  std::uint64_t bytes = 0;   ///< on the wire
  std::uint64_t values = 0;  ///< number of values; 0: part of a warm-up
  /// Number of values in codes with the controller's step.
  std::uint64_t steered_values = 0;
  double error2 = 0;   ///< sum (x - x_hat)^2
  double signal2 = 0;  ///< sum x^2
};

/// Sums over messages, and the numbers of messages at an end of the range of steps that required a
/// step beyond it.
struct StepTotals {
  double bits = 0, values = 0;       ///< all messages that count
  double error2 = 0, signal2 = 0;    ///< messages whose steps were chosen
  double steered = 0;                ///< number of messages whose steps were chosen
  double at_least = 0, at_most = 0;  ///< number of these at the least and the largest step
};

/// With u = log2(step), after each message whose values are all in chosen steps
///
///   bits    u += 0.7 (b - t'),      b: its bits per value
///   error   u -= 0.7 log2(e / t'),  e: its relative RMS error; the logarithm within -2 and 2
///
/// t' is the target less the excess of the messages so far, spread over those to come.
/// docs/codecs.md explains the rule and shows that it converges.
class StepController {
 public:
  /// `first_step`, limited to the range, is the step of the first message.
  StepController(const StepTarget& target, double first_step);

  const StepTarget& target() const { return target_; }
  /// Returns the step of the next message.
  double step() const;
  /// Records a message. Must be called in the order of sending.
  void sent(const SentMessage& message);
  const StepTotals& totals() const { return totals_; }

  void write_state(StateWriter& writer) const;
  /// Reads the state, also that of a run with another number of messages per step and the same
  /// number of values in all of a step's messages, over all replicas. Sums become this sender's
  /// share.
  void read_state(StateReader& reader);

 private:
  /// Returns t' as a share of the target's bits or of its squared error. `debt` is the excess over
  /// the target so far, `of_a_message` the amount that the target allows per message.
  double share_to_come(double debt, double of_a_message) const;
  /// Returns the octaves by which the step should change.
  double wanted_change(const SentMessage& message) const;

  StepTarget target_;
  double largest_log_step_;
  double log_step_;
  std::uint64_t messages_ = 0;  ///< messages so far, warm-up included
  std::uint64_t counted_ = 0;   ///< messages so far, without warm-up
  StepTotals totals_;
};

}  // namespace deltapipe
