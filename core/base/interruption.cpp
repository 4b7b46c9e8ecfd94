// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/interruption.hpp"

#include <atomic>
#include <csignal>

namespace deltapipe {

namespace {

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "set in a signal handler");

void note(int signal) {
  noted.store(signal);
}

}  // namespace

void note_interruptions() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
}

int noted_signal() noexcept {
  return noted.load();
}

std::string name_of_signal(int signal) {
  if (signal == SIGINT) return "SIGINT";
  if (signal == SIGTERM) return "SIGTERM";
  return "signal " + std::to_string(signal);
}

void outlive_readers() {
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace deltapipe
