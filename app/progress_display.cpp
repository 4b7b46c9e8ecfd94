#include "app/progress_display.hpp"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace deltapipe {

namespace {

constexpr double kDrawSeconds = 0.1;
constexpr double kRateSeconds = 2;  // rates are means over at least this long
constexpr int kBarWidth = 24;

bool wants_bar() {
  const char* const asked = std::getenv("DELTAPIPE_PROGRESS");
  if (asked != nullptr) return std::string(asked) == "bar";
  // Launchers give ranks terminals of their own, whatever the job's output is.
  for (const char* launched : {"SLURM_JOB_ID", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"})
    if (std::getenv(launched) != nullptr) return false;
  return isatty(STDOUT_FILENO) == 1;
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

}  // namespace

std::string with_prefix(double value) {
  const char* const prefixes[] = {"", " k", " M", " G", " T"};
  int i = 0;
  while (std::abs(value) >= 1000 && i < 4) {
    value /= 1000;
    ++i;
  }
  return formatted(i == 0        ? "%.0f"
                   : value < 10  ? "%.2f"
                   : value < 100 ? "%.1f"
                                 : "%.0f",
                   value) +
         prefixes[i];
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<long>(std::max(0.0, seconds) + 0.5);
  char text[64];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  else
    std::snprintf(text, sizeof text, "%ld:%02ld", whole / 60, whole % 60);
  return text;
}

ProgressDisplay::ProgressDisplay(std::uint64_t steps, std::uint64_t log_every, bool speak)
    : speak_(speak),
      bar_(speak && wants_bar()),
      steps_(steps),
      log_every_(std::max<std::uint64_t>(1, log_every)),
      start_(Clock::now()),
      window_start_(start_) {}

void ProgressDisplay::step(const Progress& progress) {
  if (!speak_) return;
  tokens_ += progress.tokens;
  bytes_ += progress.wire_bytes;
  const TimePoint now = Clock::now();
  const double window = seconds_between(window_start_, now);
  if (window >= kRateSeconds || tokens_per_second_ == 0) {
    tokens_per_second_ = static_cast<double>(tokens_) / window;
    bytes_per_second_ = static_cast<double>(bytes_) / window;
    window_start_ = now;
    tokens_ = bytes_ = 0;
  }
  const bool last = progress.step == steps_;
  if (bar_ ? !last && seconds_between(last_drawn_, now) < kDrawSeconds
           : !last && progress.step % log_every_ != 0 && progress.step != 1)
    return;
  last_drawn_ = now;
  const double done = static_cast<double>(progress.step) / static_cast<double>(steps_);
  const double left = seconds_between(start_, now) * (1 - done) / done;
  char text[256];
  std::snprintf(text, sizeof text,
                "step %llu/%llu  epoch %.2f  loss %.4f  lr %.3g  %s tokens/s  %sB/s  %s left",
                static_cast<unsigned long long>(progress.step),
                static_cast<unsigned long long>(steps_), progress.epoch, progress.loss,
                progress.learning_rate, with_prefix(tokens_per_second_).c_str(),
                (with_prefix(bytes_per_second_) + (bytes_per_second_ < 1000 ? " " : "")).c_str(),
                duration_text(left).c_str());
  if (bar_) {
    const int filled = static_cast<int>(done * kBarWidth + 0.5);
    std::string bar(kBarWidth, ' ');
    std::fill_n(bar.begin(), filled, '=');
    std::printf("\r\033[K[%s] %s", bar.c_str(), text);
    bar_shown_ = true;
  } else {
    std::printf("%s\n", text);
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
