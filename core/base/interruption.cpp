// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/interruption.hpp"

#include <atomic>
#include <csignal>

namespace deltapipe {

namespace {

std::atomic<int> first{0}, last{0};  // last: of those after the first
std::atomic<bool> orderly{false};
static_assert(std::atomic<int>::is_always_lock_free, "set in a signal handler");

void note(int signal) {
  int none = 0;
  if (!first.compare_exchange_strong(none, signal)) last.store(signal);
}

}  // namespace

void note_interruptions() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  std::signal(SIGXFSZ, SIG_IGN);
}

int ignore_interruptions() {
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) std::signal(signal, SIG_IGN);
  return noted_signal();
}

int noted_signal() noexcept {
  const int later = last.load();
  return later != 0 || orderly.load() ? later : first.load();
}

OrderlyStop::OrderlyStop() {
  orderly.store(true);
}

OrderlyStop::~OrderlyStop() {
  orderly.store(false);
}

int OrderlyStop::signal() const noexcept {
  return first.load();
}

std::string name_of_signal(int signal) {
  if (signal == SIGINT) return "SIGINT";
  if (signal == SIGTERM) return "SIGTERM";
  if (signal == SIGUSR1) return "SIGUSR1";
  return "signal " + std::to_string(signal);
}

void outlive_readers() {
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace deltapipe
