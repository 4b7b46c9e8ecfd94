// SPDX-License-Identifier: BSD-3-Clause
#include "comm/transport/tcp_waits.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace deltapipe {

namespace {

#ifdef __linux__

constexpr int kRtoMaxMs = 44;  // TCP_RTO_MAX_MS, which is missing in headers before Linux 6.15
constexpr std::chrono::seconds kBound{5};
/// The kernel closes a connection after 15 lost retransmissions: after a quarter of an hour with
/// its own timeouts, after a minute with the bound. pipeline.timeout decides when a link is given
/// up.
constexpr std::chrono::milliseconds kPatience = std::chrono::hours(1);

/// Returns nothing if the descriptor is not a TCP socket, or the kernel does not know the option.
std::optional<int> option(int descriptor, int name) {
  int value = 0;
  socklen_t size = sizeof value;
  if (::getsockopt(descriptor, IPPROTO_TCP, name, &value, &size) != 0) return std::nullopt;
  return value;
}

bool set_option(int descriptor, int name, std::chrono::milliseconds time) {
  const int value = static_cast<int>(time.count());
  return ::setsockopt(descriptor, IPPROTO_TCP, name, &value, sizeof value) == 0;
}

/// Bounds the waits of a connection and keeps stricter settings. Returns false if the kernel cannot
/// bound the timeouts.
bool bound_waits(int descriptor) {
  const std::optional<int> longest = option(descriptor, kRtoMaxMs);
  const std::optional<int> patience = option(descriptor, TCP_USER_TIMEOUT);
  if (!longest || !patience) return false;
  if (*patience == 0 && !set_option(descriptor, TCP_USER_TIMEOUT, kPatience)) return false;
  return std::chrono::milliseconds(*longest) <= kBound || set_option(descriptor, kRtoMaxMs, kBound);
}

#endif

}  // namespace

std::chrono::seconds bound_tcp_waits() noexcept {
  std::chrono::seconds bound = kTcpWait;
#ifdef __linux__
  try {
    std::error_code error;
    for (std::filesystem::directory_iterator entry("/proc/self/fd", error), end;
         !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename().string();
      int descriptor = -1;
      std::from_chars(name.data(), name.data() + name.size(), descriptor);
      if (bound_waits(descriptor)) bound = kBound;
    }
  } catch (...) {
    // Out of memory: the remaining connections keep their bounds.
  }
#endif
  return bound;
}

}  // namespace deltapipe
