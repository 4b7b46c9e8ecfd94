// SPDX-License-Identifier: BSD-3-Clause
#include "core/codec/quantizer/step_controller.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "core/base/error.hpp"

namespace deltapipe {

namespace {

const double kLeastLogStep = std::log2(kLeastChosenStep);
constexpr double kGain = 0.7;
/// Messages over which debts are spread: near the end of a run, and if its length is unknown.
constexpr double kLeastHorizon = 4, kUsualHorizon = 64;
/// Largest change in octaves: a tiny error does not show which step is right.
constexpr double kMostOctaves = 2;

}  // namespace

StepController::StepController(const StepTarget& target, double first_step)
    : target_(target),
      largest_log_step_(std::log2(target.largest_step)),
      log_step_(std::clamp(std::log2(first_step), kLeastLogStep, largest_log_step_)) {
  DELTAPIPE_ASSERT(target.is_set() && !(target.bits > 0 && target.error > 0), "one target");
  DELTAPIPE_ASSERT(first_step > 0, "a step is positive");
}

double StepController::step() const {
  return std::clamp(std::exp2(log_step_), kLeastChosenStep, target_.largest_step);
}

double StepController::share_to_come(double debt, double of_a_message) const {
  double left = kUsualHorizon;
  if (target_.messages > 0)
    left = static_cast<double>(target_.messages) - static_cast<double>(messages_);
  return 1 - debt / (std::max(left, kLeastHorizon) * of_a_message);
}

double StepController::wanted_change(const SentMessage& message) const {
  if (target_.bits > 0) {
    const double allowed = target_.bits * totals_.values;
    const double share =
        share_to_come(totals_.bits - allowed, allowed / static_cast<double>(counted_));
    const double bits = 8.0 * static_cast<double>(message.bytes);
    return kGain * (bits / static_cast<double>(message.values) -
                    target_.bits * std::clamp(share, 0.5, 2.0));
  }
  if (!(message.error2 > 0 && message.signal2 > 0)) return 0;  // nothing changed: any step is right
  const double allowed = target_.error * target_.error * totals_.signal2;
  const double share = share_to_come(totals_.error2 - allowed, allowed / totals_.steered);
  const double square = target_.error * target_.error * std::clamp(share, 0.25, 4.0);
  const double octaves = 0.5 * std::log2(message.error2 / message.signal2 / square);
  return -kGain * std::clamp(octaves, -kMostOctaves, kMostOctaves);
}

void StepController::sent(const SentMessage& message) {
  ++messages_;
  if (message.values == 0) return;
  ++counted_;
  totals_.bits += 8.0 * static_cast<double>(message.bytes);
  totals_.values += static_cast<double>(message.values);
  if (message.steered_values < message.values) return;
  totals_.error2 += message.error2;
  totals_.signal2 += message.signal2;
  ++totals_.steered;
  const double wanted = log_step_ + wanted_change(message);
  if (log_step_ == kLeastLogStep && wanted <= kLeastLogStep) ++totals_.at_least;
  if (log_step_ == largest_log_step_ && wanted >= largest_log_step_) ++totals_.at_most;
  log_step_ = std::clamp(wanted, kLeastLogStep, largest_log_step_);
}

void StepController::write_state(StateWriter& writer) const {
  const std::array<double, 8> sums = {log_step_,        totals_.bits,    totals_.values,
                                      totals_.error2,   totals_.signal2, totals_.steered,
                                      totals_.at_least, totals_.at_most};
  const std::array<std::uint64_t, 3> counts = {messages_, counted_, target_.messages_per_step};
  write_array(writer, "step_sums", std::span<const double>(sums));
  write_array(writer, "step_messages", std::span<const std::uint64_t>(counts));
}

void StepController::read_state(StateReader& reader) {
  std::array<double, 8> sums{};
  std::array<std::uint64_t, 3> counts{};
  read_array(reader, "step_sums", std::span<double>(sums));
  read_array(reader, "step_messages", std::span<std::uint64_t>(counts));
  // A controller writes only steps within the range.
  if (!(sums[0] >= kLeastLogStep && sums[0] <= largest_log_step_))
    reader.refuse("step_sums", "has a step out of range", std::to_string(std::exp2(sums[0])));
  if (counts[2] == 0) reader.refuse("step_messages", "has steps without messages", "0");
  log_step_ = sums[0];
  const double share =
      static_cast<double>(target_.messages_per_step) / static_cast<double>(counts[2]);
  for (double& sum : std::span(sums).subspan(1)) sum *= share;
  const auto shared = [share](std::uint64_t count) {
    return static_cast<std::uint64_t>(std::llround(static_cast<double>(count) * share));
  };
  totals_ = {sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]};
  messages_ = shared(counts[0]);
  counted_ = shared(counts[1]);
}

}  // namespace deltapipe
