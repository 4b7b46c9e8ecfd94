// SPDX-License-Identifier: BSD-3-Clause
#include "core/base/observe/interruption.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>

namespace deltapipe {

namespace {

std::atomic<int> first_signal{0}, last_signal{0};  // last_signal: the newest after the first
std::atomic<bool> orderly{false};
static_assert(std::atomic<int>::is_always_lock_free, "set in a signal handler");

struct Notice {
  std::array<char, 512> text;
  std::size_t size;
};
// A signal may arrive while the next notice is written.
std::array<Notice, 2> notices{};
std::atomic<std::size_t> notice{0};

void note(int signal) {
  int none = 0;
  if (!first_signal.compare_exchange_strong(none, signal)) {
    last_signal.store(signal);
  } else if (orderly.load()) {
    const int error = errno;
    const Notice& mine = notices[notice.load()];
    pollfd output{STDERR_FILENO, POLLOUT, 0};
    // A pipe that nobody reads must not block the process.
    if (::poll(&output, 1, 0) > 0) (void)!::write(STDERR_FILENO, mine.text.data(), mine.size);
    errno = error;
  }
}

}  // namespace

void note_interruptions() {
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  for (const int signal : kStopSignals) {
    struct sigaction former {};
    const bool is_nohup = signal == SIGHUP && sigaction(signal, nullptr, &former) == 0 &&
                          former.sa_handler == SIG_IGN;
    if (!is_nohup) sigaction(signal, &action, nullptr);
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

int ignore_interruptions() {
  for (const int signal : kStopSignals) std::signal(signal, SIG_IGN);
  return noted_signal();
}

int noted_signal() noexcept {
  const int later = last_signal.load();
  return later != 0 || orderly.load() ? later : first_signal.load();
}

OrderlyStop::OrderlyStop() {
  orderly.store(true);
}

OrderlyStop::~OrderlyStop() {
  orderly.store(false);
}

int OrderlyStop::signal() const noexcept {
  return first_signal.load();
}

void OrderlyStop::set_notice(const std::string& text) noexcept {
  const std::size_t next = 1 - notice.load();
  notices[next].size = std::min(text.size(), notices[next].text.size());
  std::copy_n(text.data(), notices[next].size, notices[next].text.data());
  notice.store(next);
}

std::string name_of_signal(int signal) {
  switch (signal) {
    case SIGTERM:
      return "SIGTERM";
    case SIGINT:
      return "SIGINT";
    case SIGUSR1:
      return "SIGUSR1";
    case SIGHUP:
      return "SIGHUP";
    case SIGUSR2:
      return "SIGUSR2";
    case SIGXCPU:
      return "SIGXCPU";
    default:
      return fmt::format("signal {}", signal);
  }
}

void throw_if_interrupted() {
  if (const int signal = noted_signal(); signal != 0) throw Interrupted(signal);
}

void outlive_readers() {
  std::signal(SIGPIPE, SIG_IGN);
}

}  // namespace deltapipe
