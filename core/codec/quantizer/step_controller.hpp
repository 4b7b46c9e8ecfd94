// SPDX-License-Identifier: BSD-3-Clause
// Chooses the steps of a sender's codes (CodecSettings::rms_step) message by message, so that the
// run holds a number of bits or an error. Steps are a function of the messages before, so that a
// run sends the same on every layout and after a restart.
#pragma once

#include <cstdint>

#include "core/base/state/state.hpp"
#include "core/codec/settings.hpp"

namespace deltapipe {

/// Range of steps that are chosen. Below it codes take more than six bits.
inline constexpr double kLeastChosenStep = 0.05;
inline constexpr double kLargestChosenStep = kLargestRmsStep;  ///< or StepTarget's

/// Target that steps hold: one of the two, or neither.
struct StepTarget {
  /// Mean bits per value on the wire over all messages but those of a warm-up, headers and scales
  /// included; 0: any.
  double bits = 0;
  double error = 0;            ///< relative RMS error of what the receiver sees; 0: any
  std::uint64_t messages = 0;  ///< of the whole run, about; 0: not known
  double largest_step = kLargestChosenStep;  ///< that may be chosen
  std::uint64_t messages_per_step = 1;       ///< optimizer steps

  bool is_set() const { return bits > 0 || error > 0; }
  bool operator==(const StepTarget&) const = default;
};

/// Size and error of a message that was sent.
struct SentMessage {
  std::uint64_t bytes = 0;   ///< on the wire
  std::uint64_t values = 0;  ///< that it carries; 0: it is part of a warm-up
  /// Of the values, those in codes whose step was the controller's.
  std::uint64_t steered_values = 0;
  double error2 = 0;   ///< sum (x - x_hat)^2
  double signal2 = 0;  ///< sum x^2
};

/// Sums over messages, and messages whose step was at an end of the range and wanted beyond it.
struct StepTotals {
  double bits = 0, values = 0;       ///< of all messages that count
  double error2 = 0, signal2 = 0;    ///< of those whose steps were chosen
  double steered = 0;                ///< messages whose steps were chosen
  double at_least = 0, at_most = 0;  ///< of these, at the least and the largest step
};

/// With u = log2(step), after each message whose values are all in chosen steps
///
///   bits    u += k (b - t'),      b: its bits per value
///   error   u -= k log2(e / t'),  e: its relative RMS error; the logarithm at most 2 octaves
///
/// with k = 0.7, between the ends of the range, where u waits. t' is the target less what the
/// messages so far took too much, spread over those to come: with D = sum (bits - target) in bits
/// per value of a message and H messages left, at least 4 (64 where the run's length is not known),
/// t' = target - D / H, of errors the same with their squares; between half and twice the target.
/// So a first visit that takes more bits than the target is paid for by all later ones alike.
/// Messages in other formats change D, of bits, and leave u.
///
/// Bits fall by a per octave of the step, 0 < a <= 1 for most data (1: fine steps); errors grow by
/// about one octave, a = 1 as well. u and D then follow a linear map with the characteristic
/// polynomial z^2 - (2 - a k (1 + 1 / H)) z + 1 - a k, whose roots are inside the unit circle
/// (Jury) for a k (1 + 1 / (2 H)) < 2, that is for a < 2.5, which no data come near.
class StepController {
 public:
  /// first_step: of the first message; the nearest in the range.
  StepController(const StepTarget& target, double first_step);

  const StepTarget& target() const { return target_; }
  /// For the next message.
  double step() const;
  /// Takes note of a message, in the order of sending.
  void sent(const SentMessage& message);
  const StepTotals& totals() const { return totals_; }

  void write_state(StateWriter& writer) const;
  /// Also that of a run with another number of messages per step and the same number of values in
  /// all of a step's messages, over all replicas: sums become this sender's share.
  void read_state(StateReader& reader);

 private:
  /// t', as a share of the target's bits or of its square error. debt: in excess of the target, of
  /// so many messages; of_a_message: what the target allows one.
  double share_to_come(double debt, double of_a_message) const;
  /// Octaves by which the step should change.
  double wanted_change(const SentMessage& message) const;

  StepTarget target_;
  double largest_log_step_;
  double log_step_;
  std::uint64_t messages_ = 0;  ///< so far, warm-up included
  std::uint64_t counted_ = 0;   ///< of them, without it
  StepTotals totals_;
};

}  // namespace deltapipe
