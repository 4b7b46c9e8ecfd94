// SPDX-License-Identifier: BSD-3-Clause
// Steps that hold bits or errors: with the codecs for which they are made, compared with theory,
// and with messages that respond to steps by a formula.
#include "core/codec/quantizer/step_controller.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>

#include "core/base/error.hpp"
#include "support/codec_pair.hpp"
#include "support/memory_state_reader.hpp"

using namespace deltapipe;
using namespace deltapipe::test;

namespace {

using Values = std::vector<float>;

constexpr int kTokens = 32, kChannels = 512;
constexpr double kValues = kTokens * kChannels;

Values drawn(const std::string& data, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::exponential_distribution<double> exponential(1);
  std::student_t_distribution<double> heavy(3);
  Values x(static_cast<std::size_t>(kValues));
  for (float& value : x) {
    const double magnitude = exponential(random);
    const double value_of = data == "gauss"     ? normal(random)
                            : data == "laplace" ? (random() % 2 == 0 ? magnitude : -magnitude)
                            : data == "heavy"   ? heavy(random)
                                                : 0.0;  // zeros
    value = static_cast<float>(value_of);
  }
  return x;
}

/// Messages of directq with chosen steps.
class Steered {
 public:
  explicit Steered(const StepTarget& target, double first_step = 1)
      : controller(target, first_step), ends_(settings(), {1, kTokens, kChannels}, kStorage) {
    ends_.sender->measure_errors(target.error > 0);
  }

  /// Sends a message. Returns its bits per value, or its error if that is held.
  double send(const std::string& data) {
    ends_.sender->set_rms_step(controller.step());
    ends_.cross(drawn(data, random_));
    SentMessage message;
    message.bytes = ends_.sent_bytes;
    message.values = static_cast<std::uint64_t>(kValues);
    message.steered_values = ends_.sender->values_in_rms_steps(ends_.visit);
    const CodecStatistics statistics = ends_.sender->take_statistics(ExecSpace());
    message.error2 = statistics.error2;
    message.signal2 = statistics.signal2;
    controller.sent(message);
    return controller.target().error > 0 ? relative_error(statistics)
                                         : 8.0 * static_cast<double>(ends_.sent_bytes) / kValues;
  }

  StepController controller;

 private:
  static constexpr MemoryStorage kStorage = MemoryStorage::fp32;
  static CodecSettings settings() {
    CodecSettings settings;
    settings.kind = CodecKind::directq;
    settings.rms_step = 1;
    settings.entropy_coding = true;
    return settings;
  }
  std::mt19937 random_{5};
  CodecPair ends_;
};

/// Returns the bits of a normally distributed value in steps of `step` standard deviations, rounded
/// to nearest.
double entropy_of_normal(double step) {
  const auto below = [](double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); };
  double bits = 0;
  for (int q = -200; q <= 200; ++q) {
    const double p = below((q + 0.5) * step) - below((q - 0.5) * step);
    if (p > 1e-300) bits -= p * std::log2(p);
  }
  return bits;
}

/// Returns a message of `bits` bits per value.
SentMessage message_of(double bits, bool steered = true) {
  SentMessage message;
  message.values = 1'000'000;
  message.bytes = static_cast<std::uint64_t>(bits * 1e6 / 8);
  message.steered_values = steered ? message.values : 0;
  return message;
}

double mean_bits(const StepController& controller) {
  return controller.totals().bits / controller.totals().values;
}

}  // namespace

TEST_CASE("a budget of bits is held after a few messages and over the run", "[codec][controller]") {
  const std::string data = GENERATE("gauss", "laplace", "heavy");
  const double bits = GENERATE(2.0, 2.6, 4.5);
  CAPTURE(data, bits);
  constexpr int kMessages = 60;
  Steered messages({.bits = bits, .messages = kMessages});
  for (int i = 0; i < kMessages; ++i) {
    const double now = messages.send(data);
    CAPTURE(i, now, messages.controller.step());
    if (i >= 5) CHECK(std::abs(now - bits) < 0.06 * bits);
  }
  CHECK(mean_bits(messages.controller) == Approx(bits).epsilon(0.005));
}

TEST_CASE("the step of a budget is the one that theory gives for normal values",
          "[codec][controller]") {
  const double bits = GENERATE(2.0, 3.0, 5.0);
  CAPTURE(bits);
  Steered messages({.bits = bits, .messages = 0});
  double step = 0;
  for (int i = 0; i < 40; ++i) {
    messages.send("gauss");
    if (i >= 20) step += messages.controller.step() / 20;
  }
  // Scales have 16 bits for tiles of 64; tables and ends of streams less than 2 %. Steps are
  // rounded up by 2^-9 on average.
  const double carried = entropy_of_normal(step * (1 + 0x1p-9));
  CHECK(carried + 16.0 / 64 < bits);
  CHECK(carried + 16.0 / 64 > bits * 0.98 - 0.02);
}

TEST_CASE("a budget is held again after data of another kind", "[codec][controller]") {
  Steered messages({.bits = 3, .messages = 200});
  const auto settle = [&](const std::string& data) {
    double now = 0;
    for (int i = 0; i < 6; ++i) now = messages.send(data);
    CAPTURE(data, now);
    CHECK(now == Approx(3).epsilon(0.06));
  };
  settle("gauss");
  settle("heavy");
  settle("gauss");
  settle("laplace");
  // Nothing to send: the least step, which costs nothing, and back.
  for (int i = 0; i < 50; ++i) messages.send("zeros");
  CHECK(messages.controller.step() == kLeastChosenStep);
  double now = 0;
  for (int i = 0; i < 7; ++i) now = messages.send("gauss");
  CHECK(now > 2.8);
  // Bits that zeros saved are available to the rest of the run, not to the next messages.
  CHECK(now < 5);
}

TEST_CASE("messages that fall by up to 2.5 bits per octave settle, and steeper ones do not",
          "[codec][controller]") {
  const double slope = GENERATE(0.3, 0.6, 0.9, 1.0, 1.5, 2.0, 2.5, 3.1);
  const bool knows_length = GENERATE(false, true);
  CAPTURE(slope, knows_length);
  const std::uint64_t length = knows_length ? 400 : 0;
  StepController controller({.bits = 3, .messages = length}, 1);
  double last = 0;
  for (int i = 0; i < 380; ++i) {
    last = 3 + slope * (0.4 - std::log2(controller.step()));
    controller.sent(message_of(last));
  }
  const bool settles = std::abs(last - 3) < 0.01;
  CHECK(settles == (slope <= 2.5));
  if (settles) CHECK(mean_bits(controller) == Approx(3).epsilon(1e-3));
}

TEST_CASE("all later messages pay alike for first visits", "[codec][controller]") {
  constexpr int kMessages = 400, kFirst = 80;
  StepController controller({.bits = 2.5, .messages = kMessages}, 1);
  double least = 9, most = 0;
  for (int i = 0; i < kMessages; ++i) {
    const bool first = i < kFirst;
    const double bits = first ? 4.2 : 2.35 - std::log2(controller.step());
    if (i > kFirst + 15) least = std::min(least, bits);
    if (i > kFirst + 15 && i < kMessages - 16) most = std::max(most, bits);
    controller.sent(message_of(bits, !first));
    if (first) CHECK(controller.step() == 1);  // a first visit says nothing about it
  }
  // (400 * 2.5 - 80 * 4.2) / 320
  CHECK(mean_bits(controller) == Approx(2.5).epsilon(1e-3));
  CHECK(least == Approx(2.075).epsilon(0.02));
  CHECK(most == Approx(2.075).epsilon(0.02));
  CHECK(controller.totals().steered == kMessages - kFirst);
}

TEST_CASE("a debt that cannot be paid does not empty the later messages", "[codec][controller]") {
  // First visits of 16 bits in a fifth of the run: later ones have half of the target.
  StepController controller({.bits = 4, .messages = 500}, 1);
  double last = 0;
  for (int i = 0; i < 500; ++i) {
    last = i < 100 ? 16 : 2.35 - std::log2(controller.step());
    controller.sent(message_of(last, i >= 100));
  }
  CHECK(last == Approx(2).epsilon(1e-3));
  CHECK(mean_bits(controller) == Approx(0.2 * 16 + 0.8 * 2).epsilon(0.01));
}

TEST_CASE("a step at the end of its range returns at once", "[codec][controller]") {
  const bool too_much = GENERATE(false, true);
  CAPTURE(too_much);
  StepController controller({.bits = 3, .messages = 0}, 1);
  // These bits do not depend on the step.
  for (int i = 0; i < 1000; ++i) controller.sent(message_of(too_much ? 7 : 0.5));
  CHECK(controller.step() == (too_much ? kLargestChosenStep : kLeastChosenStep));
  CHECK((too_much ? controller.totals().at_most : controller.totals().at_least) > 990);
  CHECK((too_much ? controller.totals().at_least : controller.totals().at_most) == 0);
  double now = 0;
  for (int i = 0; i < 12; ++i) {
    now = 3.4 - std::log2(controller.step());
    controller.sent(message_of(now));
  }
  // Within the bounds of what may be paid back: half and twice the target.
  CHECK(now > 1.4);
  CHECK(now < 6.1);
}

TEST_CASE("a warm-up is not part of a budget", "[codec][controller]") {
  StepController controller({.bits = 2, .messages = 100}, 0.7);
  SentMessage warmup = message_of(32);
  warmup.values = warmup.steered_values = 0;
  for (int i = 0; i < 10; ++i) controller.sent(warmup);
  CHECK(controller.step() == Approx(0.7));
  CHECK(controller.totals().values == 0);
}

TEST_CASE("an error is held, with the step that theory gives", "[codec][controller]") {
  const double error = GENERATE(0.03, 0.1, 0.3);
  CAPTURE(error);
  Steered messages({.error = error, .messages = 100'000});
  double now = 0;
  for (int i = 0; i < 8; ++i) now = messages.send("gauss");
  CHECK(now == Approx(error).epsilon(0.02));
  // Fine steps have an error of step / sqrt(12).
  if (error <= 0.1)
    CHECK(messages.controller.step() == Approx(error * std::sqrt(12.0)).epsilon(0.01));
  const double step = messages.controller.step();
  for (int i = 0; i < 50; ++i) messages.send("zeros");
  CHECK(messages.controller.step() == step);
  for (int i = 0; i < 3; ++i) now = messages.send("heavy");
  CHECK(now == Approx(error).epsilon(0.05));
}

TEST_CASE("an error is held by the mean square over the run", "[codec][controller]") {
  const double first_step = GENERATE(0.05, 0.4, 1.9);
  CAPTURE(first_step);
  StepController controller({.error = 0.1, .messages = 400}, first_step);
  SentMessage message;
  message.values = message.steered_values = 1000;
  for (int i = 0; i < 400; ++i) {
    message.signal2 = 7 + std::sin(i);
    const double error = controller.step() / std::sqrt(12.0) * (1 + 0.2 * std::cos(3.0 * i));
    message.error2 = error * error * message.signal2;
    controller.sent(message);
  }
  const StepTotals& totals = controller.totals();
  CHECK(std::sqrt(totals.error2 / totals.signal2) == Approx(0.1).epsilon(0.003));
}

TEST_CASE("an error out of reach leads to the least step and is counted", "[codec][controller]") {
  Steered messages({.error = 1e-4});
  for (int i = 0; i < 10; ++i) messages.send("gauss");
  CHECK(messages.controller.step() == kLeastChosenStep);
  CHECK(messages.controller.totals().at_least >= 5);
}

TEST_CASE("a controller continues from its state with the same bits", "[codec][controller]") {
  const StepTarget target{.bits = 2.2, .messages = 40};
  const auto bits = [](const StepController& c, int i) {
    return 2.35 - std::log2(c.step()) + 0.1 * std::sin(i);
  };
  StepController whole(target, 1.3), first(target, 1.3), second(target, 0.4);
  for (int i = 0; i < 17; ++i) {
    whole.sent(message_of(bits(whole, i), i > 4));
    first.sent(message_of(bits(first, i), i > 4));
  }
  const auto part = [](StepController& c) {
    return std::vector<StatePart>{{"sender", [&c](StateWriter& writer) { c.write_state(writer); },
                                   [&c](StateReader& reader) { c.read_state(reader); }}};
  };
  StateContent content = state_in_memory(part(first));
  MemoryStateReader reader(content);
  read_state(part(second), reader);
  for (int i = 17; i < 40; ++i) {
    whole.sent(message_of(bits(whole, i)));
    second.sent(message_of(bits(second, i)));
    CHECK(whole.step() == second.step());
  }
  CHECK(whole.totals().bits == second.totals().bits);
  CHECK(whole.totals().steered == second.totals().steered);
}

TEST_CASE("an account continues with another number of messages per step", "[codec][controller]") {
  // 100 steps of 4 messages; after 30 of them, of 2 or 8: on two replicas, or on half of one.
  const std::uint64_t per_step = GENERATE(2, 4, 8);
  CAPTURE(per_step);
  constexpr int kSteps = 100, kBefore = 30;
  const auto bits_of = [](const StepController& c) { return 2.35 - std::log2(c.step()); };
  StepController former({.bits = 2.5, .messages = 4 * kSteps, .messages_per_step = 4}, 1);
  for (int i = 0; i < 4 * kBefore; ++i) {
    const bool first = i < 20;
    former.sent(message_of(first ? 8 : bits_of(former), !first));
  }
  const StatePart from = {"target", [&](StateWriter& writer) { former.write_state(writer); }, {}};
  const StateContent content = state_in_memory({&from, 1});
  StepController controller(
      {.bits = 2.5, .messages = per_step * kSteps, .messages_per_step = per_step}, 1);
  const StatePart to = {"target", {}, [&](StateReader& reader) { controller.read_state(reader); }};
  MemoryStateReader reader(content);
  read_state({&to, 1}, reader);
  CHECK(controller.step() == former.step());
  CHECK(mean_bits(controller) == Approx(mean_bits(former)));
  CHECK(controller.totals().values == Approx(former.totals().values * per_step / 4.0));
  for (std::uint64_t i = 0; i < per_step * (kSteps - kBefore); ++i)
    controller.sent(message_of(bits_of(controller)));
  // The bits of first visits are paid for by the end, as on one layout.
  CHECK(mean_bits(controller) == Approx(2.5).epsilon(2e-3));
}

TEST_CASE("an error is held if squares of values leave the range of fp32", "[codec][controller]") {
  const double size = GENERATE(1.0, 1e18, 1e25, 1e36);
  CAPTURE(size);
  CodecSettings settings;
  settings.kind = CodecKind::directq;
  settings.rms_step = 1;
  settings.entropy_coding = true;
  CodecPair ends(settings, {1, kTokens, kChannels}, MemoryStorage::fp32);
  ends.sender->measure_errors(true);
  StepController controller({.error = 0.1, .messages = 100'000}, 1);
  std::mt19937 random(5);
  double now = 0;
  for (int i = 0; i < 8; ++i) {
    ends.sender->set_rms_step(controller.step());
    Values x = drawn("gauss", random);
    for (float& value : x) value *= static_cast<float>(size);
    ends.cross(x);
    const CodecStatistics sums = ends.sender->take_statistics(ExecSpace());
    now = relative_error(sums);
    controller.sent({.bytes = ends.sent_bytes,
                     .values = static_cast<std::uint64_t>(kValues),
                     .steered_values = static_cast<std::uint64_t>(kValues),
                     .error2 = sums.error2,
                     .signal2 = sums.signal2});
    REQUIRE(std::isfinite(controller.step()));
  }
  CHECK(now == Approx(0.1).epsilon(0.02));
}
