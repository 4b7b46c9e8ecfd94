// SPDX-License-Identifier: BSD-3-Clause
#include "app/output/progress_display.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "comm/transport/launch.hpp"
#include "core/base/number_text.hpp"

namespace deltapipe {

namespace {

constexpr double kDrawSeconds = 0.1;
constexpr double kRateSeconds = 2;  // rates are means over at least this long
constexpr std::size_t kBarWidth = 24;

/// Read before main(): MPI_Init adds variables of a launcher to a process without one.
const Launch kLaunch = launch_of_environment();

bool wants_bar() {
  const char* const asked = std::getenv("DELTAPIPE_PROGRESS");
  if (asked != nullptr) return std::string(asked) == "bar";
  // Launchers give ranks terminals of their own, whatever the job's output is.
  if (kLaunch.size > 1 || std::getenv("SLURM_JOB_ID") != nullptr) return false;
  return isatty(STDOUT_FILENO) == 1;
}

/// Characters in a line of the terminal.
std::size_t terminal_width() {
  winsize size{};
  return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// A part of the line that tells of a step; of a narrow terminal's line the least important parts
/// are left out.
struct Part {
  std::string text;
  int importance;
};

std::string joined(std::vector<Part> parts, std::size_t most) {
  const auto less = [](const Part& a, const Part& b) { return a.importance < b.importance; };
  for (;;) {
    std::string text;
    for (const Part& part : parts) text += (text.empty() ? "" : "  ") + part.text;
    if (text.size() <= most || parts.size() == 1) return text.substr(0, most);
    parts.erase(std::min_element(parts.begin(), parts.end(), less));
  }
}

}  // namespace

std::string with_prefix(double value) {
  const char* const prefixes[] = {"", " k", " M", " G", " T"};
  int i = 0;
  while (std::abs(value) >= 1000 && i < 4) {
    value /= 1000;
    ++i;
  }
  return number_text(i == 0        ? "%.0f"
                     : value < 10  ? "%.2f"
                     : value < 100 ? "%.1f"
                                   : "%.0f",
                     value) +
         prefixes[i];
}

std::string bytes_text(std::uint64_t bytes) {
  return with_prefix(static_cast<double>(bytes)) + "B";
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<long>(std::max(0.0, seconds) + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

void RateMeter::add(double seconds, std::uint64_t tokens, std::uint64_t bytes) {
  const Mark& last = marks_.back();
  marks_.push_back({seconds, last.tokens + static_cast<double>(tokens),
                    last.bytes + static_cast<double>(bytes)});
  const double begin = std::min(asked_, seconds - window_);
  while (marks_.size() > 2 && marks_[1].seconds <= begin) marks_.pop_front();
}

RateMeter::Rate RateMeter::rate() {
  const Mark& first = marks_.front();
  const Mark& last = marks_.back();
  asked_ = last.seconds;
  const double seconds = last.seconds - first.seconds;
  if (seconds <= 0) return {};
  return {(last.tokens - first.tokens) / seconds, (last.bytes - first.bytes) / seconds};
}

ProgressDisplay::ProgressDisplay(std::uint64_t steps, std::uint64_t log_every, bool speak,
                                 std::uint64_t first_step, const char* targets)
    : speak_(speak),
      bar_(speak && wants_bar()),
      steps_(steps),
      first_step_(first_step),
      log_every_(std::max<std::uint64_t>(1, log_every)),
      start_(Clock::now()),
      meter_(kRateSeconds),
      targets_(targets) {}

void ProgressDisplay::step(const Progress& progress) {
  if (!speak_) return;
  meter_.add(progress.seconds, progress.tokens, progress.wire_bytes);
  const TimePoint now = Clock::now();
  const bool last = progress.step == steps_;
  if (bar_ ? !last && seconds_between(last_drawn_, now) < kDrawSeconds
           : !last && progress.step % log_every_ != 0 && progress.step != first_step_ + 1)
    return;
  last_drawn_ = now;
  const RateMeter::Rate rate = meter_.rate();
  const double done = static_cast<double>(progress.step) / static_cast<double>(steps_);
  const double left = seconds_between(start_, now) * static_cast<double>(steps_ - progress.step) /
                      static_cast<double>(progress.step - first_step_);
  const std::vector<Part> parts = {
      {fmt::format("step {}/{}", progress.step, steps_), 7},
      {fmt::format("epoch {:.2f}", progress.epoch), 2},
      {fmt::format("loss {}", number_text("%.4f", progress.loss)), 6},
      {fmt::format("lr {:.3g}", progress.learning_rate), 1},
      {fmt::format("{} {}/s", with_prefix(rate.tokens_per_second), targets_), 4},
      {with_prefix(rate.bytes_per_second) + (rate.bytes_per_second < 1000 ? " " : "") + "B/s", 3},
      {duration_text(left) + " left", 5}};
  if (bar_) {
    const std::size_t width = terminal_width() - 1;
    const std::size_t around = kBarWidth + 3;  // brackets and a space
    const bool has_room = width > around + 32;
    const std::string text = joined(parts, has_room ? width - around : width);
    std::string bar(kBarWidth, ' ');
    std::fill_n(bar.begin(), static_cast<std::size_t>(done * kBarWidth + 0.5), '=');
    std::printf("\r\033[K%s%s", has_room ? ("[" + bar + "] ").c_str() : "", text.c_str());
    bar_shown_ = true;
  } else {
    std::printf("%s\n", joined(parts, std::string::npos).c_str());
  }
  std::fflush(stdout);
}

void ProgressDisplay::line(const std::string& text) {
  if (!speak_) return;
  std::printf("%s%s\n", bar_shown_ ? "\r\033[K" : "", text.c_str());
  bar_shown_ = false;
  std::fflush(stdout);
}

void ProgressDisplay::finish() {
  if (speak_ && bar_shown_) std::printf("\n");
  bar_shown_ = false;
  if (speak_) std::fflush(stdout);
}

}  // namespace deltapipe
